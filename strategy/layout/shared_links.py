"""Shared links: how much what goes on beside computation stands still while collectives that are waited for go on.

Where both pass the same links, each gets half of these, so that a nanosecond of what is waited for takes one from what
goes on beside it, if that has no other link to be on just then. With eight ranks of a node on a tensor axis of two and
a data axis of four, which goes on to other nodes:

    tensor axis    inside of nodes
    data axis      inside of nodes for 0.3 of its time, between them for 0.7    ->  0.3 of a nanosecond

So do messages to other stages: between nodes, 0.7 of a nanosecond there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import cast

import numpy as np
import numpy.typing as npt

from strategy.base.identity import Identity
from strategy.comm.boxing import BoxingStep
from strategy.cost.cost import CostModel
from strategy.layout.step_times import TICKS
from strategy.program.program import ActKind
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import Broadcast, Sbp, Split
from strategy.sbp.tensor import DType, TensorSpec

WAITED_FOR = ("tensor", "expert", "context")
"""Axes along which layers exchange what they wait for; of several the first is looked at."""
BESIDE = ("replica", "data", "expert", "context")
"""Axes along which parameters are gathered, and gradients are exchanged."""
NOMINAL_ELEMENTS = 1 << 20
"""Of each rank, in what is looked at: bytes count, latencies hardly do."""


def message_ticks(cost: CostModel, first_stage: Placement, crosses: Sequence[bool]) -> tuple[int, ...]:
    """Of `TICKS`, what a nanosecond of a message takes from what goes on beside its sender; of every stage to the next.

    Args:
        cost: prices.
        first_stage: with the mesh of all.
        crosses: (stages,) whether what each hands to the next, or gets back, goes between nodes; the last to the first.
    """
    inside, between = _message_ticks(Identity(cost), first_stage)
    return tuple(between if each else inside for each in crosses)


def crossing_pairs(devices_per_node: int, ranks: npt.ArrayLike) -> tuple[bool, ...]:
    """(stages,): whether some rank of a stage and its like on the next are on different nodes; of (stages, ranks)."""
    nodes = np.asarray(ranks) // devices_per_node
    return tuple((nodes != np.roll(nodes, -1, axis=0)).any(1).tolist())


@lru_cache(maxsize=1024)
def _message_ticks(known: Identity, placement: Placement) -> tuple[int, int]:
    """Of one inside of a node, and between nodes."""
    cost = cast(CostModel, known.held)
    sizes = dict(zip(placement.axes, placement.mesh, strict=True))
    beside = [name for name in BESIDE if sizes.get(name, 1) > 1]
    shares = _shares(cost, placement, beside) if beside else {}
    inside, between = (round(TICKS * shares.get(level, 0.0)) for level in ("intra", "inter"))
    return inside, between


def shared_ticks(cost: CostModel, placement: Placement) -> int:
    """Of `TICKS`, what a nanosecond of what is waited for takes from what goes on beside it, on the mesh of a stage."""
    return _shared_ticks(Identity(cost), placement)


@lru_cache(maxsize=1024)
def _shared_ticks(known: Identity, placement: Placement) -> int:
    cost = cast(CostModel, known.held)
    sizes = dict(zip(placement.axes, placement.mesh, strict=True))
    waited_for = [name for name in WAITED_FOR if sizes.get(name, 1) > 1]
    beside = [name for name in BESIDE if sizes.get(name, 1) > 1]
    if not waited_for or not beside:
        return 0
    one, other = _shares(cost, placement, waited_for[:1]), _shares(cost, placement, beside)
    return round(TICKS * sum(share * other.get(level, 0.0) for level, share in one.items()))


def _shares(cost: CostModel, placement: Placement, names: Iterable[str]) -> Mapping[str, float]:
    """Level -> the share of the time of a large all-gather along some axes that it spends there."""
    axes = tuple(placement.axes.index(name) for name in names)
    ranks = math.prod(placement.mesh[axis] for axis in axes)
    split: list[Sbp] = [Split(0) if axis in axes else Broadcast() for axis in range(len(placement.mesh))]
    step = BoxingStep(ActKind.ALL_GATHER, axes, (Broadcast(),) * len(split))
    spec = TensorSpec((NOMINAL_ELEMENTS * ranks,), DType.FLOAT32)
    features = cost.step_features(spec, tuple(split), step, placement)
    found: dict[str, float] = {}
    for part in features.parts or (features,):
        found[part.level] = found.get(part.level, 0.0) + cost.seconds(part)
    total = sum(found.values())
    return {level: seconds / total for level, seconds in found.items()} if total else {}
