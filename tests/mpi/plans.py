"""Plans of one small GPT for real ranks: the layouts that training must not be able to tell apart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from strategy.layout.config import Offload
from strategy.models.gpt import GptConfig
from strategy.passes.training import Training
from strategy.plan.plan import Plan, write_plan
from strategy.sbp.sbp import B, NdSbp, Split
from strategy.sbp.tensor import DType
from strategy.space.request import Pins
from tests.support.small_plans import config_of, plan_by_rules, request

MODEL = GptConfig(layers=2, width=32, heads=4, sequence=16, vocabulary=256)
DEGREES = ("dp", "tp", "cp", "pp")
_SHARED = {"dp": 2, "zero_stage": 2, "zero_owner": True, "zero_min_size": 64, "offload": Offload.OPTIMIZER}
_GROUPS = {"dp": 4, "zero_stage": 3, "zero_group": 2, "zero_min_size": 64}
LAYOUTS: Mapping[str, tuple[Mapping[str, Any], tuple[str, ...]]] = {
    "alone": ({}, ("data", "tensor")),
    "stages": ({"tp": 2, "pp": 2}, ("data", "tensor")),
    "grid": ({"dp": 2, "tp": 2}, ("data", "tensor")),
    "mixed": ({"dp": 2}, ("mixed", "tensor")),
    "tensor": ({"tp": 2}, ("data", "tensor")),
    "ring": ({"cp": 3}, ("data", "context", "tensor")),
    "shared": (_SHARED, ("samples split", "tensor")),
    "groups": (_GROUPS, ("data", "samples split", "tensor")),
}
"""name -> degrees above one, techniques, and one rule per mesh axis."""

_SAMPLES: NdSbp = (Split(0), B)
_MEGATRON: Mapping[str, NdSbp] = dict.fromkeys(
    ("embed", "embed_position", "*.residual?", "*norm?.norm", "norm.norm", "logits", "loss:dlogits", "*norm:grad"),
    _SAMPLES,
)
"""What flows between the layers, whole along the tensor axis: the grid's problem is then solved in half a second."""


@cache
def small_plan(layout: str, dtype: DType = DType.FLOAT32) -> Plan:
    """The best plan under the rules of a layout."""
    more, rules = LAYOUTS[layout]
    training = Training(global_batch=8, num_micro_batches=2, dtype=dtype)
    config = config_of(training, **more)
    asked = request(math.prod(config.mesh) * config.pp, training, model=MODEL)
    if layout == "grid":
        asked = replace(asked, pins=Pins(layouts=_MEGATRON))
    return plan_by_rules(asked, config, rules)


def write_small_plan(folder: Path, layout: str, dtype: DType = DType.FLOAT32) -> Path:
    """The plan's file in a folder, by its absolute path."""
    path = folder.resolve() / f"{layout}-{dtype}.json"
    write_plan(small_plan(layout, dtype), path)
    return path
