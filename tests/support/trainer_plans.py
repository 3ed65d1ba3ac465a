"""Small plans that a trainer can run: layouts along the tensor axis are pinned to columns, rows and words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from experiments.planning.prices import simulated_step
from strategy.base.budget import Budget
from strategy.cost.cost import CostModel
from strategy.hardware.presets import PRESETS
from strategy.layout.config import Offload, Recompute
from strategy.models import Model
from strategy.models.decoder import DecoderConfig
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.sbp.sbp import NdSbp, parse_nd
from strategy.search.search import search
from strategy.space.request import Pins, Request
from tests.support.small_plans import exchange_left_alone

GPT = GptConfig(4, 128, 4, 128, 256)
LLAMA = DecoderConfig(4, 128, 4, 2, 32, 256, 128, 256)
EXPERTS = DecoderConfig(4, 128, 4, 4, 32, 256, 128, 256, sparse=(1,), experts=4, choices=2, expert_hidden=64)


def megatron_layouts(model: Model, *, by_position: bool) -> dict[str, NdSbp]:
    """Pins of what Megatron does along the tensor axis; norms split positions there or see all of them."""
    cut, words, stream = (parse_nd(nd) for nd in (["S(0)", "S(2)"], ["B", "S(0)"], ["S(0)", "B"]))
    stream = parse_nd(["S(0)", "S(1)"]) if by_position else stream
    if isinstance(model, GptConfig):
        columns = ("*.qkv.matmul", "*.qkv.bias_add", "*.attn.merge", "*.fc1.matmul", "*.fc1.bias_add", "*.gelu",
                   "logits")  # fmt: skip
        residuals = ("*.residual?", "*.proj.bias_add", "*.fc2.bias_add", "embed_position")
        variables = {"token:bfloat16": words}
    else:
        columns = ("*.attn.[qkv].matmul", "*.attn.merge", "*.mlp.gate.matmul", "*.mlp.up.matmul", "*.mlp.hidden",
                   "head.matmul")  # fmt: skip
        residuals, variables = ("*.residual?",), {"token.weight:bfloat16": words}
    return dict.fromkeys(columns, cut) | dict.fromkeys(residuals, stream) | variables


@exchange_left_alone()
def pinned_plan(model: Model, gpus: int, **pins: Any) -> Plan:
    """The plan that a search finds under pins, on so many GPUs of one node; what saves memory is not looked at."""
    pins = {"micro_batch": 2, "recompute": Recompute.NONE, "zero_stage": 0, "offload": Offload.NONE} | pins
    cluster = replace(PRESETS["dgx-h100"], name="dgx-h100:1", devices_per_node=gpus)
    training = Training(16, precision=Precision.BF16)
    request = Request("small", model, training, CostModel(cluster, {}), cluster.largest_memory_bytes, Pins(**pins))
    return search(request, simulate=simulated_step, budget=Budget.of(20)).plan
