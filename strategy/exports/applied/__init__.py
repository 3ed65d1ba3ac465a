"""Programs that are exported with a plan's layouts in them: one file each, which needs its framework and no more."""
