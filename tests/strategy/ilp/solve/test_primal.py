"""The primal heuristic: legal choices, ever cheaper, by work and not by time."""

from __future__ import annotations

import numpy as np
import pytest

from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.evaluate import fits
from strategy.ilp.solve.packed_arrays import lifetime_rank
from strategy.ilp.solve.primal import PrimalHeuristic
from strategy.ilp.solve.relaxation import pack_core
from tests.strategy.ilp.problems import ladder
from tests.strategy.ilp.solve.oracle import DILEMMA, feasible_cases


def test_what_is_considered_is_repaired_and_lowered() -> None:
    packed = pack_core(build_core(DILEMMA), lifetime_rank(DILEMMA))
    primal = PrimalHeuristic(packed.arrays)
    assert primal.consider(np.array([0]), np.zeros(1), 10.0) > 0
    assert primal.picks is not None
    assert (primal.picks.tolist(), primal.value) == ([1], 10.0)


def test_improving_finds_the_optimum_and_never_a_worse_choice() -> None:
    found = 0
    for problem, core, oracle in feasible_cases(48, 25):
        packed = pack_core(core, lifetime_rank(problem))
        if not packed.nodes:
            continue
        primal, prices = PrimalHeuristic(packed.arrays), np.zeros(core.room.size)
        primal.consider(np.zeros(len(packed.nodes), np.int64), prices, 1.0)
        values = [primal.value]
        for _ in range(3):
            assert primal.improve(prices, 2_000) <= 0
            values.append(primal.value)
        assert values == sorted(values, reverse=True)
        if primal.picks is not None:
            assert fits(packed.arrays, primal.picks)
            assert primal.value + core.constant >= oracle[0] - 1e-6 * max(abs(oracle[0]), 1)
            found += primal.value + core.constant == pytest.approx(oracle[0])
    assert found >= 15


def test_the_same_work_gives_the_same_choice() -> None:
    problem = ladder(rungs=6, seed=3)
    packed = pack_core(build_core(problem), lifetime_rank(problem))
    picks = []
    for _ in range(2):
        primal = PrimalHeuristic(packed.arrays)
        primal.consider(np.zeros(len(packed.nodes), np.int64), np.zeros(0), 1.0)
        primal.improve(np.zeros(0), 300_000)
        assert primal.picks is not None
        picks.append(primal.picks.tolist())
    assert picks[0] == picks[1]


def test_without_a_choice_there_is_nothing_to_improve() -> None:
    packed = pack_core(build_core(DILEMMA), lifetime_rank(DILEMMA))
    assert PrimalHeuristic(packed.arrays).improve(np.zeros(1), 100) == 0
