"""Typical step: of the steps of a timeline, the one of median length, and the phases that its acts are of."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from strategy.graph.graph import Phase
from strategy.plan.plan import Plan
from strategy.program.program import ActKind
from strategy.program.timeline import Timeline, step_ends_ns, step_of


def phases_of(plan: Plan) -> dict[str, Phase]:
    """Actor name -> forward, backward or update: the colours of computation."""
    return {op.name: op.phase for op in plan.graph.ops}


def typical_step(timeline: Timeline) -> Timeline:
    """The acts of one step, the one of median length, from its first computation on, which is time 0."""
    lengths = [after - before for before, after in pairwise(step_ends_ns(timeline))]
    step = 1 + sorted(range(len(lengths)), key=lengths.__getitem__)[len(lengths) // 2]
    records = [r for r in timeline.records if step_of(timeline, r) == step]
    begun = min(r.start_ns for r in records if timeline.actors[r.actor].kind is ActKind.COMPUTE)
    moved = tuple(
        replace(r, ready_ns=max(r.ready_ns, begun) - begun, start_ns=r.start_ns - begun, end_ns=r.end_ns - begun)
        for r in records
        if r.start_ns >= begun
    )
    return replace(timeline, records=moved)
