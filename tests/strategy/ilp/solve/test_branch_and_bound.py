"""Branch and bound, with elimination and without it, against brute force; every proof is replayed by the checker."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from strategy.base.budget import UNLIMITED
from strategy.base.errors import CertificateError
from strategy.base.status import Status
from strategy.ilp.certificate.check import check
from strategy.ilp.certificate.digest import problem_digest
from strategy.ilp.certificate.proof import Certificate, Proof
from strategy.ilp.problem import Edge, Node, Problem, Usage
from strategy.ilp.solve import branch_and_bound, brute_force, solve
from strategy.ilp.solve.branch_and_bound import BranchAndBound
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.certified_bound import certify_constant
from strategy.ilp.solve.packed_arrays import lifetime_rank
from strategy.ilp.solve.progress import Progress
from tests.strategy.ilp.problems import ladder, random_problem
from tests.strategy.ilp.solve.oracle import replayed, shared_copies
from tests.support.long_parameters import long_but


@pytest.mark.parametrize("cases", long_but([90, 250], 0))
@pytest.mark.parametrize("cells", [0, 1 << 24])
def test_every_answer_and_its_proof_agree_with_brute_force(
    monkeypatch: pytest.MonkeyPatch, cells: int, cases: int
) -> None:
    """With elimination, and by messages and branching alone."""
    monkeypatch.setattr(branch_and_bound, "ROOT_ELIMINATION_CELLS", cells)
    monkeypatch.setattr(branch_and_bound, "ELIMINATION_CELLS", cells)
    rng = random.Random(46)
    seen: Counter[str] = Counter()
    for case in range(cases):
        problem = random_problem(rng)
        oracle = brute_force(problem)
        answer = solve(problem)
        assert answer.cost == (None if oracle is None else oracle[0]), case
        assert answer.status is (Status.INFEASIBLE if oracle is None else Status.OPTIMAL), case
        assert replayed(problem, answer).gap == (None if oracle is None else 0.0), case
        seen[f"{answer.status} {answer.method}"] += 1
    assert seen["optimal elimination" if cells else "optimal messages"] >= cases // 80, seen


def test_prices_without_end_prove_that_nothing_is_legal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three things, each in one of two places that hold one: no case is needed to see that they do not fit."""
    monkeypatch.setattr(branch_and_bound, "ROOT_ELIMINATION_CELLS", 0)
    usages = (Usage(0, 1, (2, 0)), Usage(2, 3, (0, 2)))
    nodes = tuple(Node(f"n{i}", (i, 7), usages) for i in range(3))
    edges = tuple(Edge(i, j, (1, 2, 2, 0)) for i, j in ((0, 1), (0, 2), (1, 2)))
    problem = Problem("crowded", nodes, edges, limit=2)
    answer = solve(problem)
    assert answer.status is Status.INFEASIBLE
    verdict = replayed(problem, answer)
    assert (verdict.lower_bound, verdict.proved, verdict.leaves) == (None, None, 1)
    claim = Certificate(
        problem_digest(problem), None, None, None, Proof((), certify_constant(build_core(problem)).proof)
    )
    with pytest.raises(CertificateError, match="does not follow"):
        check(problem, claim)


def test_a_ladder_is_branched_and_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = ladder(rungs=6, seed=1)
    free = solve(problem)
    assert free.peak is not None
    tight = replace(problem, limit=free.peak * 8 // 10)
    narrow = solve(tight)
    monkeypatch.setattr(branch_and_bound, "ROOT_ELIMINATION_CELLS", 0)
    monkeypatch.setattr(branch_and_bound, "ELIMINATION_CELLS", 0)
    wide = solve(tight)
    assert narrow.status is wide.status is Status.OPTIMAL
    assert narrow.cost == wide.cost
    assert replayed(tight, narrow).proved == replayed(tight, wide).proved == narrow.cost


@pytest.mark.parametrize("held", [False, True])
def test_solved_by_joins_alone_equals_brute_force(monkeypatch: pytest.MonkeyPatch, held: bool) -> None:
    monkeypatch.setattr(branch_and_bound, "ROOT_ELIMINATION_CELLS", 0)
    monkeypatch.setattr(branch_and_bound, "ELIMINATION_CELLS", 0)
    rng = random.Random(3)
    joined = 0
    for _ in range(20):
        problem = shared_copies(rng, values=2, layouts=3, held=held)
        oracle = brute_force(problem)
        answer = solve(problem)
        assert answer.cost == (None if oracle is None else oracle[0])
        if answer.status is Status.OPTIMAL and answer.proof is not None:
            claim = Certificate(problem_digest(problem), answer.choice, answer.cost, answer.lower_bound, answer.proof)
            assert check(problem, claim).gap == 0.0
            joined += getattr(answer.proof.end, "joined", np.zeros(0)).size > 0
    assert joined >= 3


def test_the_tree_is_what_its_proof_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """An odd cycle of unequal pairs cannot be coloured: messages see nothing of it, and both branches are empty."""
    monkeypatch.setattr(branch_and_bound, "ROOT_ELIMINATION_CELLS", 0)
    monkeypatch.setattr(branch_and_bound, "ELIMINATION_CELLS", 0)
    unequal = (5, 0, 0, 5)
    edges = tuple(Edge(i, j, unequal) for i, j in itertools.combinations(range(5), 2))
    problem = Problem("clique", tuple(Node(f"n{i}", (0, 0)) for i in range(5)), edges)
    progress = Progress(problem, 0.0, UNLIMITED)
    tree = BranchAndBound(build_core(problem), lifetime_rank(problem), progress)
    tree.run()
    assert tree.root.children
    assert progress.cost == tree.root.proved_bound() == 20
    assert replayed(problem, solve(problem)).leaves >= 2
