"""Figures: one file, one figure, `figure(data) -> Figure`."""
