"""Stage orders: which share of consecutive ranks each stage of a pipeline is on, where nodes are of several types.

With two A100 nodes, two H100 nodes and a stage per node, there are shares 0 to 3:

    as ranks count    0 1 2 3        fastest first    2 3 0 1        fastest last    0 1 2 3
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from strategy.hardware.cluster import Cluster


def stage_orders(cluster: Cluster, stages: int) -> tuple[tuple[int, ...], ...]:
    """The orders that are looked at, each as the shares of all stages; empty where these are in the order of ranks.

    Groups of nodes stay together: as their ranks count, with the fastest devices first, and with these last.
    """
    size = cluster.devices // stages
    ranks = [one.nodes * cluster.devices_per_node for one in cluster.groups]
    if stages == 1 or any(count % size for count in ranks):
        return ((),)
    ends = [end // size for end in itertools.accumulate(ranks)]
    shares = [tuple(range(end - count // size, end)) for count, end in zip(ranks, ends, strict=True)]
    as_counted = list(range(len(shares)))
    slowest_first = sorted(as_counted, key=lambda group: cluster.groups[group].device.flop_per_s)
    orders = (as_counted, slowest_first[::-1], slowest_first)
    found = dict.fromkeys(tuple(itertools.chain.from_iterable(shares[group] for group in order)) for order in orders)
    return tuple(() if order == tuple(range(stages)) else order for order in found)


def runs_by_speed(layers: int, speeds: Sequence[float]) -> tuple[int, ...]:
    """How many layers are at every place along a pipeline, about in proportion to how fast each is, and one at least.

    Layers are dealt out one by one, to whom the next one takes least time.
    """
    runs = [1] * len(speeds)
    for _ in range(layers - len(speeds)):
        runs[min(range(len(speeds)), key=lambda place: ((runs[place] + 1) / speeds[place], place))] += 1
    return tuple(runs)
