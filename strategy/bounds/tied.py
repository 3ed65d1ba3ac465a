"""Tied: what the first and the last stage hand each other once per step, of weights that both use.

    first stage    table  --- before the first micro-batch ---> |
                          <--- gradient, behind the last ------ |    last stage, whose head reads the table, too

The short model has both on one stage, where nothing is handed on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from strategy.graph.graph import Graph, Op, deciding_op
from strategy.layout.config import PlanConfig
from strategy.layout.schedule import at_position
from strategy.layout.step_times import StepTimes
from strategy.sbp.tensor import Rate
from strategy.space.short_model import LAYERS, places_of


@dataclass(frozen=True, slots=True)
class TiedMessages:
    """Nanoseconds ahead of all micro-batches, from the first part to the last; and behind all, back."""

    ahead_ns: int = 0
    behind_ns: int = 0

    def beside(self, times: StepTimes, config: PlanConfig) -> StepTimes:
        """What stages do, with these; nothing where both parts are on one stage."""
        first, last = ends_of(config)
        if first == last or self == NOT_TIED:
            return times
        before_ns, after_ns = times.before_ns.copy(), times.after_ns.copy()
        before_ns[..., first] += self.ahead_ns
        after_ns[..., last] += self.behind_ns
        return replace(times, before_ns=before_ns, after_ns=after_ns)


NOT_TIED = TiedMessages()


def ends_of(config: PlanConfig) -> tuple[int, int]:
    """The stages of the first and the last part."""
    places = config.pp * config.virtual_stages
    first, last = (at_position(config.schedule, config.pp, place)[0] for place in (0, places - 1))
    return first, last


def tied_values(graph: Graph, end: int) -> Iterator[tuple[str, list[Op]]]:
    """What the first end (0) of a short model or the last (1) has once per step, and the other's ops that read it."""
    part_of = places_of(graph)
    here, there = end * (LAYERS - 1), (1 - end) * (LAYERS - 1)
    for name, value in graph.values.items():
        decider = deciding_op(graph, name)
        if value.rate is Rate.MICRO_BATCH or decider is None or part_of[decider.name] != here:
            continue
        readers = [op for op in graph.consumers[name] if part_of[op.name] == there]
        if readers:
            yield name, readers
