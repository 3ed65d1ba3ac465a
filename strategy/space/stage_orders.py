"""Stage orders: which block of consecutive ranks each stage of a pipeline is on, where nodes are of several types.

With two A100 nodes, two H100 nodes and a stage per node, blocks 0 to 3:

    as ranks count    0 1 2 3        fastest first    2 3 0 1        fastest last    0 1 2 3
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from strategy.hardware.cluster import Cluster


def stage_orders(cluster: Cluster, stages: int) -> tuple[tuple[int, ...], ...]:
    """The orders that are looked at, each as the blocks of all stages; empty where these are in the order of ranks.

    Groups stay together: as their ranks count, and with the fastest devices first, and last.
    """
    each = cluster.devices // stages
    sizes = [one.nodes * cluster.devices_per_node for one in cluster.groups]
    if stages == 1 or any(size % each for size in sizes):
        return ((),)
    ends = [end // each for end in itertools.accumulate(sizes)]
    blocks = [tuple(range(end - size // each, end)) for size, end in zip(sizes, ends, strict=True)]
    as_counted = list(range(len(blocks)))
    slowest_first = sorted(as_counted, key=lambda group: cluster.groups[group].device.flop_per_s)
    orders = (as_counted, slowest_first[::-1], slowest_first)
    found = dict.fromkeys(tuple(itertools.chain.from_iterable(blocks[group] for group in order)) for order in orders)
    return tuple(() if order == tuple(range(stages)) else order for order in found)


def runs_by_speed(layers: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """How many layers are at every place along a pipeline, about in proportion to how fast each is, and one at least.

    Layers are dealt out one by one, to whom the next one takes least time.
    """
    runs = [1] * len(speeds)
    for _ in range(layers - len(speeds)):
        runs[min(range(len(speeds)), key=lambda place: ((runs[place] + 1) / speeds[place], place))] += 1
    return tuple(runs)
