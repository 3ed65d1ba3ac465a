"""Tied messages: what the first and the last stage hand each other once per step, of weights that both use.

    first stage    table  --- before the first micro-batch ---> |
                          <--- gradient, behind the last ------ |    last stage, whose head reads the table, too

The short model has both on one stage, where nothing is handed on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from strategy.cost.cost import CostModel
from strategy.graph.graph import deciding_op
from strategy.graph.signature import Signature
from strategy.layout.config import PlanConfig
from strategy.layout.convert import Converter
from strategy.layout.layout import Home, home_of
from strategy.layout.schedule import at_position
from strategy.layout.step_times import StepTimes
from strategy.sbp.placement import Placement
from strategy.sbp.tensor import Rate
from strategy.space.short_model import LAYERS, places_of
from strategy.space.space import SearchSpace


@dataclass(frozen=True, slots=True)
class TiedMessages:
    """Nanoseconds ahead of all micro-batches, from the first part to the last; and behind all, back."""

    ahead_ns: int = 0
    behind_ns: int = 0

    def beside(self, times: StepTimes, config: PlanConfig) -> StepTimes:
        """What stages do, with these; nothing where both parts are on one stage."""
        places = config.pp * config.virtual_stages
        first, last = (at_position(config.schedule, config.pp, place)[0] for place in (0, places - 1))
        if first == last or self == NOT_TIED:
            return times
        before_ns, after_ns = times.before_ns.copy(), times.after_ns.copy()
        before_ns[..., first] += self.ahead_ns
        after_ns[..., last] += self.behind_ns
        return replace(times, before_ns=before_ns, after_ns=after_ns)


NOT_TIED = TiedMessages()


def tied_messages(
    space: SearchSpace, signatures: Mapping[str, Signature], cost: CostModel, placements: Sequence[Placement]
) -> TiedMessages:
    """Between the first and the last of several stages.

    Args:
        space: of the short model on one stage.
        signatures: of its ops.
        cost: prices of conversions.
        placements: of the stages.
    """
    if len(placements) < 2:
        return NOT_TIED
    converter = Converter(cost, (placements[0], placements[-1]))
    return TiedMessages(
        _crossing_ns(space, signatures, converter, 0, 1), _crossing_ns(space, signatures, converter, 1, 0)
    )


def _crossing_ns(
    space: SearchSpace, signatures: Mapping[str, Signature], converter: Converter, source: int, target: int
) -> int:
    """Of what one end of the model has once per step, and the other reads: 0 is the first stage, 1 the last."""
    graph, part_of, total = space.graph, places_of(space.graph), 0.0
    here, there = (end * (LAYERS - 1) for end in (source, target))
    for name, value in graph.values.items():
        decider = deciding_op(graph, name)
        if value.rate is Rate.MICRO_BATCH or decider is None or part_of[decider.name] != here:
            continue
        wanted = dict.fromkeys(
            layout
            for op in graph.consumers[name]
            if part_of[op.name] == there
            for read, layout in zip(op.inputs, signatures[op.name].inputs, strict=True)
            if read == name
        )
        home = home_of(graph, space.stages, signatures, name) if wanted else None
        if home is not None:
            for layout in wanted:
                total += sum(converter.prices_ns(value.spec, Home(source, home.layout), target, layout))
    return int(total)
