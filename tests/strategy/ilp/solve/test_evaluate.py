"""A choice by the packed arrays costs and holds what it does by the problem."""

from __future__ import annotations

import random

import numpy as np
import pytest

from strategy.ilp.problem import FORBIDDEN, evaluate
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.evaluate import cost_of, fits, load_of
from strategy.ilp.solve.packed_arrays import LEAST_FORBIDDEN, lifetime_rank
from strategy.ilp.solve.relaxation import pack_core
from tests.strategy.ilp.solve.oracle import feasible_cases


def test_a_choice_costs_and_holds_what_it_does_by_the_core() -> None:
    rng = random.Random(12)
    forbidden = excess = 0
    for problem, _, _ in feasible_cases(12, 60):
        core = build_core(problem)
        packed = pack_core(core, lifetime_rank(problem))
        chosen = {node: rng.randrange(core.costs[node].size) for node in packed.nodes}
        if not chosen:
            continue
        picks = np.array([chosen[node] for node in packed.nodes], np.int64)
        full = core.lift(chosen)
        value = evaluate(problem, [full[node] for node in range(len(problem.nodes))])
        if value.cost >= FORBIDDEN:
            forbidden += 1
            assert cost_of(packed.arrays, picks) >= LEAST_FORBIDDEN
        else:
            assert cost_of(packed.arrays, picks) + core.constant == pytest.approx(value.cost, rel=1e-12)
        assert load_of(packed.arrays, picks).tolist() == core.load(chosen).tolist()
        assert fits(packed.arrays, picks) == bool((core.load(chosen) <= core.room).all())
        excess += not fits(packed.arrays, picks)
    assert min(forbidden, excess) >= 3
