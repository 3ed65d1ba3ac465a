"""Markov chain Monte Carlo: one node at a time proposes a random choice, accepted by Metropolis and Hastings' rule.

Source: FlexFlow (Jia, Zaharia and Aiken 2019, arXiv:1807.05358), section 6.2: a proposal changes one operation to a
random configuration and is accepted with probability min(1, exp(beta * (cost before - cost after))); the search ends
when its time is spent, or when half of it passed without a better strategy. Memory beyond the limit is charged, as in
FlexFlow's simulator (`simulator.cc`: 1 ms for each MB), here `CHARGE` times the start's cost for an excess as large as
the limit; only what fits is an answer. The start is the greedy choice, brought within the limit by `repair`.

Given enough samples the chain visits every choice that a path of legal single changes reaches. FlexFlow reports
(section 8.4) that its search found the optimum of small models on four devices, which exhaustive search knew; on our
own small problems the tests repeat that. Its other figures are of its own simulator and clusters.
"""

from __future__ import annotations

import itertools
import math
import random
import time

from strategy.base.budget import Budget
from strategy.ilp.baselines.greedy import in_order
from strategy.ilp.baselines.memory import Memory, repair
from strategy.ilp.baselines.tables import Found, build_tables
from strategy.ilp.problem import Problem

TEMPERATURE = 1e-4
"""A rise of this share of the start's cost is accepted with probability 1/e."""
CHARGE = 10.0
SEED = 0


def mcmc(problem: Problem, budget: Budget, *, temperature: float = TEMPERATURE, samples: int | None = None) -> Found:
    """The best legal choice that the chain visits, within `samples` steps if they are given."""
    start, patience_s = time.monotonic(), budget.left_s() / 2
    tables = build_tables(problem)
    found = repair(problem, tables, in_order(tables), budget)
    if found is None:
        return Found(None, note="no legal start")
    picks, memory, rng = list(found), Memory(problem, found), random.Random(SEED)
    movable = [node for node, costs in enumerate(tables.costs) if costs.size > 1]
    best, saved, saving = tuple(picks), 0.0, 0.0
    cost = sum(node.costs[pick] for node, pick in zip(problem.nodes, picks, strict=True)) or 1
    beta, charge = 1 / (temperature * cost), CHARGE * cost / max(problem.limit or 1, 1)
    last_better = start
    for _ in itertools.count() if samples is None else range(samples):
        now = time.monotonic()
        if not movable or budget.is_over() or now - last_better >= patience_s:
            break
        node = rng.choice(movable)
        old, new = picks[node], rng.randrange(tables.costs[node].size)
        prices = tables.prices(node, picks)
        before, rise = memory.excess, float(prices[new] - prices[old])
        memory.move(node, old, new)
        exponent = -beta * (rise + charge * (memory.excess - before))
        if exponent < 0 and rng.random() >= math.exp(exponent):
            memory.move(node, new, old)
            continue
        picks[node], saving = new, saving - rise
        if saving > saved and memory.excess == 0:
            best, saved, last_better = tuple(picks), saving, now
    return Found(best)
