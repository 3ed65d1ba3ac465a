"""Crossings: which stages that hand on to each other lie over nodes like those whose messages a template prices.

    two stages to a node    | 0  1 | 2  3 | 4  5 |    near: 0-1, 2-3, 4-5    far: 1-2, 3-4

A template prices what is handed on between the first two stages (*near*), and between the first two neighbours that lie
otherwise (*far*). Where a stage is no whole part of a node, and no whole nodes, there are more kinds of pairs: what
these hand on is not counted.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from strategy.comm.hierarchical import by_node
from strategy.hardware.cluster import Cluster
from strategy.layout.config import PlanConfig
from strategy.layout.schedule import Schedule, at_position
from strategy.space.axis_orders import placements_of

NEAR_KIND, FAR_KIND, UNCOUNTED = range(3)
"""How a pair of stages lies."""


@dataclass(frozen=True, slots=True)
class Crossings:
    """Of the stages of a pipeline; `onward` and `back` end with those of the last stage and the first.

    Attributes:
        far: the pair of stages that is priced as such; None where all that is priced is near.
        onward: (stages,) of each stage and the next one.
        back: (stages,) of the next one and each stage.
    """

    far: tuple[int, int] | None
    onward: tuple[int, ...]
    back: tuple[int, ...]

    def kind(self, here: int, there: int) -> int:
        """Of what a stage hands on to another."""
        if here == there:
            return UNCOUNTED
        return self.onward[here] if there == (here + 1) % len(self.onward) else self.back[there]


def crossings_of(cluster: Cluster, config: PlanConfig) -> Crossings:
    """How the stages of a configuration lie on a cluster."""
    mesh = PlanConfig(config.dp, config.tp, config.pp, 1, 1, Schedule.ONE_F_ONE_B, config.cp, config.ep)
    mesh = replace(mesh, stage_order=config.stage_order, strides=config.strides)
    grouped = replace(mesh, zero_stage=3, zero_group=config.zero_group) if config.zero_group else mesh
    return _known_crossings(cluster, grouped)


@lru_cache(maxsize=1 << 11)
def _known_crossings(cluster: Cluster, config: PlanConfig) -> Crossings:
    stages = placements_of(config)
    count = len(stages)
    if count == 1:
        return Crossings(None, (UNCOUNTED,), (UNCOUNTED,))
    next_to = [(stage, (stage + 1) % count) for stage in range(count)]
    onward = [by_node(cluster, stages[here], stages[there]) for here, there in next_to]
    back = [by_node(cluster, stages[there], stages[here]) for here, there in next_to]
    near = onward[0]
    far = next((pair for pair, nodes in zip(next_to[:-1], onward, strict=False) if nodes != near), None)
    priced = {near: NEAR_KIND} if far is None else {onward[far[0]]: FAR_KIND, near: NEAR_KIND}
    each = (tuple(priced.get(nodes, UNCOUNTED) for nodes in pairs) for pairs in (onward, back))
    return Crossings(far, *each)


@lru_cache(maxsize=1 << 12)
def kinds_of_places(pipeline: PlanConfig, crossings: Crossings) -> npt.NDArray[np.int64]:
    """(places - 1,): of what each place hands on to the next; not to be changed."""
    places = range(pipeline.pp * pipeline.virtual_stages)
    stages = [at_position(pipeline.schedule, pipeline.pp, place)[0] for place in places]
    found = np.array([crossings.kind(*pair) for pair in itertools.pairwise(stages)], np.int64)
    found.flags.writeable = False
    return found
