"""Step prices: seconds of all steps of boxing on one tensor at once, each what `CostModel.seconds` says of it.

What a step sends is worked out by arrays (`strategy.comm.busiest_rank`); its constants depend on its kind and its axes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from strategy.base.limits import LONGEST_ACT_S
from strategy.base.units import to_ns
from strategy.comm.boxing import BoxingStep, Floats, Ints, LayoutSteps, Price, StepTable
from strategy.comm.busiest_rank import NodeGroups, StepSizes, busiest_position, node_groups
from strategy.comm.hierarchical import PARTS
from strategy.cost.communication import largest_nbytes, step_act
from strategy.cost.cost import CostModel
from strategy.cost.measurement import Features
from strategy.program.program import ActKind
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import NdSbp, Owner, Sbp, owners
from strategy.sbp.tensor import TensorSpec


@dataclass(frozen=True, slots=True)
class _Line:
    """Seconds of acts by their bytes: fixed ones, and those of every byte; of one act, or of several."""

    fixed_s: float | Floats
    s_per_byte: float | Floats

    def seconds(self, nbytes: Ints) -> Floats:
        """As `CostModel.seconds` says, but for the overhead of an act."""
        return self.fixed_s + self.s_per_byte * nbytes.astype(np.float64)


@dataclass(frozen=True, slots=True)
class _Parted:
    """Collectives of one kind along the same axes, which may take two levels, with the constants of their parts."""

    kind: ActKind
    chosen: Ints
    levels: NodeGroups
    lines: tuple[_Line, ...]


@dataclass(frozen=True, slots=True)
class _Constants:
    """What prices steps of any tensor."""

    slices: Ints
    flat: _Line
    parted: tuple[_Parted, ...]


def step_price(cost: CostModel, placement: Placement) -> Price:
    """The price function of boxing steps on `placement`."""
    known: dict[StepTable, _Constants] = {}

    def price(spec: TensorSpec, steps: StepTable) -> Floats:
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


def _local_nbytes(spec: TensorSpec, steps: StepTable, sizes: StepSizes) -> Ints:
    """Bytes of the largest piece under every layout."""
    if spec.ragged is None:
        return sizes.largest_pieces() * spec.dtype.nbytes
    return np.array([largest_nbytes(spec, layout, steps.mesh) for layout in steps.layouts])


@lru_cache(maxsize=512)
def _alike(steps: LayoutSteps) -> tuple[tuple[int, Ints], ...]:
    """Steps of one kind along the same axes, with the same owners along others: one of them, and which they are."""
    found: dict[tuple[ActKind, tuple[int, ...], tuple[Sbp | None, ...]], list[int]] = {}
    has_owner = {before for before, layout in enumerate(steps.layouts) if owners(layout)}
    for i, (step, before) in enumerate(zip(steps.steps, steps.sources.tolist(), strict=True)):
        beside = _owners_beside(steps.layouts[before], step) if before in has_owner else ()
        found.setdefault((step.kind, step.axes, beside), []).append(i)
    return tuple((alike[0], np.array(alike, np.int64)) for alike in found.values())


def _owners_beside(layout: NdSbp, step: BoxingStep) -> tuple[Sbp | None, ...]:
    """By axis that a step leaves as it is, the owner, if there is one."""
    found = tuple(sbp if isinstance(sbp, Owner) and axis not in step.axes else None for axis, sbp in enumerate(layout))
    return found if any(found) else ()


def _constants(cost: CostModel, steps: StepTable, placement: Placement) -> _Constants:
    fixed_s, s_per_byte = (np.empty(len(steps.steps)) for _ in range(2))
    slices, parted = [np.zeros(0, np.int64)], list[_Parted]()
    for first, chosen in _alike(steps.among):
        step = steps.steps[first]
        position = busiest_position(steps.layouts[steps.sources[first]], step, steps.mesh)
        line = _line(cost, step_act(cost.cluster, step, placement))
        fixed_s[chosen], s_per_byte[chosen] = line.fixed_s, line.s_per_byte
        if step.kind is ActKind.SLICE:
            slices.append(chosen)
        levels = node_groups(cost.cluster, placement, step.axes, position) if PARTS.get(step.kind) else None
        if levels is not None:
            groups = cost.cluster.groups_of(placement.devices)
            parts = (Features(part, 0, 0, levels.hops(level), level, groups=groups) for part, level in PARTS[step.kind])
            parted.append(_Parted(step.kind, chosen, levels, tuple(_line(cost, part) for part in parts)))
    return _Constants(np.concatenate(slices), _Line(fixed_s, s_per_byte), tuple(parted))


def _line(cost: CostModel, features: Features) -> _Line:
    """Seconds of an act by its bytes."""
    found = cost.coefficients_of(features)
    return _Line(found.fixed_s * (features.hops or 1), found.s_per_byte)


def all_to_ns(seconds: Floats) -> Floats:
    """`to_ns` of each."""
    for refused in seconds[~(seconds <= LONGEST_ACT_S)][:1].tolist():
        to_ns(refused)
    found: Floats = np.rint(seconds * 1e9)
    return found
