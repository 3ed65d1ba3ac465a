"""Joins: the tables say what they stand for, and bound what messages over pairs do not."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from strategy.ilp.certificate.bounds import least
from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem
from strategy.ilp.solve import relaxation as relaxation_module
from strategy.ilp.solve import solve
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.core import Core
from strategy.ilp.solve.dual_ascent import start_dual_ascent
from strategy.ilp.solve.joins import find_joins, without_joined
from strategy.ilp.solve.message_bound import certify_messages
from strategy.ilp.solve.packed_arrays import lifetime_rank
from strategy.ilp.solve.relaxation import relax
from tests.strategy.ilp.certificate.proofs import view
from tests.strategy.ilp.solve.oracle import shared_copies


def _bound(core: Core, problem: Problem) -> int:
    relaxation = relax(core, lifetime_rank(problem))
    ascent = start_dual_ascent(relaxation.relaxed.arrays, core.constant, np.zeros(core.room.size))
    ascent.ascend(300)
    found = certify_messages(relaxation, ascent)
    assert least(view(core), found.proof) == found.lower_bound
    return found.lower_bound


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


@pytest.mark.slow
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
                    patch.setattr(relaxation_module, "find_joins", lambda core, join_width: ())
                bounds[joined] = _bound(build_core(problem), problem)
            assert oracle is not None
            assert bounds[joined] <= oracle
            tight[joined] += bounds[joined] == oracle
        assert bounds[True] >= bounds[False]
    assert tight[True] >= max(26, tight[False] + 4), tight


def test_equal_joins_share_their_table_and_large_ones_are_left_alone() -> None:
    copy = [Node("copy", (0, 1)) for _ in range(2)]
    ops = [Node(f"op{i}", tuple(range(3))) for i in range(6)]
    edges = [Edge(3 * k + i, 6 + k, (0, 5, 7, 2, 1 + i, 0)) for k, i in itertools.product(range(2), range(3))]
    core = build_core(Problem("alike", (*ops, *copy), tuple(edges)))
    one, other = find_joins(core)
    assert one.table is other.table
    assert [join.scope for join in (one, other)] == [(0, 1, 2), (3, 4, 5)]
    rest = without_joined(core, (one, other))
    assert sorted(rest.costs) == list(range(6))
    assert not any(rest.tables.values())
    rng = random.Random(0)
    wide = [Node(f"op{i}", tuple(range(40))) for i in range(3)]
    copies = [Node(f"copy{k}", (0, 1)) for k in range(9)]
    tables = [Edge(i, 3 + k, tuple(rng.randrange(99) for _ in range(80))) for i in range(3) for k in range(9)]
    core = build_core(Problem("wide", (*wide, *copies), tuple(tables)))
    assert find_joins(core) == ()
    assert [join.table.size for join in find_joins(core, 1)] == [40**3]
