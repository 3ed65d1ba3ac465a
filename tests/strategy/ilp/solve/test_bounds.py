"""Bounds, fixing, descent and branching, each against brute force; every proof is replayed by the checker."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from strategy.base.errors import CertificateError
from strategy.ilp.certificate.check import Verdict, check
from strategy.ilp.certificate.digest import problem_digest
from strategy.ilp.certificate.proof import Certificate, Proof
from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem, Usage, evaluate
from strategy.ilp.solve import Solution, SolveStatus, brute_force, solve
from strategy.ilp.solve import branch_and_bound as branching
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.certified_bound import Stated, state_constant, state_elimination
from strategy.ilp.solve.core import Core, NoChoiceError
from strategy.ilp.solve.cutting_planes import raise_prices
from strategy.ilp.solve.descent import descend, repair
from strategy.ilp.solve.dual_ascent import start_ascent
from strategy.ilp.solve.elimination import plan_elimination
from strategy.ilp.solve.evaluate import cost_of, fits
from strategy.ilp.solve.forest import improve_forest, region_of
from strategy.ilp.solve.memory_rows import drop_oversized
from strategy.ilp.solve.message_bound import state_messages
from strategy.ilp.solve.packed_arrays import LEGAL, lifetime_rank
from strategy.ilp.solve.reductions import drop_forbidden
from strategy.ilp.solve.relaxation import place_of, relax
from tests.strategy.ilp.problems import ladder, random_problem


def replayed(problem: Problem, answer: Solution) -> Verdict:
    """What the checker says about an answer's proof."""
    assert answer.proof is not None
    bound = None if answer.status is SolveStatus.INFEASIBLE else answer.lower_bound
    claim = Certificate(problem_digest(problem), answer.choice, answer.cost, bound, answer.proof)
    return check(problem, claim)


def _cases(seed: int, count: int) -> list[tuple[Problem, Core, tuple[int, tuple[int, ...]]]]:
    """Random problems with a legal choice, arc-consistent but otherwise as they are, and their optima."""
    rng = random.Random(seed)
    found = []
    while len(found) < count:
        problem = random_problem(rng)
        oracle = brute_force(problem)
        if oracle is not None:
            core = build_core(problem)
            drop_forbidden(core)
            drop_oversized(core)
            drop_forbidden(core)
            found.append((problem, core, oracle))
    return found


def _holds(stated: Stated, core: Core, oracle: tuple[int, tuple[int, ...]]) -> None:
    """The bound is one, and an optimal choice survives fixing against a higher cost."""
    assert stated.lower_bound <= oracle[0]
    kept = stated.kept(oracle[0] + 1)
    picks = {node: oracle[1][node] for node in core.costs}
    for lift in core.trail:
        picks[lift.node] = int(np.flatnonzero(lift.picks == picks[lift.node])[0])
    assert all(picks[node] in few for node, few in kept.items())


def test_messages_and_prices_bound_and_fix_soundly() -> None:
    tight = fixed = 0
    for problem, core, oracle in _cases(43, 150):
        place = relax(core, lifetime_rank(problem))
        ascent = start_ascent(place.inner.flat, core.constant, np.zeros(core.room.size))
        ascent.climb(60)
        stated = state_messages(place, ascent)
        _holds(stated, core, oracle)
        assert stated.lower_bound >= state_constant(core).lower_bound
        assert abs(stated.lower_bound - ascent.bound - core.constant) <= 1 + 1e-6 * abs(ascent.bound)
        tight += stated.lower_bound == oracle[0]
        fixed += bool(stated.kept(oracle[0] + 1))
    assert tight >= 50
    assert fixed >= 60


def test_elimination_at_the_best_prices_bounds_and_fixes_soundly() -> None:
    raised = fixed = 0
    for _, core, oracle in _cases(44, 150):
        buckets = plan_elimination(core, max_cells=1 << 20)
        assert buckets is not None
        rest = state_elimination(core, buckets, np.zeros(core.room.size))
        prices = raise_prices(core, buckets, np.zeros(core.room.size), offer=lambda _, bound, o=oracle: o[0])
        stated = state_elimination(core, buckets, prices)
        _holds(stated, core, oracle)
        _holds(rest, core, oracle)
        assert stated.lower_bound >= rest.lower_bound
        raised += stated.lower_bound > rest.lower_bound
        fixed += bool(stated.kept(oracle[0] + 1))
    assert raised >= 2
    assert fixed >= 60


def test_repair_descent_and_forests_keep_choices_legal() -> None:
    rng = random.Random(45)
    repaired = improved = 0
    for case, (problem, core, oracle) in enumerate(_cases(45, 150)):
        place = place_of(core, lifetime_rank(problem))
        flat, nodes = place.flat, place.nodes
        if not nodes:
            continue
        picks = np.array([rng.randrange(core.costs[node].size) for node in nodes], np.int64)
        if repair(flat, flat.cost, picks, 1.0, 60, case) < 0:
            continue
        repaired += 1
        before = cost_of(flat, picks)
        descend(flat, picks, 30, case)
        assert fits(flat, picks)
        assert cost_of(flat, picks) <= before
        full = core.lift(dict(zip(nodes, picks.tolist(), strict=True)))
        value = evaluate(problem, [full[node] for node in range(len(problem.nodes))])
        assert oracle[0] <= value.cost < FORBIDDEN
        assert problem.limit is None or value.peak <= problem.limit
        assert value.cost == cost_of(flat, picks) + core.constant or value.cost > 2**50
        moved = picks.copy()
        improve_forest(flat, flat.cost, moved, region_of(flat, len(nodes), case))
        assert cost_of(flat, moved) <= min(cost_of(flat, picks), LEGAL)
        improved += cost_of(flat, moved) < cost_of(flat, picks)
    assert repaired >= 100
    assert improved >= 5


@pytest.mark.parametrize("cells", [0, 1 << 24])
def test_every_answer_and_its_proof_agree_with_brute_force(monkeypatch: pytest.MonkeyPatch, cells: int) -> None:
    """With elimination, and by messages and branching alone."""
    monkeypatch.setattr(branching, "ELIMINATION_CELLS", cells)
    monkeypatch.setattr(branching, "PART_CELLS", cells)
    rng = random.Random(46)
    seen: Counter[str] = Counter()
    for case in range(250):
        problem = random_problem(rng)
        oracle = brute_force(problem)
        answer = solve(problem)
        assert answer.cost == (None if oracle is None else oracle[0]), case
        assert answer.status is (SolveStatus.INFEASIBLE if oracle is None else SolveStatus.OPTIMAL), case
        assert replayed(problem, answer).gap == (None if oracle is None else 0.0), case
        seen[f"{answer.status} {answer.method}"] += 1
    assert seen["optimal elimination" if cells else "optimal messages"] >= 3, seen


def test_prices_without_end_prove_that_nothing_is_legal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three things, each in one of two places that hold one: no case is needed to see that they do not fit."""
    monkeypatch.setattr(branching, "ELIMINATION_CELLS", 0)
    usages = (Usage(0, 1, (2, 0)), Usage(2, 3, (0, 2)))
    nodes = tuple(Node(f"n{i}", (i, 7), usages) for i in range(3))
    edges = tuple(Edge(i, j, (1, 2, 2, 0)) for i, j in ((0, 1), (0, 2), (1, 2)))
    problem = Problem("crowded", nodes, edges, limit=2)
    answer = solve(problem)
    assert answer.status is SolveStatus.INFEASIBLE
    verdict = replayed(problem, answer)
    assert (verdict.lower_bound, verdict.proved, verdict.leaves) == (None, None, 1)
    claim = Certificate(problem_digest(problem), None, None, None, Proof((), state_constant(build_core(problem)).proof))
    with pytest.raises(CertificateError, match="does not follow"):
        check(problem, claim)


def test_a_ladder_is_branched_and_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = ladder(rungs=6, seed=1)
    free = solve(problem)
    assert free.peak is not None
    tight = replace(problem, limit=free.peak * 8 // 10)
    narrow = solve(tight)
    monkeypatch.setattr(branching, "ELIMINATION_CELLS", 0)
    monkeypatch.setattr(branching, "PART_CELLS", 0)
    wide = solve(tight)
    assert narrow.status is wide.status is SolveStatus.OPTIMAL
    assert narrow.cost == wide.cost
    assert replayed(tight, narrow).proved == replayed(tight, wide).proved == narrow.cost


def test_a_work_limit_stops_at_the_same_place() -> None:
    """A bound and a choice that are not yet the best, twenty times the same, with a proof that holds."""
    problem = ladder(rungs=20, seed=0)
    tight = replace(problem, limit=80 * 10**9)
    answers = [solve(tight, work_limit=4) for _ in range(20)]
    assert len({(answer.choice, answer.lower_bound, answer.status, answer.method) for answer in answers}) == 1
    answer = answers[0]
    assert answer.status in (SolveStatus.LIMIT, SolveStatus.OPTIMAL)
    assert replayed(tight, answer).lower_bound == answer.lower_bound


def test_progress_is_told_and_moves_towards_the_gap() -> None:
    told: list[tuple[float, int | None, int | None]] = []
    problem = ladder(rungs=6, seed=1)
    answer = solve(problem, progress=lambda *said: told.append(said))
    bounds = [bound for _, bound, _ in told if bound is not None]
    costs = [cost for _, _, cost in told if cost is not None]
    assert bounds == sorted(bounds)
    assert costs == sorted(costs, reverse=True)
    assert (bounds[-1], costs[-1]) == (answer.lower_bound, answer.cost)


def test_an_interruption_keeps_the_best() -> None:
    problem = ladder(rungs=6, seed=2)
    start = [0 if len(node.costs) != 3 else 2 for node in problem.nodes]

    def interrupt(seconds: float, bound: int | None, cost: int | None) -> None:
        if bound is not None and bound > 0:
            raise KeyboardInterrupt

    answer = solve(problem, starts=[start], progress=interrupt)
    assert answer.status is SolveStatus.INTERRUPTED
    assert answer.cost is not None
    assert answer.cost <= evaluate(problem, start).cost
    assert replayed(problem, answer).lower_bound == answer.lower_bound


def test_a_core_without_legal_choice_is_an_empty_proof() -> None:
    problem = replace(ladder(rungs=3, seed=0), limit=1)
    answer = solve(problem)
    assert answer.status is SolveStatus.INFEASIBLE
    assert replayed(problem, answer).lower_bound is None
    core = build_core(problem)
    with pytest.raises(NoChoiceError):
        core.fix(state_constant(core).proof, 0, {0: np.zeros(0, np.int64)})
