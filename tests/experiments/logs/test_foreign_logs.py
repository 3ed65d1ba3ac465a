"""Logs that others published, held out: a cluster is three times off, and three runs of a job correct it for a fourth.

The runs are four of Qwen3-14B on eight B200 by torchtitan (`experiments/reference/trainer_logs`), none of which any
constant was fitted to; nothing here was simulated but the predictions.
"""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest

from experiments.logs.corrections import LoggedRun, corrected, of_data_sheet, predict_s
from experiments.logs.trainer_log import read_trainer_log
from experiments.planning.prices import simulated_step
from strategy.base.budget import Budget
from strategy.cost.calibrate import scale
from strategy.cost.cost import CostModel
from strategy.hardware.presets import find_cluster
from strategy.layout.config import Recompute
from strategy.models.decoder import DecoderConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.search.search import search
from strategy.space.request import Pins, Request
from strategy.trainers.architecture import description
from strategy.trainers.known_models import known_models

LOGS = sorted((Path(__file__).parents[3] / "experiments" / "reference" / "trainer_logs").glob("torchtitan_*.log"))
SEQUENCE, OF_RANK, RANKS = 128, 160, 8
"""As the logs say."""
WORST_BEFORE, WORST_AFTER = 0.40, 0.08


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Fully sharded, as they trained: whose checkpoints are per op, for which memory-bound ops stand."""
    model = description(known_models()["torchtitan/qwen3/14B"], SEQUENCE)
    assert isinstance(model, DecoderConfig)
    cluster = find_cluster("dgx-b200:1")
    pins = Pins(dp=RANKS, tp=1, pp=1, micro_batch=OF_RANK, zero_stage=3, recompute=Recompute.MEMORY_BOUND)
    training = Training(OF_RANK * RANKS, precision=Precision.BF16)
    asked = Request("qwen3-14b", model, training, CostModel(cluster, {}), cluster.largest_memory_bytes, pins)
    return search(asked, simulate=simulated_step, budget=Budget.of(240)).plan


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("off", [1 / 3, 3.0], ids=["three times too fast", "three times too slow"])
def test_three_logs_teach_what_a_fourth_takes(off: float, plan: Plan) -> None:
    runs = [LoggedRun(plan, read_trainer_log(path)) for path in LOGS]
    assert len(runs) == 4
    wrong = scale(of_data_sheet([plan]), off)
    errors = []
    for held_out in runs:
        found = corrected(wrong, [run for run in runs if run is not held_out], [], plan.cluster)
        errors.append([predict_s(plan, one) / held_out.log.step_time_s - 1 for one in (wrong, found)])
    print(f"{off:.3g} times: errors held out, before and after three logs: {errors}")
    assert min(abs(before) for before, _ in errors) > WORST_BEFORE
    assert max(abs(after) for _, after in errors) <= WORST_AFTER
    assert all(abs(error) < 3 for error in chain.from_iterable(errors))
