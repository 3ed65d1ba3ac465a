"""Plans of one small GPT for real ranks: the layouts that training must not be able to tell apart."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from strategy.models.gpt import GptConfig
from strategy.passes.training import Training
from strategy.plan import Plan, write_plan
from strategy.sbp import B, NdSbp, Split
from strategy.search.candidates import Pins
from strategy.tensor import DType
from tests.small_plans import config_of, plan_by_rules, request

MODEL = GptConfig(layers=2, width=32, heads=4, sequence=16, vocabulary=256)
LAYOUTS: Mapping[str, tuple[Mapping[str, int], tuple[str, ...]]] = {
    "alone": ({}, ("data", "tensor")),
    "stages": ({"tp": 2, "pp": 2}, ("data", "tensor")),
    "grid": ({"dp": 2, "tp": 2}, ("data", "tensor")),
    "mixed": ({"dp": 2}, ("mixed", "tensor")),
    "tensor": ({"tp": 2}, ("data", "tensor")),
    "ring": ({"cp": 3}, ("data", "context", "tensor")),
}
"""name -> degrees above one and one rule per mesh axis."""

_SAMPLES: NdSbp = (Split(0), B)
_MEGATRON: Mapping[str, NdSbp] = dict.fromkeys(
    ("embed", "embed_position", "*.residual?", "*norm?.norm", "norm.norm", "logits", "loss:dlogits", "*norm:grad"),
    _SAMPLES,
)
"""What flows between the layers, whole along the tensor axis: the grid's problem is then solved in half a second."""


@cache
def small_plan(layout: str, dtype: DType = DType.FLOAT32) -> Plan:
    """The best plan under the rules of a layout."""
    degrees, rules = LAYOUTS[layout]
    training = Training(global_batch=8, num_micro_batches=2, dtype=dtype)
    asked = request(math.prod(degrees.values()), training, model=MODEL)
    if layout == "grid":
        asked = replace(asked, pins=Pins(layouts=_MEGATRON))
    return plan_by_rules(asked, config_of(training, **degrees), rules)


def write_small_plan(folder: Path, layout: str, dtype: DType = DType.FLOAT32) -> Path:
    """The plan's file in a folder, by its absolute path."""
    path = folder.resolve() / f"{layout}-{dtype}.json"
    write_plan(small_plan(layout, dtype), path)
    return path
