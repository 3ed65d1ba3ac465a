"""Gradient exchange at scale: how training systems bring gradients together, as simulated messages and transfers.

A file per system. What they share: the network (`fabric`), its transfers (`loop`), a step's compute and gradients
(`workload`, `training`), collectives folded by symmetry (`collectives`) and spelt out message by message (`messages`),
and how ranks agree on what is ready (`negotiation`).
"""
