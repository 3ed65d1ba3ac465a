"""comm: conversions between layouts as collectives, flat or hierarchical, and what the busiest rank sends."""
