"""A plan whose memory, as it is laid out, exceeds the limit is solved again for less; none comes out as fitting."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError
from strategy.layout.config import Offload, Recompute
from strategy.lowering.memory import memory_nbytes
from strategy.passes.training import Training
from strategy.program.program import Program
from strategy.sbp.placement import Space
from strategy.search.candidate import infeasibility, simulated_plan
from strategy.search.candidate.candidate_solve import Solved, solve_candidate
from strategy.search.candidate.fitted_plan import fitted_plan
from strategy.search.search import search
from strategy.space.candidate_space import free_rules
from strategy.space.request import Pins, Request
from tests.support.small_plans import MODEL, config_of, exchange_left_alone, no_simulation, request, simulated

TRAINING = Training(global_batch=4)
PINS = Pins(dp=1, tp=2, pp=1, num_micro_batches=1, recompute=Recompute.NONE)


def solved(asked: Request) -> Solved:
    """The fastest layout of two devices, on one of which a batch is whole."""
    config = config_of(TRAINING, tp=2)
    found = solve_candidate(asked, config, rules=free_rules(config))
    assert found is not None
    return found


def waste(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    """Let every layout have gaps of so many bytes."""

    def with_gaps(program: Program, space: Space = Space.DEVICE) -> tuple[int, ...]:
        return tuple(found + nbytes for found in memory_nbytes(program, space))

    for module in (simulated_plan, infeasibility):
        monkeypatch.setattr(module, "memory_nbytes", with_gaps)


@pytest.mark.long
def test_what_exceeds_the_limit_is_solved_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = solved(request(2, TRAINING))
    asked = request(2, TRAINING, limit=max(first.peaks))
    placed = max(fitted_plan(asked, first, no_simulation).claims.peak_memory_bytes)
    waste(monkeypatch, asked.memory_limit_bytes - placed + 64)
    with pytest.raises(InfeasibleError, match="does not fit"):
        simulated_plan.simulated_plan(asked, first, no_simulation)
    plan = fitted_plan(asked, first, no_simulation)
    assert max(plan.claims.peak_memory_bytes) <= asked.memory_limit_bytes
    assert plan.layout != first.layout
    assert plan.claims.objective_s >= first.objective_ns / 1e9
    assert plan.claims.lower_bound_s == first.bound_ns / 1e9


@pytest.mark.long
def test_what_never_fits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request(2, TRAINING, limit=10**6, model=replace(MODEL, layers=1))
    first = solved(asked)
    waste(monkeypatch, 10**6)
    with pytest.raises(InfeasibleError):
        fitted_plan(asked, first, no_simulation)
    with pytest.raises(InfeasibleError) as caught:
        search(replace(asked, pins=replace(PINS, offload=Offload.NONE)), simulate=simulated, budget=Budget.of(600))
    assert caught.value.smallest_limit is not None
    assert caught.value.smallest_limit > 10**6


@exchange_left_alone()
def test_a_layout_whose_lifetimes_exceed_the_limit_may_fit() -> None:
    """Blocks share memory better than lifetimes say: the last resort before nothing is said to fit."""
    training = replace(TRAINING, num_micro_batches=2)
    asked = replace(request(1, training), pins=replace(PINS, tp=1, num_micro_batches=2))
    nearest, complete = infeasibility.tightest(asked, [config_of(training)])
    assert complete
    assert nearest is not None
    assert nearest.nbytes < max(nearest.solved.peaks)
    plan = search(replace(asked, memory_limit_bytes=nearest.nbytes), simulate=simulated, budget=Budget.of(600)).plan
    assert max(plan.claims.peak_memory_bytes) <= nearest.nbytes
