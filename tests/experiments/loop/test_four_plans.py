"""A Llama and a Mixtral on four real ranks: plans of many techniques at once learn what one device learns."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from strategy.layout.config import Offload, Recompute
from strategy.models import find_model
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.sbp.tensor import DType
from strategy.space.deduce import Deduction
from tests.mpi.trainings import losses_of, trained_by
from tests.support.small_plans import config_of, plan_by_rules, request

STEPS, RANKS = 6, 4
TRAINING = Training(global_batch=8, num_micro_batches=2, lr=2e-2, dtype=DType.FLOAT64)
BY_SAMPLES = ("samples split", "tensor")


@dataclass(frozen=True, slots=True)
class Way:
    """Degrees and techniques, and a rule per mesh axis."""

    config: Mapping[str, Any] = field(default_factory=dict)
    rules: tuple[str, ...] = ("data", "tensor")


def shared_out(stage: int, **more: Any) -> dict[str, Any]:
    """ZeRO, of tensors as small as these models have."""
    return {"zero_stage": stage, "zero_min_size": 64, **more}


WAYS: Mapping[str, Way] = {
    "alone": Way(),
    "1F1B of tensor-parallel stages, recomputed": Way({"tp": 2, "pp": 2, "recompute": Recompute.FULL}),
    "ZeRO-3 and Megatron, attention recomputed, the head in tiles": Way(
        shared_out(3, dp=2, tp=2, recompute=Recompute.SELECTIVE, tiles=2, tiled=("head.*",)), BY_SAMPLES
    ),
    "a ring, ZeRO-2 by owners": Way(shared_out(2, dp=2, cp=2, zero_owner=True), ("samples split", "context", "tensor")),
    "an expert per rank of the data axis, ZeRO-2": Way(
        shared_out(2, dp=4, ep=4), ("samples split", "experts split", "tensor")
    ),
    "zero bubble, ZeRO-1, on the host what can be": Way(
        shared_out(1, dp=2, pp=2, schedule="zb-h1", offload=Offload.ALL), BY_SAMPLES
    ),
}
OF_BOTH = (
    "1F1B of tensor-parallel stages, recomputed",
    "ZeRO-3 and Megatron, attention recomputed, the head in tiles",
    "zero bubble, ZeRO-1, on the host what can be",
)
CASES = {
    "llama-tiny": (*OF_BOTH, "a ring, ZeRO-2 by owners"),
    "mixtral-tiny": (*OF_BOTH, "an expert per rank of the data axis, ZeRO-2"),
}


@cache
def plan_of(model: str, name: str) -> Plan:
    """The plan of a way; what its rules leave open is deduced op by op."""
    way = WAYS[name]
    config = config_of(TRAINING, **way.config)
    asked = request(math.prod(config.mesh) * config.pp, TRAINING, model=find_model(model))
    asked = replace(asked, deduction=Deduction.LEAST_COST)
    return plan_by_rules(asked, config, way.rules)


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.parametrize("model", CASES)
def test_four_ranks_learn_what_one_learns(model: str, tmp_path: Path) -> None:
    plans = [plan_of(model, name) for name in CASES[model]]
    assert {plan.ranks for plan in plans} == {RANKS}
    (alone,) = trained_by(tmp_path, [plan_of(model, "alone")], STEPS)
    wanted = losses_of(alone)
    assert len(wanted) == STEPS
    assert wanted[-1] < 0.9 * wanted[0]
    for name, plan, found in zip(CASES[model], plans, trained_by(tmp_path, plans, STEPS), strict=True):
        assert losses_of(found) == pytest.approx(wanted, rel=1e-9), name
        assert found[-1]["register_bytes"] == list(plan.claims.peak_memory_bytes), name
        assert plan.config == config_of(TRAINING, **WAYS[name].config)


@pytest.mark.parametrize("model", CASES)
def test_the_plans_differ_in_all_that_a_plan_decides(model: str) -> None:
    configs = [config_of(TRAINING, **WAYS[name].config) for name in CASES[model]]
    for differs in ("dp", "tp", "pp", "schedule", "recompute", "offload", "zero_stage", "tiles"):
        assert len({getattr(config, differs) for config in configs}) > 1, differs
