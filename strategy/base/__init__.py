"""base: errors, units, files and compiled loops, which everything stands on."""
