"""Clusters of two types of nodes, slow ones and fast ones, so slow that small tensors cost something."""

from __future__ import annotations

from collections.abc import Sequence

from strategy.cost.cost import CostModel
from strategy.hardware.cluster import AlikeNodes, Cluster, Device, Link, of_groups
from strategy.models import Model
from strategy.passes.training import Training
from strategy.space.request import Pins, Request

ROOMY = 2**40


def small_device(speed: float, *, memory_bytes: int = ROOMY, backend: str = "cupy") -> Device:
    """A device that is so many times as fast as the slowest."""
    return Device(f"small {speed:g}", backend, memory_bytes, 1e9 * speed, 1e9 * speed, 1e-6)


def mixed(
    *speeds: float, nodes: int = 1, per_node: int = 2, memory: Sequence[int] = (), backend: str = "cupy"
) -> Cluster:
    """A group of nodes for each speed."""
    sizes = memory or (ROOMY,) * len(speeds)
    groups = [
        AlikeNodes(nodes, small_device(speed, memory_bytes=size, backend=backend), Link(2e8 * speed, 2e-6))
        for speed, size in zip(speeds, sizes, strict=True)
    ]
    return of_groups("mixed", per_node, groups, Link(5e7, 8e-6))


def mixed_request(model: Model, batch: int, cluster: Cluster, pins: Pins) -> Request:
    """A search on a cluster of several types, every device with all of its memory."""
    limit = cluster.largest_memory_bytes
    return Request("small", model, Training(batch), CostModel(cluster, {}), limit, pins)
