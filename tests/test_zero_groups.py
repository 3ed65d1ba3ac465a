"""ZeRO in groups beside every other axis: what is trained is what one device trains, and `verify` accepts the plan."""

from __future__ import annotations

from typing import Any

import pytest

from executor.train import program_of
from strategy.models import Model
from strategy.models.decoder import DecoderConfig
from strategy.models.gpt import GptConfig
from strategy.passes.training import Training
from strategy.plan.verify import verify
from strategy.sbp.tensor import DType
from tests.campaigns.transparency import check
from tests.support.long_parameters import long_but
from tests.support.small_plans import config_of, deduced_plan, request

GPT = GptConfig(layers=2, width=8, heads=2, sequence=4, vocabulary=16)
EXPERTS = DecoderConfig(
    layers=2, width=32, heads=2, key_heads=1, head_width=32, hidden=64, sequence=32, vocabulary=24, experts=4,
    choices=2, expert_hidden=32, sparse=(1,),
)  # fmt: skip
TRAINING = Training(global_batch=8, num_micro_batches=2, dtype=DType.FLOAT64)


@pytest.mark.parametrize(
    ("model", "more", "axes"),
    long_but(
        [
            (GPT, {"tp": 2}, ("replica", "data", "tensor")),
            (GPT, {"cp": 2}, ("replica", "data", "context", "tensor")),
            (GPT, {"pp": 2}, ("replica", "data", "tensor")),
            (EXPERTS, {"ep": 2}, ("replica", "data", "expert", "tensor")),
        ],
        2,
    ),
    ids=["tensor", "context", "pipeline", "experts"],
)
def test_groups_beside_another_axis_train_as_one_device(
    model: Model, more: dict[str, Any], axes: tuple[str, ...]
) -> None:
    config = config_of(TRAINING, dp=4, zero_stage=3, zero_group=2, zero_min_size=8, **more)
    asked = request(4 if "ep" in more else 8, TRAINING, model=model, per_node=2)
    plan = deduced_plan(asked, config, config.axes)
    assert plan.layout.stages.placements[0].axes == axes
    program = program_of(plan)
    assert verify(plan, program) == []
    assert list(check(plan, program)) == []
