"""Random proofs about small problems: every kind of step and end, with bounds of random prices and messages."""

from __future__ import annotations

import random

import numpy as np

from strategy.ilp.certificate.bounds import by_choice
from strategy.ilp.certificate.digest import problem_digest
from strategy.ilp.certificate.proof import (
    Bound,
    Branch,
    Certificate,
    EliminationBound,
    Empty,
    IntArray,
    MessageBound,
    Prices,
    Proof,
)
from strategy.ilp.certificate.working import Working
from strategy.ilp.problem import Problem
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.core import Core, NoChoiceError
from strategy.ilp.solve.memory_rows import drop_oversized, drop_slack_rows
from strategy.ilp.solve.reductions import (
    drop_dominated,
    drop_forbidden,
    eliminate_leaves,
    eliminate_links,
    merge_functional,
    normalise,
    reduce_core,
)

REDUCTIONS = (
    drop_dominated, drop_forbidden, drop_oversized, drop_slack_rows, eliminate_leaves, eliminate_links,
    merge_functional, normalise, reduce_core,
)  # fmt: skip
# Branches within branches.
DEPTH = 3


def random_certificate(
    problem: Problem, rng: random.Random, *, optimum: tuple[int, tuple[int, ...]] | None
) -> Certificate:
    """A certificate whose claim is far too low; some steps fix against the optimum, some against a lower cost."""
    below = 10**6 if optimum is None else optimum[0] + rng.choice((0, 0, 1, 1000))
    proof = random_proof(problem, rng, below)
    cost, choice = (None, None) if optimum is None else optimum
    return Certificate(problem_digest(problem), choice, cost, -(10**17), proof)


def random_proof(problem: Problem, rng: random.Random, below: int) -> Proof:
    """A valid proof; what it proves may be little."""
    try:
        core = build_core(problem)
    except NoChoiceError:
        return Proof((), Empty())
    return _extended(core, rng, below, 0)


def view(core: Core) -> Working:
    """A core, as the checker sees it."""
    return Working(dict(core.costs), core.tables, core.spans, core.room, core.constant)


def sizes(core: Core) -> int:
    """How many messages the core's tables take."""
    return sum(sum(core.tables[one][other].shape) for one, other in core.pairs())


def _extended(core: Core, rng: random.Random, below: int, depth: int) -> Proof:
    try:
        for _ in range(rng.randrange(4)):
            _random_step(core, rng, below)
        nodes = [node for node, cost in core.costs.items() if cost.size > 1]
        if depth < DEPTH and nodes and rng.random() < 0.6:
            return Proof(tuple(core.steps), _random_branch(core, rng, rng.choice(nodes), below, depth))
    except NoChoiceError:
        return Proof(tuple(core.steps), Empty())
    return Proof(tuple(core.steps), random_bound(core, rng))


def _random_step(core: Core, rng: random.Random, below: int) -> None:
    kind = rng.random()
    if kind < 0.6:
        core.changed = set(core.costs)
        rng.choice(REDUCTIONS)(core)
    else:
        bound = random_bound(core, rng)
        kept = {node: np.flatnonzero(~gone) for node, gone in by_choice(view(core), bound, below).items()}
        core.fix_choices(bound, below, kept)


def _random_branch(core: Core, rng: random.Random, node: int, below: int, depth: int) -> Branch:
    size = core.costs[node].size
    part_of = [rng.randrange(2) for _ in range(size)]
    choices = [np.array([c for c in range(size) if part_of[c] == part], np.int64) for part in range(2)]
    choices = [few for few in choices if few.size]
    parts = tuple(_extended(core.branch(node, few), rng, below, depth + 1) for few in choices)
    return Branch(node, tuple(choices), parts)


def random_bound(core: Core, rng: random.Random) -> Bound:
    """Random prices, from none to steep, with random messages or the exact minimum."""
    bits = rng.choice((0, 3, 8))
    shift = bits + rng.choice((0, 5, 20))
    most = rng.choice((1, 1 << shift, 100 << shift))
    units = np.array([rng.randrange(most) for _ in range(len(core.room))], np.int64)
    prices = Prices(units, shift, bits)
    if rng.random() < 0.5:
        joined = _random_joined(core, rng)
        return MessageBound(prices, _messages(core, joined, rng, 1 << bits), np.array(joined, np.int64))
    return EliminationBound(prices, np.array(rng.sample(sorted(core.costs), len(core.costs)), np.int64))


def _random_joined(core: Core, rng: random.Random) -> list[int]:
    """Nodes without memory and without a table between them, ascending; often none."""
    joined: list[int] = []
    for node in rng.sample(sorted(core.costs), len(core.costs)):
        if rng.random() < 0.5 and not core.spans[node] and core.tables[node].keys().isdisjoint(joined):
            joined.append(node)
    return sorted(joined) if rng.random() < 0.7 else []


def _messages(core: Core, joined: list[int], rng: random.Random, unit: int) -> IntArray:
    most = rng.choice((0, 1, 10**4)) * unit
    scopes = {tuple(sorted(core.tables[node])) for node in joined}
    takers = [*(pair for pair in core.pairs() if set(pair).isdisjoint(joined)), *scopes]
    count = sum(core.costs[node].size for scope in takers for node in scope)
    return np.array([rng.randint(-most, most) for _ in range(count)], np.int64)
