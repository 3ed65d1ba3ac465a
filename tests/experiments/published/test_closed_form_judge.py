"""The judge says of a plan what `sbplan predict` says of its job, and says what it has no words for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from experiments.published.closed_form_judge import job_of, judged, shape_of
from strategy.base.budget import Budget
from strategy.base.errors import InputError
from strategy.closed_form.calibration import shipped
from strategy.closed_form.estimate import estimate
from strategy.cost.cost import CostModel
from strategy.hardware.presets import find_cluster
from strategy.layout.config import Offload, Recompute
from strategy.layout.schedule import Schedule
from strategy.models import Model, find_model
from strategy.models.gpt import GptConfig
from strategy.models.mixtral import MixtralConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.sbp.sbp import B, Split
from strategy.search.search import search
from strategy.space.deduce import Deduction
from strategy.space.request import Pins, Request
from tests.support.small_plans import exchange_left_alone, no_simulation

GPT = GptConfig(layers=4, width=256, heads=4, sequence=128, vocabulary=512)
EXPERTS = MixtralConfig(4, 256, 4, 2, 512, 8, 2, 128, 512)
PINS = Pins(dp=4, tp=1, pp=2, micro_batch=2, schedule=Schedule.ONE_F_ONE_B, recompute=Recompute.NONE, zero_stage=0)


@cache
@exchange_left_alone()
def planned(model: Model = GPT, **changes: Any) -> Plan:
    """A plan of deduced layouts: what is judged needs no search."""
    cost = CostModel(find_cluster("dgx-a100:1"), {})
    training, pins = Training(16, precision=Precision.BF16), replace(PINS, **changes)
    limit = cost.cluster.device.memory_bytes
    request = Request("small", model, training, cost, limit, pins, Deduction.LEAST_COST)
    return search(request, simulate=no_simulation, budget=Budget.of(60), simulated=1).plan


def test_a_plan_is_the_job_that_it_describes() -> None:
    job = job_of(planned(), "megatron")
    assert (job.dp, job.tp, job.pp, job.micro_batch, job.virtual, job.ep) == (4, 1, 2, 2, 1, 1)
    assert (job.gpus, job.gpus_per_node, job.seq, job.global_batch) == (8, 8, 128, 16)
    assert (job.precision, job.recompute, job.device.name, job.fabric) == ("half", "none", "A100-80", "infiniband")
    assert (job.shape.layers, job.shape.hidden, job.shape.ffn, job.shape.vocab) == (4, 256, 1024, 512)
    found = judged(planned(), "megatron", shipped())
    assert found.seconds == estimate([job], shipped()).seconds[0]
    assert not found.bounds


def test_zero_is_what_is_pinned_or_what_the_layouts_share() -> None:
    assert job_of(planned(zero_stage=3), "torchtitan").zero == 3
    assert job_of(planned(zero_stage=1), "torchtitan").zero == 1


def test_a_tensor_axis_that_splits_samples_is_read_as_data() -> None:
    """Layouts by hand: along the tensor axis products read whole activations, samples, or one half this and that."""
    plan = planned(dp=2, tp=2)

    def laid_out(by_sample: Callable[[str], bool]) -> Plan:
        signatures = {
            name: replace(one, inputs=((one.inputs[0][0], Split(0) if by_sample(name) else B), *one.inputs[1:]))
            for name, one in plan.layout.signatures.items()
            if one.inputs
        }
        return replace(plan, layout=replace(plan.layout, signatures={**plan.layout.signatures, **signatures}))

    whole = laid_out(lambda name: False)
    job = job_of(whole, "megatron")
    assert (job.tp, job.dp, job.micro_batch, job.sequence_parallel) == (2, 2, 2, True)
    assert judged(whole, "megatron", shipped()).read_as == ""
    as_data = laid_out(lambda name: True)
    job = job_of(as_data, "megatron")
    assert (job.tp, job.dp, job.micro_batch, job.sequence_parallel) == (1, 4, 1, False)
    assert judged(as_data, "megatron", shipped()).read_as == "dp 4, tp 1, cp 1, pp 2"
    said = judged(laid_out(lambda name: ".mlp." in name), "megatron", shipped())
    assert said.seconds is None
    assert "no words for these layouts" in said.why_not


def test_a_schedule_without_words_is_bounded_by_one_that_has() -> None:
    split = planned(schedule=Schedule.ZB_H1)
    found = judged(split, "megatron", shipped())
    assert found.bounds
    assert job_of(split, "megatron").virtual == 1
    laps = planned(schedule=Schedule.INTERLEAVED, virtual_stages=2)
    assert job_of(laps, "megatron").virtual == 2
    assert not judged(laps, "megatron", shipped()).bounds


def test_experts_are_dealt_out_among_the_ranks_of_their_layout() -> None:
    plan = planned(EXPERTS)
    job = job_of(plan, "megatron-core")
    assert (job.shape.experts, job.shape.top_k, job.shape.moe_layers, job.shape.dense_layers) == (8, 2, 4, 0)
    assert job.ep in (1, 2, 4)
    assert job.shape.kv_heads == 2


@pytest.mark.parametrize("name", ["gpt3-175b", "llama3-8b", "mixtral-8x7b"])
def test_shapes_have_the_models_parameters(name: str) -> None:
    """But for norms, biases, positions and routers."""
    model, shape = find_model(name), shape_of(find_model(name))
    attention = shape.hidden * (shape.heads * 2 + shape.kv_heads * 2) * shape.head_qk
    per_token = shape.hidden * (2 + shape.gated)
    feeds = shape.dense_layers * per_token * shape.ffn + shape.moe_layers * shape.experts * per_token * shape.expert_ffn
    whole = shape.layers * attention + feeds + (1 if shape.tied else 2) * shape.vocab * shape.hidden
    assert whole == pytest.approx(model.parameters, rel=1e-3)


def test_what_has_no_words_is_said() -> None:
    plan = planned()
    with pytest.raises(InputError, match=r"no words for this model.*got 'MlpConfig'.*expected GPT, Llama"):
        shape_of(find_model("mlp-tiny"))
    offloaded = replace(plan, config=replace(plan.config, offload=Offload.ALL))
    assert "no offloading" in judged(offloaded, "megatron", shipped()).why_not
    unknown = replace(plan.cluster, device=replace(plan.cluster.device, name="X900"))
    found = judged(replace(plan, cluster=unknown), "megatron", shipped())
    assert found.seconds is None
    assert "no data sheet (got 'X900')" in found.why_not
    tcp = replace(plan, cluster=replace(plan.cluster, fabric="tcp"))
    assert "fabric 'tcp' is not known" in judged(tcp, "megatron", shipped()).why_not
