"""Convert: the cheapest way of a value from its home to a copy, within a stage or between stages."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from strategy.boxing import TRANSFER_AXIS, Boxing, BoxingStep, Price
from strategy.cost import CostModel
from strategy.errors import SbpError
from strategy.graph import Graph
from strategy.layout import Assignment, Conversion, Home, Layout, Stages, home_of, wanted_copies
from strategy.placement import Placement
from strategy.program import ActKind
from strategy.sbp import B, NdSbp, Partial, Sbp, Split, has_partial, is_legal_layout
from strategy.tensor import Shape, TensorSpec
from strategy.units import to_ns

_Crossing = tuple[tuple[float, float], tuple[BoxingStep, ...]]
"""Prices at home and after the transfer, and the steps, of a conversion between stages."""


@dataclass(slots=True)
class Converter:
    """Prices and chains of conversions between the stages of one pipeline, in whole nanoseconds."""

    cost: CostModel
    placements: tuple[Placement, ...]
    boxings: list[Boxing] = field(init=False)
    found: dict[object, _Crossing] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.boxings = [Boxing(p, self._step_price(p)) for p in self.placements]

    def _step_price(self, placement: Placement) -> Price:
        seconds = self.cost.step_price(placement)

        def price_ns(kind: ActKind, axis: int, spec: TensorSpec, source: NdSbp, target: NdSbp) -> float:
            return float(to_ns(seconds(kind, axis, spec, source, target)))

        return price_ns

    def prices_ns(self, spec: TensorSpec, home: Home, stage: int, layout: NdSbp) -> tuple[float, float]:
        """Nanoseconds that the cheapest conversion takes at home and, after a transfer, on `stage`.

        Infinite where there is no conversion.
        """
        if home.stage == stage:
            return self.boxings[stage].seconds(spec, home.layout, layout), 0.0
        return self._across(spec, home, stage, layout)[0]

    def steps(self, spec: TensorSpec, home: Home, stage: int, layout: NdSbp) -> tuple[BoxingStep, ...]:
        """The cheapest conversion.

        Raises:
            SbpError: there is none.
        """
        if home.stage == stage:
            return self.boxings[stage].chain(spec, home.layout, layout)
        prices, steps = self._across(spec, home, stage, layout)
        if sum(prices) == float("inf"):
            raise SbpError("no conversion leads to another stage", got=(home, stage, layout))
        return steps

    def _across(self, spec: TensorSpec, home: Home, stage: int, layout: NdSbp) -> _Crossing:
        """Convert at home, transfer, convert at the destination: the cheapest of a few obvious meeting layouts."""
        sender, receiver = self.placements[home.stage], self.placements[stage]
        key = (spec, home.layout, layout, self._pair(home.stage, stage))
        if key not in self.found:
            best: _Crossing = ((float("inf"), 0.0), ())
            arrivals = _whole_terms(spec, layout, receiver.mesh)
            for left in _whole_terms(spec, home.layout, sender.mesh):
                before = self.boxings[home.stage].seconds(spec, home.layout, left)
                same = [left] if sender.mesh == receiver.mesh else []
                for right in dict.fromkeys([*arrivals, *same]):
                    moved = to_ns(self.cost.transfer_seconds(spec, left, sender, right, receiver))
                    prices = (before + moved, self.boxings[stage].seconds(spec, right, layout))
                    if sum(prices) < sum(best[0]):
                        transfer = BoxingStep(ActKind.TRANSFER, TRANSFER_AXIS, right)
                        head = self.boxings[home.stage].chain(spec, home.layout, left)
                        best = (prices, (*head, transfer, *self.boxings[stage].chain(spec, right, layout)))
            self.found[key] = best
        return self.found[key]

    def _pair(self, home: int, stage: int) -> object:
        """Pairs of stages between which every conversion is alike: disjoint, of one mesh, at one distance."""
        sender, receiver = self.placements[home], self.placements[stage]
        if sender.mesh != receiver.mesh or set(sender.devices) & set(receiver.devices):
            return home, stage
        cluster = self.cost.cluster
        near = tuple(cluster.crosses_nodes(pair) for pair in zip(sender.devices, receiver.devices, strict=True))
        return near, cluster.crosses_nodes((*sender.devices, *receiver.devices))


def _whole_terms(spec: TensorSpec, layout: NdSbp, mesh: Shape) -> list[NdSbp]:
    """The layout with every partial axis made B or split along some dim; itself where nothing is partial."""
    if not has_partial(layout):
        return [layout]
    whole: list[Sbp] = [B, *(Split(d) for d in range(len(spec.shape)))]
    per_axis = [whole if isinstance(sbp, Partial) else [sbp] for sbp in layout]
    return [nd for nd in itertools.product(*per_axis) if is_legal_layout(spec.shape, nd, mesh)]


def lay_out(graph: Graph, stages: Stages, signatures: Assignment, converter: Converter) -> Layout:
    """The layout that an assignment of signatures makes, with the cheapest conversions."""
    conversions = []
    for copy in wanted_copies(graph, stages, signatures):
        home = home_of(graph, stages, signatures, copy.value)
        if home is not None and (home.stage, home.layout) != (copy.stage, copy.layout):
            steps = converter.steps(graph.values[copy.value].spec, home, copy.stage, copy.layout)
            conversions.append(Conversion(copy, home, steps))
    return Layout(stages, signatures, tuple(conversions))
