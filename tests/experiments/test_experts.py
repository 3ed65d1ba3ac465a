"""Experts that drop nothing, on real ranks: what the search finds with a few pins learns what one rank learns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from strategy.base.budget import Budget
from strategy.models.mixtral import MixtralConfig
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.program.program import ActKind
from strategy.sbp.sbp import B, NdSbp, Split
from strategy.sbp.tensor import DType
from strategy.search.search import search
from strategy.space.deduce import Deduction
from strategy.space.request import Pins
from tests.mpi.trainings import losses_of, trained_by
from tests.support.long_parameters import long_but
from tests.support.small_plans import exchange_left_alone, request, simulated

MODEL = MixtralConfig(2, 16, 2, 1, 12, 4, 2, 8, 256)
TRAINING = Training(global_batch=8, lr=1e-2, dtype=DType.FLOAT64)
STEPS = 4


def experts(weights: NdSbp, tokens: NdSbp) -> Mapping[str, NdSbp]:
    """Where the experts are, and where the tokens are before and after them."""
    return {
        **dict.fromkeys([f"layers.*.moe.{name}" for name in ("gate", "up", "down")], weights),
        **dict.fromkeys(["layers.*.residual?", "layers.*.moe.combine"], tokens),
    }


LAYOUTS: Mapping[str, tuple[Pins, Deduction | None]] = {
    "alone": (Pins(dp=1, tp=1), None),
    "experts on the data axis": (Pins(dp=4, tp=1, layouts=experts((Split(0), B), (Split(0), B))), None),
    "data by experts": (
        Pins(dp=2, tp=2, layouts=experts((B, Split(0)), (Split(0), Split(0)))),
        Deduction.MATCH_ALL,
    ),
    "an expert per rank": (Pins(dp=4, tp=1, ep=4, zero_stage=0), None),
    "two shares of experts": (Pins(dp=4, tp=1, ep=2, zero_stage=3, zero_min_size=16), None),
    "half of the experts each": (Pins(dp=2, tp=2, ep=2, zero_stage=1, zero_min_size=16), None),
}
"""name -> what is pinned, and how the rest is deduced where it is not solved for."""


@cache
@exchange_left_alone()
def plan_of(layout: str) -> Plan:
    """The plan that the pins lead to."""
    pins, deduction = LAYOUTS[layout]
    pins = replace(pins, pp=1, num_micro_batches=1)
    asked = request((pins.dp or 1) * (pins.tp or 1), TRAINING, model=MODEL)
    return search(replace(asked, pins=pins, deduction=deduction), simulate=simulated, budget=Budget.of(55)).plan


@pytest.mark.mpi
@pytest.mark.parametrize(
    "layouts",
    long_but([(["two shares of experts"],), ([*LAYOUTS][1:],)]),
    ids=["one", "all"],
)
def test_experts_learn_what_one_rank_learns(tmp_path: Path, layouts: list[str]) -> None:
    (alone,) = trained_by(tmp_path, [plan_of("alone")], STEPS)
    wanted = losses_of(alone)
    assert wanted[-1] < wanted[0]
    for layout, found in zip(layouts, trained_by(tmp_path, [plan_of(name) for name in layouts], STEPS), strict=True):
        assert losses_of(found) == pytest.approx(wanted, rel=1e-10), layout


@pytest.mark.parametrize("layout", long_but(list(LAYOUTS)[1:], 1))
def test_the_search_finds_the_all_to_alls(layout: str) -> None:
    plan = plan_of(layout)
    ragged = {name for name, value in plan.graph.values.items() if value.spec.ragged is not None}
    moved = [c for c in plan.layout.conversions if c.copy.value in ragged]
    assert {step.kind for c in moved for step in c.steps} == {ActKind.ALL_TO_ALL}
    there = {f"layers.{layer}.moe.{name}" for layer in range(2) for name in ("dispatch", "down_matmul")}
    assert there <= {c.copy.value for c in moved}
