"""base: errors, units, files, budgets, statuses and compiled loops, which everything stands on."""
