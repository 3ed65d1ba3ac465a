"""Ascent and primal heuristic in step: what they find does not depend on threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import OutOfTimeError
from strategy.ilp.check import check_solution
from strategy.ilp.problem import Problem
from strategy.ilp.solve import primal_dual as primal_dual_module
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.dual_ascent import start_dual_ascent
from strategy.ilp.solve.packed_arrays import lifetime_rank
from strategy.ilp.solve.primal_dual import Patience, PrimalDual
from strategy.ilp.solve.progress import Progress
from strategy.ilp.solve.reductions import reduce_core
from strategy.ilp.solve.relaxation import pack_core, relax
from tests.strategy.ilp.problems import ladder
from tests.strategy.ilp.solve.oracle import DILEMMA


def run(problem: Problem) -> tuple[int | None, tuple[int, ...] | None, int, float]:
    """(cost, choice, entries read, bound) of one ascent at the root."""
    core = build_core(problem)
    reduce_core(core)
    progress = Progress(problem, 0.0, UNLIMITED)
    relaxation = relax(core, lifetime_rank(problem))
    ascent = start_dual_ascent(relaxation.relaxed.arrays, core.constant, np.zeros(core.room.size))
    with ThreadPoolExecutor(1) as pool:
        primal_dual = PrimalDual(progress, pool)
        primal_dual.run(
            relaxation, ascent, Patience(40, 0.05), gap_at=lambda bound: max(1.0, 0.05 * bound), tell=lambda: None
        )
    return progress.cost, progress.choice, progress.entries, ascent.bound + core.constant


def test_a_thread_of_its_own_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = ladder(rungs=5, seed=1, limit=2 * 10**9)
    monkeypatch.setattr(primal_dual_module, "THREADED_CELLS", 10**9)
    alone = run(problem)
    monkeypatch.setattr(primal_dual_module, "THREADED_CELLS", 0)
    assert run(problem) == alone
    cost, choice, entries, bound = alone
    assert cost is not None
    assert choice is not None
    assert check_solution(problem, choice, cost) == []
    assert bound <= cost
    assert entries > 0


def test_what_holds_too_much_is_offered_repaired() -> None:
    progress = Progress(DILEMMA, 0.0, UNLIMITED)
    packed = pack_core(build_core(DILEMMA), lifetime_rank(DILEMMA))
    with ThreadPoolExecutor(1) as pool:
        PrimalDual(progress, pool).repair(packed, {0: 0}, 10.0)
    assert (progress.cost, progress.choice) == (10, (1,))


def test_the_end_of_the_work_ends_the_ascent() -> None:
    problem = ladder(rungs=5, seed=1)
    core = build_core(problem)
    progress = Progress(problem, 0.0, Budget(max_entries=1))
    relaxation = relax(core, lifetime_rank(problem))
    ascent = start_dual_ascent(relaxation.relaxed.arrays, core.constant, np.zeros(core.room.size))
    with ThreadPoolExecutor(1) as pool, pytest.raises(OutOfTimeError):
        PrimalDual(progress, pool).run(relaxation, ascent, Patience(40, 0.05), gap_at=lambda _: 1.0, tell=lambda: None)
    assert ascent.bound > 0
