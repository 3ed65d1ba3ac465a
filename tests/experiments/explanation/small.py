"""Plans of a small model, made at once, to be explained and reported."""

from __future__ import annotations

from typing import Any

from strategy.layout.config import Recompute
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from tests.support.small_plans import MODEL, config_of, deduced_plan, request, simulated

RULES = ("data", "tensor")
TRAINING = Training(global_batch=8, num_micro_batches=2)
CONFIGS: dict[str, dict[str, Any]] = {
    "data": {"dp": 2},
    "tensor": {"tp": 2},
    "stages": {"pp": 2},
    "zero": {"dp": 2, "zero_stage": 3, "zero_min_size": 8},
    "recompute": {"dp": 2, "pp": 2, "recompute": Recompute.FULL},
}


def small_plan(name: str) -> Plan:
    degrees = CONFIGS[name]
    devices = degrees.get("dp", 1) * degrees.get("tp", 1) * degrees.get("pp", 1)
    asked = request(devices, TRAINING, model=MODEL)
    return deduced_plan(asked, config_of(TRAINING, **degrees), RULES, simulated)
