"""Nodes joined away: the tables say what they stand for, and bound what messages over pairs do not."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from strategy.ilp.certificate.bounds import least
from strategy.ilp.certificate.check import check
from strategy.ilp.certificate.digest import problem_digest
from strategy.ilp.certificate.proof import Certificate
from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem, Usage
from strategy.ilp.solve import SolveStatus, brute_force, solve
from strategy.ilp.solve import branch_and_bound as branching
from strategy.ilp.solve import relaxation as place
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.core import Core
from strategy.ilp.solve.dual_ascent import start_ascent
from strategy.ilp.solve.evaluate import cost_of
from strategy.ilp.solve.joins import find_joins, without
from strategy.ilp.solve.message_bound import state_messages
from strategy.ilp.solve.packed_arrays import lifetime_rank
from strategy.ilp.solve.relaxation import relax
from tests.strategy.ilp.certificate.proofs import view


def shared_copies(rng: random.Random, *, values: int, layouts: int = 3, held: bool = False) -> Problem:
    """A chain of values, each read by two others in one of several layouts; a copy is paid once for both.

    With `held`, those who read and write hold memory, which is bounded.
    """

    def op(i: int) -> Node:
        costs = tuple(rng.randrange(60) for _ in range(layouts))
        return Node(f"op{i}", costs, (Usage(i, i + 2, tuple(rng.randrange(1, 9) for _ in costs)),) if held else ())

    nodes = [op(i) for i in range(values + 2)]
    edges = []
    for i, layout in itertools.product(range(values), range(layouts)):
        prices = [0 if home == layout else rng.randrange(5, 60) for home in range(layouts)]
        copy = len(nodes)
        nodes.append(Node(f"{i}>{layout}", (0, 0)))
        edges.append(Edge(i, copy, tuple(cell for price in prices for cell in (0, price))))
        need = tuple(cell for wanted in range(layouts) for cell in (FORBIDDEN if wanted == layout else 0, 0))
        edges.extend(Edge(reader, copy, need) for reader in (i + 1, i + 2))
    return Problem("copies", tuple(nodes), tuple(edges), limit=3 * 6 if held else None)


def _bound(core: Core, problem: Problem) -> int:
    relaxed = relax(core, lifetime_rank(problem))
    ascent = start_ascent(relaxed.inner.flat, core.constant, np.zeros(core.room.size))
    ascent.climb(300)
    stated = state_messages(relaxed, ascent)
    assert least(view(core), stated.proof) == stated.lower_bound
    return stated.lower_bound


def test_a_join_is_what_its_nodes_cost_at_best() -> None:
    rng = random.Random(1)
    cells = 0
    for _ in range(10):
        core = build_core(shared_copies(rng, values=3))
        core.normalise(core.pairs())
        for join in find_joins(core):
            for choice in itertools.product(*(range(core.costs[node].size) for node in join.scope)):
                total = 0
                for node in join.nodes:
                    costs = core.costs[node] + sum(
                        core.tables[other][node][pick] for other, pick in zip(join.scope, choice, strict=True)
                    )
                    total += int(costs.min())
                lines = tuple(int(of[pick]) for of, pick in zip(join.classes, choice, strict=True))
                assert min(total, FORBIDDEN) == join.table[lines]
                cells += 1
    assert cells >= 500


def test_joins_bound_what_pairs_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies that two readers share: joins never bound less, and are tight where pairs are not."""
    rng = random.Random(2)
    tight = {True: 0, False: 0}
    for _ in range(30):
        problem = shared_copies(rng, values=6, layouts=4)
        oracle = solve(problem).cost
        bounds = {}
        for joined in tight:
            with monkeypatch.context() as patch:
                if not joined:
                    patch.setattr(place, "find_joins", lambda core, width: ())
                bounds[joined] = _bound(build_core(problem), problem)
            assert oracle is not None
            assert bounds[joined] <= oracle
            tight[joined] += bounds[joined] == oracle
        assert bounds[True] >= bounds[False]
    assert tight[True] >= max(26, tight[False] + 4), tight


@pytest.mark.parametrize("held", [False, True])
def test_solved_by_joins_alone_equals_brute_force(monkeypatch: pytest.MonkeyPatch, held: bool) -> None:
    monkeypatch.setattr(branching, "ELIMINATION_CELLS", 0)
    monkeypatch.setattr(branching, "PART_CELLS", 0)
    rng = random.Random(3)
    joined = 0
    for _ in range(20):
        problem = shared_copies(rng, values=2, layouts=3, held=held)
        oracle = brute_force(problem)
        answer = solve(problem)
        assert answer.cost == (None if oracle is None else oracle[0])
        if answer.status is SolveStatus.OPTIMAL and answer.proof is not None:
            claim = Certificate(problem_digest(problem), answer.choice, answer.cost, answer.lower_bound, answer.proof)
            assert check(problem, claim).gap == 0.0
            joined += getattr(answer.proof.end, "joined", np.zeros(0)).size > 0
    assert joined >= 3


def test_what_is_joined_away_follows_from_the_rest() -> None:
    rng = random.Random(4)
    for _ in range(20):
        problem = shared_copies(rng, values=5)
        core = build_core(problem)
        relaxed = relax(core, lifetime_rank(problem))
        assert relaxed.joined.size == sum(len(join.nodes) for join in relaxed.joins) > 0
        picks = np.array([rng.randrange(core.costs[node].size) for node in relaxed.inner.nodes], np.int64)
        full = relaxed.completed(picks)
        assert (full[relaxed.kept] == picks).all()
        assert cost_of(relaxed.whole.flat, full) == cost_of(relaxed.inner.flat, picks)


def test_equal_joins_share_their_table_and_large_ones_are_left_alone() -> None:
    copy = [Node("copy", (0, 1)) for _ in range(2)]
    ops = [Node(f"op{i}", tuple(range(3))) for i in range(6)]
    edges = [Edge(3 * k + i, 6 + k, (0, 5, 7, 2, 1 + i, 0)) for k, i in itertools.product(range(2), range(3))]
    core = build_core(Problem("alike", (*ops, *copy), tuple(edges)))
    one, other = find_joins(core)
    assert one.table is other.table
    assert [join.scope for join in (one, other)] == [(0, 1, 2), (3, 4, 5)]
    rest = without(core, (one, other))
    assert sorted(rest.costs) == list(range(6))
    assert not any(rest.tables.values())
    rng = random.Random(0)
    wide = [Node(f"op{i}", tuple(range(40))) for i in range(3)]
    copies = [Node(f"copy{k}", (0, 1)) for k in range(9)]
    tables = [Edge(i, 3 + k, tuple(rng.randrange(99) for _ in range(80))) for i in range(3) for k in range(9)]
    core = build_core(Problem("wide", (*wide, *copies), tuple(tables)))
    assert find_joins(core) == ()
    assert [join.table.size for join in find_joins(core, 1)] == [40**3]
