"""In halves as in float32, a plan computes what one device computes, up to the rounding of the halves."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strategy.graph.graph import Role
from strategy.layout.config import Recompute
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.passes.updates import Optimizer
from strategy.plan.plan import Plan, plan_text, read_plan, write_plan
from strategy.plan.verify import verify
from strategy.sbp.tensor import DType
from tests.campaigns.transparency import on_one_device
from tests.mpi.launch import run_ranks
from tests.mpi.skipped import BAD_STEP, STEPS
from tests.support.long_parameters import long_but
from tests.support.small_plans import (
    Trained,
    config_of,
    corpus,
    deduced_plan,
    lowered,
    plan_by_rules,
    random_plan,
    request,
    train,
)

ROUNDING = {Precision.BF16: 2.0**-8, Precision.FP16: 2.0**-11}
"""Half the distance from 1 to the next figure."""
MODEL = GptConfig(layers=4, width=16, heads=4, sequence=6, vocabulary=19)
DEGREES = ((2, 2, 1), (1, 2, 2), (2, 1, 2), (4, 1, 1), (1, 1, 4), (1, 3, 1))


def how_of(precision: Precision, **settings: Any) -> Training:
    """SGD, whose updates are in proportion to the gradients: what rounding does to them is seen as it is."""
    given = {"optimizer": Optimizer.SGD, "lr": 0.05, "loss_scale": 64.0, "scale_period": 2, **settings}
    return Training(8, num_micro_batches=2, precision=precision, **given)


@cache
def plan_of(precision: Precision, dp: int, tp: int, pp: int) -> Plan:
    how = how_of(precision)
    model = MODEL if tp != 3 else GptConfig(layers=2, width=24, heads=3, sequence=5, vocabulary=17)
    return deduced_plan(
        request(dp * tp * pp, how, model=model), config_of(how, dp=dp, tp=tp, pp=pp), ("data", "tensor")
    )


def differences(plan: Plan, trained: Trained, steps: int) -> tuple[float, float]:
    """Largest difference of a loss, and of a parameter in units of its tensor's largest change."""
    start, _ = on_one_device(plan, steps=0)
    wanted, losses = on_one_device(plan, steps=steps)
    of_losses = max(abs(r.loss - loss) / abs(loss) for r, loss in zip(trained.reports, losses, strict=True))
    whole = {name: np.zeros_like(array) for name, array in wanted.items()}
    for trainer in trained.trainers:
        for piece in trainer.owned_pieces():
            whole[piece.name][tuple(slice(b, e) for b, e in piece.box)] = piece.array
    worst = 0.0
    for name in (n for n in wanted if ":" not in n):
        moved = float(np.max(np.abs(wanted[name] - start[name])))
        assert moved > 0, name
        worst = max(worst, float(np.max(np.abs(whole[name] - wanted[name]))) / moved)
    counters = [n for n in wanted if n.startswith(("loss:", "step:"))]
    assert all(np.array_equal(whole[n], wanted[n]) for n in counters)
    return of_losses, worst


@pytest.mark.parametrize(
    ("precision", "degrees"),
    long_but(
        [
            *((Precision.FP16, degrees) for degrees in DEGREES),
            *((Precision.BF16, DEGREES[0]), (Precision.BF16, DEGREES[1])),
        ],
        *(5, 7),
    ),
)
def test_ranks_train_as_one_device_does_in_the_same_precision(precision: Precision, degrees: tuple[int, ...]) -> None:
    plan = plan_of(precision, *degrees)
    program = lowered(plan)
    assert verify(plan, program) == []
    loss, worst = differences(plan, train(plan, corpus(plan.model.vocabulary), steps=3, program=program), 3)
    assert loss < 4 * ROUNDING[precision]
    assert worst < 16 * ROUNDING[precision]


@pytest.mark.parametrize("seed", long_but([0, 1, 2, 5], 0))
def test_random_layouts_of_halves(seed: int) -> None:
    """Uneven splits too; terms that are reduced in halves round once more per rank."""
    rng = random.Random(seed)
    precision = rng.choice(list(ROUNDING))
    dp, tp, pp = rng.choice([(2, 2, 1), (1, 2, 2), (3, 1, 1), (1, 3, 1), (2, 1, 2)])
    heads = rng.choice((1, 2, 3))
    model = GptConfig(2, heads * rng.choice((4, 6)), heads, rng.randint(3, 6), rng.randint(12, 19))
    how = how_of(precision, max_norm=rng.choice((0.05, 1.0, 100.0)))
    plan = random_plan(request(dp * tp * pp, how, model=model), config_of(how, dp=dp, tp=tp, pp=pp), rng)
    loss, worst = differences(plan, train(plan, corpus(model.vocabulary), steps=2), 2)
    assert loss < 8 * ROUNDING[precision]
    assert worst < 64 * ROUNDING[precision]


def test_a_plan_in_halves_moves_and_holds_fewer_bytes() -> None:
    for degrees in ((1, 2, 2), (1, 1, 4)):
        full, half = (plan_of(precision, *degrees).claims for precision in (Precision.FULL, Precision.BF16))
        assert sum(half.sent_bytes_per_step) < 0.8 * sum(full.sent_bytes_per_step)
        assert max(half.peak_memory_bytes) < max(full.peak_memory_bytes)
    full, half = (plan_of(precision, 4, 1, 1).claims for precision in (Precision.FULL, Precision.BF16))
    assert half.sent_bytes_per_step == full.sent_bytes_per_step, "accumulated gradients are in float32"


TECHNIQUES: dict[str, tuple[tuple[int, int, int], dict[str, Any]]] = {
    "zero 1": ((2, 1, 1), {"zero_stage": 1, "zero_min_size": 1}),
    "zero 2": ((2, 1, 1), {"zero_stage": 2, "zero_min_size": 1}),
    "zero 3 in stages": ((2, 1, 2), {"zero_stage": 3, "zero_min_size": 1}),
    "recompute": ((2, 1, 1), {"recompute": Recompute.FULL}),
    "recompute in stages": ((1, 2, 2), {"recompute": Recompute.SELECTIVE}),
    "interleaved": ((1, 1, 2), {"schedule": "interleaved"}),
    "zero bubble": ((1, 1, 2), {"schedule": "zb-h1"}),
    "zbv": ((1, 1, 2), {"schedule": "zbv"}),
}


@cache
def plan_with(technique: str, precision: Precision) -> Plan:
    (dp, tp, pp), settings = TECHNIQUES[technique]
    how = how_of(precision)
    config = config_of(how, dp=dp, tp=tp, pp=pp, **settings)
    rules = ("samples split" if config.zero_stage else "data", "tensor")
    model = GptConfig(layers=4, width=16, heads=2, sequence=6, vocabulary=19)
    return plan_by_rules(request(dp * tp * pp, how, model=model), config, rules)


@pytest.mark.parametrize(
    ("precision", "technique"),
    long_but(
        [
            *((Precision.FP16, technique) for technique in TECHNIQUES),
            *((Precision.BF16, technique) for technique in ("zero 3 in stages", "recompute in stages", "zbv")),
        ],
        *(3, 10),
    ),
)
def test_halves_go_with_every_technique(technique: str, precision: Precision) -> None:
    plan = plan_with(technique, precision)
    program = lowered(plan)
    assert verify(plan, program) == []
    loss, worst = differences(plan, train(plan, corpus(plan.model.vocabulary), steps=3, program=program), 3)
    assert loss < 4 * ROUNDING[precision]
    assert worst < 16 * ROUNDING[precision]


@pytest.mark.long
def test_what_zero_gathers_and_scatters_per_micro_batch_is_in_halves() -> None:
    for technique in ("zero 2", "zero 3 in stages"):
        full, half = (sum(plan_with(technique, p).claims.sent_bytes_per_step) for p in (Precision.FULL, Precision.BF16))
        assert half == pytest.approx(full / 2, rel=0.01)


def test_boundaries_of_stages_are_sent_in_halves() -> None:
    plan = plan_of(Precision.BF16, 1, 1, 4)
    stages = plan.layout.stages
    crossing = {
        plan.graph.values[c.copy.value].spec.dtype
        for c in plan.layout.conversions
        if c.source.stage != c.copy.stage and plan.graph.values[c.copy.value].spec.shape[:1] == (4,)
    }
    assert len(stages.placements) == 4
    assert crossing == {DType.BFLOAT16}


def test_the_precision_is_in_the_plan_file(tmp_path: Path) -> None:
    plan = plan_of(Precision.FP16, 2, 1, 2)
    path = tmp_path / "plan.json"
    write_plan(plan, path)
    found = read_plan(path)
    assert found.training.precision is Precision.FP16
    assert plan_text(found) == plan_text(plan)
    assert json.loads(plan_text(plan))["training"]["precision"] == "fp16"


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("precision", "degrees", "rank"),
    long_but(
        [
            (Precision.FP16, (2, 1, 1), 0),
            (Precision.FP16, (2, 1, 2), 0),
            (Precision.FP16, (2, 2, 1), 3),
            (Precision.BF16, (1, 2, 2), 1),
            (Precision.FULL, (1, 3, 1), 2),
        ],
    ),
)
def test_what_one_rank_cannot_count_makes_all_ranks_skip_the_step(
    tmp_path: Path, precision: Precision, degrees: tuple[int, ...], rank: int
) -> None:
    dp, tp, pp = degrees
    how = how_of(precision, optimizer=Optimizer.ADAMW, skip_nonfinite=True)
    model = GptConfig(2, 24, 3, 5, 17) if tp == 3 else replace(MODEL, layers=2)
    plan = deduced_plan(
        request(dp * tp * pp, how, model=model), config_of(how, dp=dp, tp=tp, pp=pp), ("data", "tensor")
    )
    path = tmp_path / "plan.json"
    write_plan(plan, path)
    ranks = json.loads(run_ranks(plan.ranks, "tests.mpi.skipped", str(path), str(rank)))
    bad = [step == BAD_STEP for step in range(STEPS)]
    assert [found["skipped"] for found in ranks if found["skipped"]] == [bad] * sum(bool(f["skipped"]) for f in ranks)
    assert any(found["skipped"] for found in ranks)
    for found in ranks:
        assert found["finite"]
        assert set(found["changed"][BAD_STEP]) <= {"loss:scale", "loss:good"}
        assert found["changed"][0] == found["changed"][-1] != []
        parameters = {name for name in found["held"] if ":" not in name}
        assert parameters <= set(found["changed"][-1])
    held = {name for found in ranks for name in found["held"]}
    assert held == {value.name for value in plan.graph.with_role(Role.VARIABLE)}
