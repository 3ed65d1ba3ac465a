"""OneFlow's deduction: nodes in order, each takes what costs least given the neighbours before it.

Source: OneFlow, `operator.cpp`, `GreedilyFindMinCopyCostNdSbp`. `strategy.space.deduce` is the same rule over
a graph, where an op sees the layouts of its inputs and pays for conversions alone; here a node also pays its own cost,
for the problem does not say which part of it is what. It knows no memory and nothing of what follows: where it ends in
forbidden pairs or beyond the limit, `repair` is our help.

It is exact where each node's cost depends on earlier neighbours alone and later nodes can always follow for nothing.
What OneFlow publishes of it are deduced signatures, which the tests of `strategy.space.deduce` hold.
"""

from __future__ import annotations

from strategy.base.budget import Budget
from strategy.ilp.baselines.memory import repair
from strategy.ilp.baselines.tables import NOT_CHOSEN, CostTables, Found, build_tables
from strategy.ilp.problem import Problem


def greedy(problem: Problem, budget: Budget) -> Found:
    """The deduced choice."""
    tables = build_tables(problem)
    return Found(repair(problem, tables, in_order(tables), budget))


def in_order(tables: CostTables) -> list[int]:
    """Each node's cheapest choice given the earlier ones; of equals, and where all are forbidden, the first."""
    choice = [NOT_CHOSEN] * len(tables.costs)
    for node in range(len(choice)):
        choice[node] = int(tables.prices(node, choice).argmin())
    return choice
