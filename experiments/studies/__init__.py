"""Studies: what if the cluster, its ranks, the schedule or the exchange were another; what failures cost."""
