"""Published training measurements: reading rows, predicting them, and judging the predictions."""
