"""layouts: which signatures an op may have, and the integer problem of choosing one for each."""
