"""A plan, or a run of one, as one page that opens in any browser without a network."""
