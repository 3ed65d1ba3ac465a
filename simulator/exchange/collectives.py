"""Collectives over symmetric nodes, folded: what one node's NIC, one GPU's link and one connection carry of them.

A ring moves 2 (n - 1) / n of the bytes over every edge in 2 (n - 1) steps (Patarasuk and Yuan 2009); one edge leaves
every node. `messages` spells the same out, rank by rank. Like NCCL, a collective takes the cheaper of two protocols:
Simple, whose every step also waits for a fence, or LL, which sends a flag with every word and so twice the bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from simulator.exchange.fabric import Fabric
from simulator.exchange.loop import LinkGroup, Side
from strategy.base.units import to_ns
from strategy.hardware.nccl import Wire, tuning

RINGS = 2
"""Of a communicator of NCCL 2 over one NIC."""
NIC_OUT, NIC_IN, GPU_OUT, GPU_IN, BRIDGE = "nic out", "nic in", "gpu out", "gpu in", "bridge"


@dataclass(frozen=True, slots=True)
class Collective:
    """Latency, bytes by link, and messages that all ranks send."""

    latency_ns: int
    legs: Mapping[str, int]
    messages: int


def node_links(fabric: Fabric) -> dict[str, LinkGroup]:
    """One node's NICs and the bridge between its halves, and one GPU's link, for all of them."""
    return {
        NIC_OUT: LinkGroup(fabric.nic_bytes_per_s, Side.OUT, fabric.nodes, far=True),
        NIC_IN: LinkGroup(fabric.nic_bytes_per_s, Side.IN, fabric.nodes, far=True),
        GPU_OUT: LinkGroup(fabric.inside_bytes_per_s, Side.OUT, fabric.ranks),
        GPU_IN: LinkGroup(fabric.inside_bytes_per_s, Side.IN, fabric.ranks),
        BRIDGE: LinkGroup(fabric.bridge_bytes_per_s),
    }


def ring_links(fabric: Fabric, rings: int) -> dict[str, LinkGroup]:
    """Those of one ring at a time, which NCCL lays out `rings` times, each with connections of its own."""
    return {**node_links(fabric), connection(0): LinkGroup(rings * fabric.flow_bytes_per_s)}


def connection(stream: int) -> str:
    """The connections of a stream, each between two neighbouring nodes."""
    return f"connection {stream}"


def ring(fabric: Fabric, nbytes: int, stream: int) -> Collective:
    """All-reduce by one ring through all GPUs, over a stream's connections."""
    n, nodes = fabric.ranks, fabric.nodes
    steps = 2 * (n - 1)
    crossings = 2 * (nodes - 1)
    moved = steps * -(-nbytes // n)
    inside = moved if fabric.gpus_per_node > 1 else 0
    across = moved if nodes > 1 else 0
    return _cheaper(fabric, (inside, across), (steps - crossings, crossings), stream, n * steps)


def upper_half(fabric: Fabric, nbytes: int, stream: int) -> Collective:
    """A reduction to each node's leader along a chain, and a ring through the leaders."""
    steps = 2 * (fabric.nodes - 1)
    chain = fabric.gpus_per_node - 1
    moved = nbytes if chain else 0, steps * -(-nbytes // fabric.nodes)
    return _cheaper(fabric, moved, (chain, steps), stream, fabric.nodes * (chain + steps))


def lower_half(fabric: Fabric, nbytes: int) -> Collective:
    """A broadcast from each node's leader along a chain."""
    chain = fabric.gpus_per_node - 1
    return _cheaper(fabric, (nbytes if chain else 0, 0), (chain, 0), None, fabric.nodes * chain)


@lru_cache(maxsize=64)
def fenced(fabric: Fabric) -> Fabric:
    """The fabric as a step by Simple finds it: later by the wait for a fence, everywhere that of NVLink and RDMA."""
    inside_hop_s = fabric.inside_hop_s + tuning().fence_s(Wire.NVLINK)
    network_hop_s = fabric.network_hop_s + tuning().fence_s(Wire.NETWORK)
    return replace(fabric, inside_hop_s=inside_hop_s, network_hop_s=network_hop_s)


def _cheaper(
    fabric: Fabric, moved: tuple[int, int], steps: tuple[int, int], stream: int | None, messages: int
) -> Collective:
    """The protocol that is faster alone; `moved` bytes and `steps` are inside nodes and between them."""
    found = []
    for hops, wire in ((fenced(fabric), 1), (fabric, 2)):
        inside, across = (wire * nbytes for nbytes in moved)
        latency_s = steps[0] * hops.inside_hop_s + steps[1] * hops.network_hop_s
        rate = fabric.nic_bytes_per_s
        alone_s = latency_s + max(inside / min(fabric.inside_bytes_per_s, fabric.bridge_bytes_per_s), across / rate)
        legs = {GPU_OUT: inside, GPU_IN: inside, BRIDGE: inside}
        if stream is not None:
            legs |= {NIC_OUT: across, NIC_IN: across, connection(stream): across}
        found.append((alone_s, Collective(to_ns(latency_s), legs, messages)))
    return min(found, key=lambda way: way[0])[1]
