"""Neighbouring layouts: those that differ from a plan's in the signatures of one op, or of two that share a value.

The objective estimates the simulated step. Of layouts that it cannot tell apart, or hardly, some are faster: an op that
takes next to nothing decides whether a collective is waited for, as two do that read one partial sum. Where ops are
few, neighbours are simulated, and those of the first that is faster, until none is.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, OutOfTimeError
from strategy.graph.signature import Signature
from strategy.layout.convert import lay_out
from strategy.layout.objective import Priced
from strategy.plan.plan import Plan
from strategy.search.candidate.candidate_solve import solved_as
from strategy.search.candidate.simulated_plan import Simulate, simulated_plan
from strategy.space.candidate_space import free_rules, space_of
from strategy.space.classes import classify
from strategy.space.request import Request
from strategy.space.space import SearchSpace

MOST_OPS = 64
"""Of more ops neighbours are not looked at."""
MOST_LAYOUTS = 300
"""So many are priced, at most."""
FASTER = 1e-3
"""By this part a neighbour is faster, or it is none to go on from."""


def fastest_neighbour(request: Request, plan: Plan, simulate: Simulate, budget: Budget) -> Plan:
    """The plan, or a faster one of the same configuration whose gap is no larger, or as small as is asked for.

    Args:
        request: what was searched for.
        plan: the answer; its claims have the bound of all: of layouts that layers which repeat have in common.
        simulate: gives the simulated time of a program.
        budget: what it may take; what was found by then stays.
    """
    if len(plan.graph.ops) > MOST_OPS or request.deduction is not None:
        return plan
    space = space_of(request, plan.config, free_rules(plan.config))
    bound_ns = math.floor(plan.claims.lower_bound_s * 1e9)
    most_ns = max(round(plan.claims.objective_s * 1e9), math.floor(bound_ns / (1 - request.gap)))
    best, looked_at, is_better = plan, 0, True
    while is_better:
        is_better = False
        for change in _changes(space):
            if all(best.layout.signatures[name] == signature for name, signature in change.items()):
                continue
            if budget.is_over() or looked_at == MOST_LAYOUTS:
                return best
            looked_at += 1
            layout = lay_out(space.graph, space.stages, {**best.layout.signatures, **change}, space.converter)
            priced = Priced(space.graph, layout, space.pipeline, request.cost)
            if priced.objective_ns > most_ns:
                continue
            try:
                solved = solved_as(plan.config, priced, bound_ns)
                found = simulated_plan(request, solved, simulate, bound_ns=bound_ns, priced=priced, budget=budget)
            except (InfeasibleError, OutOfTimeError):
                continue
            if found.claims.step_time_s < (1 - FASTER) * best.claims.step_time_s:
                best, is_better = found.claiming(certificate=plan.certificate), True
    return best


def _changes(space: SearchSpace) -> Iterator[dict[str, Signature]]:
    """Signatures of one op each, then of two of those that read or write a value; what is decided as one changes so."""
    graph, classes = space.graph, classify(space)
    for one in classes.of_ops:
        yield from ({op.name: signature for op in one.ops} for signature in one.options)
    for name in graph.values:
        writer = [graph.producer[name]] if name in graph.producer else []
        near = {classes.of_op[op.name].index: classes.of_op[op.name] for op in (*writer, *graph.consumers[name])}
        for one, other in itertools.combinations(near.values(), 2):
            for first, second in itertools.product(one.options, other.options):
                yield {op.name: first for op in one.ops} | {op.name: second for op in other.ops}
