"""Convert: the cheapest way of a value from its home to a copy, on one placement or between any two."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import SbpError
from strategy.base.numbers import Numbers
from strategy.base.units import to_ns
from strategy.comm.boxing import Bools, BoxingStep, Floats, Price, StepTable
from strategy.comm.chains import Boxing
from strategy.comm.hierarchical import by_node
from strategy.cost.cost import CostModel
from strategy.cost.data_sheet import Coefficients
from strategy.cost.measurement import CostKey
from strategy.cost.step_prices import all_to_ns, step_price
from strategy.graph.graph import Graph
from strategy.hardware.cluster import Cluster
from strategy.layout.layout import Assignment, Conversion, Home, Layout, Stages, home_of, wanted_copies
from strategy.program.program import ActKind
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import B, Broadcast, NdSbp, Partial, Sbp, Split, format_nd, is_legal_layout
from strategy.sbp.tensor import Shape, TensorSpec

MOST_COST_MODELS = 4
"""Of so many, the latest, tables of conversions are kept."""
_Boxings = dict[object, Boxing]
"""Conversions on one placement by what they depend on, for all placements that are alike, of one cost model."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """A conversion between placements: its price at home, on the way and away; infinite if there is none.

    Ranks exchange messages, whose price is that of the way; from one memory of a rank to its other, pieces are copied.
    """

    leaving: float
    moving: float
    arriving: float
    steps: tuple[BoxingStep, ...]

    @property
    def price(self) -> float:
        """All of it."""
        return self.leaving + self.moving + self.arriving


def cross(
    spec: TensorSpec,
    source: NdSbp,
    home: Boxing,
    target: NdSbp,
    away: Boxing,
    moving: Callable[[NdSbp, NdSbp], float],
    copying: Callable[[NdSbp, Placement], float],
) -> Crossing:
    """The cheapest conversion that boxes at home, moves, and boxes away, over a few obvious meeting layouts.

    Terms are reduced before and made after messages; a rank may copy them to its other memory as they are. What is B
    may be cut before and put together after the move, so that the move carries every piece once.

    Args:
        spec: the tensor.
        source: its layout on the placement of `home`.
        home: conversions where it is.
        target: the layout wanted on the placement of `away`.
        away: conversions where it goes.
        moving: price of the messages from one layout without terms to another.
        copying: price of a copy to the other memory of every rank of a placement, of the pieces of a layout.
    """
    best, ends = Crossing(float("inf"), 0.0, 0.0, ()), (source, target)
    here, there = home.placement, away.placement
    for left, right in _meetings(spec, source, here, target, there):
        before, after = home.seconds(spec, source, left), away.seconds(spec, right, target)
        if before + after >= best.price:
            continue
        steps = _moves(left, here, right, there, copying)
        leaving, way, arriving = before, 0.0, after
        for step, copied in steps:
            if copied is None:
                way = moving(left, right)
            elif step is steps[0][0]:
                leaving += copied
            else:
                arriving += copied
        if leaving + way + arriving < best.price:
            best, ends = Crossing(leaving, way, arriving, tuple([step for step, _ in steps])), (left, right)
    if math.isinf(best.price):
        return best
    chain = (*home.chain(spec, source, ends[0]), *best.steps, *away.chain(spec, ends[1], target))
    return replace(best, steps=chain)


def _meetings(
    spec: TensorSpec, source: NdSbp, here: Placement, target: NdSbp, there: Placement
) -> Iterator[tuple[NdSbp, NdSbp]]:
    """The layouts that a tensor leaves in and arrives in; one and the same where every rank keeps its piece."""
    departures, arrivals = meeting_layouts(spec, source, here.mesh), meeting_layouts(spec, target, there.mesh)
    if _twins(here, there):
        yield from ((layout, layout) for layout in dict.fromkeys((source, target, *departures, *arrivals)))
        return
    for left in departures:
        for right in dict.fromkeys([*arrivals, *([left] if here.mesh == there.mesh else [])]):
            yield left, right


def _twins(here: Placement, there: Placement) -> bool:
    """Whether two placements are the two memories of the same ranks."""
    return here.space is not there.space and (here.devices, here.mesh) == (there.devices, there.mesh)


def _moves(
    left: NdSbp, here: Placement, right: NdSbp, there: Placement, copying: Callable[[NdSbp, Placement], float]
) -> list[tuple[BoxingStep, float | None]]:
    """The steps between two placements; a copy, with its price, before the messages or after them, as is cheaper."""
    transfer = BoxingStep(ActKind.TRANSFER, (), right)
    if here.space is there.space:
        return [(transfer, None)]
    before = copying(left, here)
    if _twins(here, there):
        return [(BoxingStep(ActKind.COPY, (), left), before)]
    after = copying(right, there)
    if before <= after:
        return [(BoxingStep(ActKind.COPY, (), left), before), (transfer, None)]
    return [(transfer, None), (BoxingStep(ActKind.COPY, (), right), after)]


@lru_cache(maxsize=1 << 12)
def meeting_layouts(spec: TensorSpec, layout: NdSbp, mesh: Shape) -> tuple[NdSbp, ...]:
    """Layouts in which a tensor may travel: `layout` with its terms made B or split, and with its copies cut."""
    splits = [Split(d) for d in range(len(spec.shape))]
    whole: list[list[Sbp]] = [[B, *splits] if isinstance(sbp, Partial) else [sbp] for sbp in layout]
    found = [nd for nd in itertools.product(*whole) if is_legal_layout(spec.shape, nd, mesh)]
    return tuple(dict.fromkeys([*found, *(_cut(spec, nd, mesh) for nd in found)]))


def _cut(spec: TensorSpec, layout: NdSbp, mesh: Shape) -> NdSbp:
    """The layout with every B made the first split that is legal, where there is one."""
    for axis, parts in enumerate(mesh):
        if isinstance(layout[axis], Broadcast) and parts > 1:
            cuts = ((*layout[:axis], Split(d), *layout[axis + 1 :]) for d in range(len(spec.shape)))
            layout = next((nd for nd in cuts if is_legal_layout(spec.shape, nd, mesh)), layout)
    return layout


@dataclass(slots=True)
class Converter:
    """Prices and chains of conversions between the stages of one pipeline, in whole nanoseconds.

    Placements whose ranks share nodes alike share one table of prices, with all others of a process that has the same
    cost model: a price does not depend on who asked for it first.
    """

    cost: CostModel
    placements: tuple[Placement, ...]
    boxings: list[Boxing] = field(init=False, default_factory=list)
    first_alike: list[int] = field(init=False, default_factory=list)
    """Stage -> the first whose table of prices it shares."""
    found: dict[object, Crossing] = field(default_factory=dict)
    moved_ns: dict[object, float] = field(default_factory=dict)
    """What messages take from one layout to another."""
    pairs: dict[tuple[int, int], int] = field(default_factory=dict)
    distances: dict[object, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        known, shared = dict[object, int](), _priced_by(self.cost)
        for stage, placement in enumerate(self.placements):
            key = placement.mesh, by_node(self.cost.cluster, placement)
            if key not in shared:
                shared[key] = Boxing(placement, self._step_price(placement))
            self.boxings.append(replace(shared[key], placement=placement))
            self.first_alike.append(known.setdefault(key, stage))

    def _step_price(self, placement: Placement) -> Price:
        price = step_price(self.cost, placement)

        def price_ns(spec: TensorSpec, steps: StepTable) -> Floats:
            return all_to_ns(price(spec, steps))

        return price_ns

    def prices_ns(self, spec: TensorSpec, home: Home, stage: int, layout: NdSbp) -> tuple[float, float, float]:
        """Nanoseconds that the cheapest conversion takes at home, on the way to `stage`, and there.

        Infinite where there is no conversion.
        """
        if home.stage == stage:
            return self.boxings[stage].seconds(spec, home.layout, layout), 0.0, 0.0
        crossing = self._across(spec, home, stage, layout)
        return crossing.leaving, crossing.moving, crossing.arriving

    def way(self, home: int, stage: int) -> tuple[int, int]:
        """What all conversions from one stage to another cost alike: the first such stage, or the number of a pair."""
        if home == stage:
            return -1, self.first_alike[stage]
        return self._number(home, stage), -1

    def all_prices_ns(
        self,
        spec: TensorSpec,
        home: int,
        sources: Sequence[NdSbp],
        stage: int,
        layouts: Sequence[NdSbp],
        budget: Budget = UNLIMITED,
    ) -> Floats:
        """(3, layouts, sources): `prices_ns` from several layouts on one stage.

        Raises:
            OutOfTimeError: the time ran out.
        """
        found: Floats = np.zeros((3, len(layouts), len(sources)))
        if home == stage:
            found[0] = self.boxings[stage].all_seconds(spec, sources, layouts, budget).T
            return found
        for i, layout in enumerate(layouts):
            for j, source in enumerate(sources):
                found[:, i, j] = self.prices_ns(spec, Home(home, source), stage, layout)
        return found

    def reaches(
        self, spec: TensorSpec, home: int, sources: Sequence[NdSbp], stage: int, layouts: Sequence[NdSbp]
    ) -> Bools:
        """(layouts, sources): where there is a conversion."""
        if home == stage:
            return self.boxings[stage].reaches(spec, sources, layouts).T
        leaving, *_ = self.all_prices_ns(spec, home, sources, stage, layouts)
        found: Bools = np.isfinite(leaving)
        return found

    def steps(self, spec: TensorSpec, home: Home, stage: int, layout: NdSbp) -> tuple[BoxingStep, ...]:
        """The cheapest conversion.

        Raises:
            SbpError: there is none.
        """
        if home.stage == stage:
            return self.boxings[stage].chain(spec, home.layout, layout)
        crossing = self._across(spec, home, stage, layout)
        if crossing.leaving == float("inf"):
            got = f"{format_nd(home.layout)} on stage {home.stage} to {format_nd(layout)} on stage {stage}"
            raise SbpError("no conversion leads to another stage", got=got)
        return crossing.steps

    def _across(self, spec: TensorSpec, home: Home, stage: int, layout: NdSbp) -> Crossing:
        pair = self._number(home.stage, stage)
        key = (spec, home.layout, layout, pair)
        found = self.found.get(key)
        if found is None:
            sender, receiver = self.placements[home.stage], self.placements[stage]

            def moving_ns(left: NdSbp, right: NdSbp) -> float:
                between = spec, left, right, pair
                if between not in self.moved_ns:
                    seconds = self.cost.transfer_seconds(spec, left, sender, right, receiver)
                    self.moved_ns[between] = float(to_ns(seconds))
                return self.moved_ns[between]

            def copying_ns(pieces: NdSbp, placement: Placement) -> float:
                return float(to_ns(self.cost.copy_seconds(spec, pieces, placement, receiver.space)))

            leaves, arrives = self.boxings[home.stage], self.boxings[stage]
            found = self.found[key] = cross(spec, home.layout, leaves, layout, arrives, moving_ns, copying_ns)
        return found

    def _number(self, home: int, stage: int) -> int:
        if (home, stage) not in self.pairs:
            self.pairs[home, stage] = self._pair(home, stage)
        return self.pairs[home, stage]

    def _pair(self, home: int, stage: int) -> int:
        """One number for the pairs of stages between which every conversion is alike: disjoint, at one distance."""
        sender, receiver = self.placements[home], self.placements[stage]
        key: object = (home, stage)
        if not set(sender.devices) & set(receiver.devices):
            nodes = by_node(self.cost.cluster, sender, receiver)
            key = sender.mesh, sender.space, receiver.mesh, receiver.space, nodes
        return self.distances.setdefault(key, len(self.distances))


def lay_out(graph: Graph, stages: Stages, signatures: Assignment, converter: Converter) -> Layout:
    """The layout that an assignment of signatures makes, with the cheapest conversions."""
    conversions = []
    specs: Numbers[TensorSpec] = Numbers()
    layouts: Numbers[NdSbp] = Numbers()
    known: dict[object, tuple[BoxingStep, ...]] = {}
    for copy in wanted_copies(graph, stages, signatures):
        home = home_of(graph, stages, signatures, copy.value)
        if home is not None and (home.stage, home.layout) != (copy.stage, copy.layout):
            spec = graph.values[copy.value].spec
            key = specs.of(spec), home.stage, layouts.of(home.layout), copy.stage, layouts.of(copy.layout)
            if key not in known:
                known[key] = converter.steps(spec, home, copy.stage, copy.layout)
            conversions.append(Conversion(copy, home, known[key]))
    return Layout(stages, signatures, tuple(conversions))


def _priced_by(cost: CostModel) -> _Boxings:
    """The tables of a cost model."""
    return _of_prices(cost.cluster, tuple(sorted(cost.coefficients.items())), cost.act_overhead_s, cost.on_any_link)


@lru_cache(maxsize=MOST_COST_MODELS)
def _of_prices(
    cluster: Cluster, measured: tuple[tuple[CostKey, Coefficients], ...], act_overhead_s: float, on_any_link: bool
) -> _Boxings:
    return {}
