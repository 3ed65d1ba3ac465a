"""A mixture of experts that drops nothing computes the same however it is laid out, recomputed and rounded."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest

from executor.profile import op_samples, time_op
from executor.runtime.kernels.numpy import NumpyKernels
from strategy.base.errors import InputError, RankFault
from strategy.layout.config import Recompute
from strategy.models import find_model
from strategy.models.mixtral import MixtralConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.plan.verify import verify
from strategy.sbp import tensor
from strategy.sbp.tensor import DType
from strategy.space.deduce import Deduction
from tests.campaigns import transparency
from tests.support.long_parameters import long_but
from tests.support.small_plans import config_of, plan_by_rules, random_plan, request, train

HALF_ERROR = 2e-3
"""Relative, of losses under 16-bit activations."""


def tiny() -> MixtralConfig:
    """Two layers of four experts, of which a token chooses two."""
    model = find_model("mixtral-tiny")
    assert isinstance(model, MixtralConfig)
    return model


def laid_out_anyhow(training: Training, degrees: tuple[int, int, int], recompute: Recompute, seed: int) -> Plan:
    dp, tp, pp = degrees
    config = replace(config_of(training, dp=dp, tp=tp, pp=pp), recompute=recompute)
    return random_plan(request(dp * tp * pp, training, model=tiny()), config, random.Random(seed))


@pytest.mark.parametrize(
    ("degrees", "recompute"),
    long_but([((2, 2, 1), Recompute.NONE), ((3, 1, 1), Recompute.FULL), ((1, 1, 2), Recompute.FULL)], 1),
)
def test_any_layout_computes_what_one_device_computes(degrees: tuple[int, int, int], recompute: Recompute) -> None:
    training = Training(global_batch=8, num_micro_batches=2, dtype=DType.FLOAT64)
    plan = laid_out_anyhow(training, degrees, recompute, sum(degrees))
    assert any(value.spec.ragged is not None for value in plan.graph.values.values())
    assert list(transparency.check(plan)) == []


@pytest.mark.long
@pytest.mark.parametrize("precision", long_but([Precision.BF16, Precision.FP16], 0))
def test_rows_of_halves(precision: Precision) -> None:
    plan = laid_out_anyhow(Training(global_batch=4, precision=precision), (2, 1, 1), Recompute.NONE, 1)
    assert {value.spec.dtype.nbytes for value in plan.graph.values.values() if value.spec.ragged is not None} == {2}
    trained = train(plan, transparency.text_of(plan), steps=3)
    _, losses = transparency.on_one_device(plan, steps=3)
    assert [report.loss for report in trained.reports] == pytest.approx(losses, rel=HALF_ERROR)


def test_ops_on_rows_are_profiled_like_others() -> None:
    ragged = [c for c in op_samples(tiny(), 8, 2) if any(s.ragged is not None for s in (*c.inputs, *c.outputs))]
    assert {"dropless_dispatch", "dropless_combine", "grouped_matmul", "silu"} <= {case.op.kind for case in ragged}
    assert all(min(time_op(case, NumpyKernels(), vocabulary=4)) > 0 for case in ragged[::4])


@pytest.mark.parametrize(
    ("ep", "stage", "capacity"),
    long_but(
        [(*one, capacity) for one in ((2, 0), (2, 1), (2, 2), (2, 3), (4, 0), (4, 3)) for capacity in (0.0, 1.5)],
        7,
    ),
)
def test_tokens_go_to_experts(ep: int, stage: int, capacity: float) -> None:
    """Of experts nothing is gathered, and no gradient reduced, but between groups that have them all."""
    training = Training(global_batch=8, num_micro_batches=2, dtype=DType.FLOAT64)
    config = config_of(training, dp=4, ep=ep, zero_stage=stage, zero_min_size=64)
    model = replace(tiny(), capacity_factor=capacity)
    asked = replace(request(4, training, model=model), deduction=Deduction.LEAST_COST)
    plan = plan_by_rules(asked, config, ("samples", "experts", "tensor"))
    experts = re.compile(r"\.moe\.((gate|up|down)\b(?!_)|\w+_matmul:d[wb])")
    assert any(experts.search(name) for name in plan.graph.values)
    moved = [c for c in plan.layout.conversions if experts.search(c.copy.value)]
    assert {axis for c in moved for step in c.steps for axis in step.axes} == ({0} if ep == 2 else set())
    assert verify(plan) == []
    assert list(transparency.check(plan)) == []
    alone = replace(plan, config=replace(plan.config, ep=1, dp=4))
    assert "mesh" in verify(alone)[0]


def test_experts_elsewhere_are_not_what_the_plan_says() -> None:
    training = Training(global_batch=4, dtype=DType.FLOAT64)
    asked = request(2, training, model=tiny())
    plan = plan_by_rules(asked, config_of(training, dp=2, ep=2), ("samples", "experts", "tensor"))
    name = "layers.0.moe.up_matmul"
    whole = plan_by_rules(asked, config_of(training, dp=2, ep=2), ("samples", "samples", "tensor"))
    changed = {**plan.layout.signatures, name: whole.layout.signatures[name]}
    problems = verify(replace(plan, layout=replace(plan.layout, signatures=changed)))
    assert problems[0].startswith(f"op {name}: ")
    assert "config.ep is 2" in problems[0]


@pytest.mark.parametrize("room", [1.0, 2.0])
def test_more_rows_than_there_is_room_for_end_the_run_by_name(room: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of four experts two a token, on four ranks: at worst all tokens want a rank's, twice an even share."""
    monkeypatch.setattr(tensor, "LEAST_ROOM", 1)
    training = Training(global_batch=8, dtype=DType.FLOAT64, expert_room=room)
    asked = replace(request(4, training, model=tiny()), deduction=Deduction.LEAST_COST)
    plan = plan_by_rules(asked, config_of(training, dp=4, ep=4), ("samples", "experts", "tensor"))
    if room == 2.0:
        assert list(transparency.check(plan)) == []
        return
    told = r"actor 'layers\.\d\.moe.* at step 1: .*rows are for 1 of 4 experts.*: 1 times an even.*expert_room=2 "
    with pytest.raises(RankFault, match=told):
        train(plan, transparency.text_of(plan), steps=3)


@pytest.mark.parametrize(
    "said",
    [
        {"expert_imbalance": 0.5},
        {"expert_imbalance": float("inf")},
        {"expert_imbalance": float("nan")},
        {"expert_room": 0.5},
        {"expert_room": -1.0},
        {"expert_room": float("inf")},
        {"expert_room": float("nan")},
        {"expert_imbalance": 5.0},
    ],
)
def test_what_is_no_demand_is_refused(said: dict[str, float]) -> None:
    """More even than an even one, without end, or more than there is room for (4 unless said)."""
    with pytest.raises(InputError, match=f"training: {list(said)[-1]}|training: expert_room"):
        Training(global_batch=4, **said)  # type: ignore[arg-type]
