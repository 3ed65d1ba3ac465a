"""Step prices: seconds of all steps of boxing on one tensor at once, each what `CostModel.seconds` says of it.

What a step sends is worked out by arrays (`strategy.comm.busiest_rank`); its constants depend on its kind and its axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from strategy.base.units import LONGEST_ACT_S, to_ns
from strategy.comm.boxing import Floats, Ints, Price, Steps
from strategy.comm.busiest_rank import StepSizes, TwoLevels, two_levels
from strategy.comm.hierarchical import PARTS
from strategy.cost.cost import CostModel, largest_nbytes, step_act
from strategy.cost.measurement import Features
from strategy.program.program import ActKind
from strategy.sbp.placement import Placement
from strategy.sbp.tensor import TensorSpec


@dataclass(frozen=True, slots=True)
class _Line:
    """Seconds of acts by their bytes: fixed ones, and those of every byte."""

    fixed_s: Floats
    s_per_byte: Floats

    def seconds(self, nbytes: Ints) -> Floats:
        """As `CostModel.seconds` says, but for the overhead of an act."""
        return self.fixed_s + self.s_per_byte * nbytes.astype(np.float64)


@dataclass(frozen=True, slots=True)
class _Parted:
    """Collectives of one kind that may take two levels."""

    kind: ActKind
    chosen: Ints
    levels: tuple[TwoLevels, ...]
    lines: tuple[_Line, ...]


@dataclass(frozen=True, slots=True)
class _Constants:
    """What prices steps of any tensor."""

    slices: Ints
    flat: _Line
    parted: tuple[_Parted, ...]


def step_price(cost: CostModel, placement: Placement) -> Price:
    """The price function of boxing steps on `placement`."""
    known: dict[Steps, _Constants] = {}

    def price(spec: TensorSpec, steps: Steps) -> Floats:
        found = known.get(steps)
        if found is None:
            found = known[steps] = _constants(cost, steps, placement)
        sizes = StepSizes(steps, spec)
        if spec.ragged is None:
            nbytes = sizes.sent() * spec.dtype.nbytes
        else:
            nbytes = np.array([spec.sent_nbytes(size) for size in sizes.sent().tolist()])
        if found.slices.size:
            local = _local_nbytes(spec, steps, sizes)
            before, after = local[steps.sources[found.slices]], local[steps.targets[found.slices]]
            nbytes[found.slices] = np.minimum(before, after) + after
        seconds = found.flat.seconds(nbytes) + cost.act_overhead_s
        for parted in found.parted if spec.ragged is None else ():
            sent = sizes.sent_in_parts(parted.kind, parted.chosen, parted.levels)
            total = np.zeros(parted.chosen.size)
            for line, part in zip(parted.lines, sent, strict=True):
                total += line.seconds(part * spec.dtype.nbytes)
            seconds[parted.chosen] = np.minimum(seconds[parted.chosen], total + cost.act_overhead_s)
        return seconds

    return price


def _local_nbytes(spec: TensorSpec, steps: Steps, sizes: StepSizes) -> Ints:
    """Bytes of the largest piece under every layout."""
    if spec.ragged is None:
        return sizes.largest_pieces() * spec.dtype.nbytes
    return np.array([largest_nbytes(spec, layout, steps.mesh) for layout in steps.layouts])


def _constants(cost: CostModel, steps: Steps, placement: Placement) -> _Constants:
    acts: dict[tuple[ActKind, tuple[int, ...]], tuple[float, float]] = {}
    parted: dict[ActKind, list[tuple[int, TwoLevels]]] = {}
    fixed_s, s_per_byte = (np.empty(len(steps.steps)) for _ in range(2))
    for i, step in enumerate(steps.steps):
        act = step.kind, step.axes
        if act not in acts:
            acts[act] = _per_act(cost, step_act(cost.cluster, step, placement))
        fixed_s[i], s_per_byte[i] = acts[act]
        if step.kind in PARTS:
            levels = two_levels(cost.cluster, steps.layouts[steps.sources[i]], step, placement)
            if levels is not None:
                parted.setdefault(step.kind, []).append((i, levels))
    slices = np.array([i for i, step in enumerate(steps.steps) if step.kind is ActKind.SLICE], np.int64)
    return _Constants(
        slices,
        _Line(fixed_s, s_per_byte),
        tuple(_parted(cost, kind, found) for kind, found in parted.items()),
    )


def _parted(cost: CostModel, kind: ActKind, found: Sequence[tuple[int, TwoLevels]]) -> _Parted:
    lines = []
    for part, level in PARTS[kind]:
        acts = [_per_act(cost, Features(part, 0, 0, levels.hops(level), level)) for _, levels in found]
        lines.append(_Line(*np.array(acts).T))
    return _Parted(kind, np.array([i for i, _ in found]), tuple(levels for _, levels in found), tuple(lines))


def _per_act(cost: CostModel, features: Features) -> tuple[float, float]:
    """Seconds of an act without bytes, and of each of its bytes."""
    found = cost.coefficients_of(features)
    return found.fixed_s * (features.hops or 1), found.s_per_byte


def all_to_ns(seconds: Floats) -> Floats:
    """`to_ns` of each."""
    for refused in seconds[~(seconds <= LONGEST_ACT_S)][:1].tolist():
        to_ns(refused)
    found: Floats = np.rint(seconds * 1e9)
    return found
