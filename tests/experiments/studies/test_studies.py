"""Studies beside a plan's step: other exchanges, schedules and staleness, reached by `sbplan simulate`."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from experiments.studies.studies import EXCHANGES, SCHEDULES, exchange_study, schedule_study, staleness_study
from experiments.studies.unevenness import Unevenness
from experiments.studies.what_if import what_if
from simulator.exchange.systems import SYSTEMS
from simulator.pipelines import pipeline
from simulator.simulate import simulate
from simulator.stage_times import stage_times
from strategy.base.errors import InputError
from strategy.lowering.lower import lower_priced
from strategy.passes.training import Training
from strategy.passes.updates import Optimizer
from strategy.plan.plan import Plan
from strategy.program.program import Program
from tests.experiments.conftest import Command
from tests.support.small_plans import config_of, deduced_plan, request


def data_parallel(ranks: int = 4, *, optimizer: Optimizer = Optimizer.ADAMW, micro_batches: int = 1) -> Plan:
    training = Training(global_batch=8 * micro_batches, num_micro_batches=micro_batches, optimizer=optimizer)
    return deduced_plan(request(ranks, training), config_of(training, dp=ranks), ("data",))


def pipelined(stages: int = 2, micro_batches: int = 8, *, dp: int = 1) -> Plan:
    training = Training(global_batch=2 * micro_batches, num_micro_batches=micro_batches)
    return deduced_plan(request(stages * dp, training), config_of(training, dp=dp, pp=stages), ("data",))


def test_every_system_and_every_schedule_is_offered(command: Command) -> None:
    assert SYSTEMS.keys() == set(EXCHANGES)
    said = command("simulate", "nowhere.json", "--exchange", "nccl")
    assert said.code == 2
    assert all(system in said.err for system in EXCHANGES)
    said = command("simulate", "nowhere.json", "--schedule", "gpipe")
    assert all(schedule in said.err for schedule in SCHEDULES)


@pytest.mark.parametrize("micro_batches", [1, 3])
def test_an_exchange_adds_to_the_compute_of_the_plan(micro_batches: int) -> None:
    """A step alone is the compute of a rank, which updates everything itself; the exchange adds what is not hidden."""
    plan = data_parallel(micro_batches=micro_batches)
    found = exchange_study(plan, plan.cost, EXCHANGES)
    own_s = simulate(plan_program(plan)).compute_s
    assert own_s <= found.alone_s < 1.02 * own_s
    assert [one.system for one in found.systems] == list(EXCHANGES)
    for one in found.systems:
        assert one.step_time_s == pytest.approx(found.alone_s + one.exposed_s)
        assert 0 < one.exposed_s < 40 * found.alone_s


def plan_program(plan: Plan) -> Program:
    return lower_priced(plan.priced, tokens_per_step=plan.tokens_per_step)


def test_a_slower_network_exposes_more() -> None:
    plan, systems = data_parallel(), ["ddp", "byteps", "mxnet"]
    slower = what_if(plan.cost, ["intra.bandwidth=0.25x"])
    both = zip(
        exchange_study(plan, plan.cost, systems).systems, exchange_study(plan, slower, systems).systems, strict=True
    )
    assert all(slow.exposed_s > fast.exposed_s for fast, slow in both)


def test_the_stages_alone_take_what_the_plan_takes() -> None:
    """Bare 1F1B of the plan's stage times is the plan's own step, but for what its acts overlap."""
    plan = pipelined(4, 8)
    found = schedule_study(plan, plan.cost, "pipedream")
    own = simulate(plan_program(plan)).step_time_s
    assert found.flushed_step_time_s == pytest.approx(own, rel=0.1)


def test_pipedream_never_drains_and_holds_a_version_per_micro_batch() -> None:
    plan = pipelined(4, 8)
    found, times = schedule_study(plan, plan.cost, "pipedream"), stage_times(plan.priced)
    slowest = max(each.forward_ns + each.backward_ns + each.update_ns for each in times)
    assert 8 * slowest / 1e9 <= found.step_time_s < found.flushed_step_time_s + 7 * slowest / 1e9
    assert found.in_flight == (4, 3, 2, 1)
    once = schedule_study(plan, plan.cost, "dualpipe").parameter_bytes
    assert once[0] == once[3]
    assert found.parameter_bytes[3] + found.parameter_bytes[0] // 4 == once[0]


def test_dualpipe_idles_less_and_holds_two_stages() -> None:
    plan = pipelined(4, 16)
    found = schedule_study(plan, plan.cost, "dualpipe")
    assert 0 < found.idle_share < found.flushed_idle_share
    assert found.in_flight == (5, 5, 5, 5)


def test_uneven_stages_of_dualpipe_and_1f1b() -> None:
    """Times per stage are those of the stage, whichever rank or direction it is on."""
    found = simulate(pipeline(2, 4, "1f1b", forward_ns=[10, 30], backward_ns=[20, 60], update_ns=[7, 5]), steps=1)
    assert found.timeline.makespan_ns == 10 + 4 * (30 + 60) + 20 + 7


def test_workers_wait_less_the_staler_they_are() -> None:
    plan, uneven = data_parallel(), Unevenness(jitter_share=0.5, seed=1)
    found = [staleness_study(plan, plan.cost, steps, uneven) for steps in (1, 2, 4)]
    times = [found[0].synchronous_step_time_s, *(each.step_time_s for each in found)]
    assert times == sorted(times, reverse=True)
    assert times[-1] < 0.9 * times[0]
    once = found[1].parameter_bytes - found[0].parameter_bytes
    assert [each.parameter_bytes for each in found] == [2 * once, 3 * once, 5 * once]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--schedule", "dualpipe"], "--schedule: no pipeline of one lap (got 'pp 1, virtual_stages 1'"),
        (["--staleness", "0"], "expected a whole number of at least 1"),
        (["--staleness", "1", "--slow-link", "1=2x"], "--staleness: workers whose links are alike"),
        (["--exchange", "ddp", "--jitter", "5%"], "--exchange: ranks are even there"),
    ],
)
def test_what_cannot_be_studied_is_refused(command: Command, plan_file: Path, argv: list[str], message: str) -> None:
    said = command("simulate", plan_file, *argv)
    assert (said.code, said.out) == (2, "")
    assert message in said.err


def test_plans_that_do_more_are_refused() -> None:
    plan = pipelined(2, 4, dp=2)
    for study in (
        lambda: exchange_study(plan, plan.cost, ["ddp"]),
        lambda: staleness_study(plan, plan.cost, 1, Unevenness()),
    ):
        with pytest.raises(InputError, match=r"not a data-parallel plan .*pin dp"):
            study()
    few = pipelined(2, 2)
    with pytest.raises(InputError, match="too few for two directions"):
        schedule_study(few, few.cost, "dualpipe")


def test_the_verb_prints_and_writes_them(command: Command, plan_file: Path) -> None:
    argv = ["--exchange", "horovod", "byteps", "--staleness", "2"]
    said = command("simulate", plan_file, *argv, "--json")
    found = json.loads(said.out)
    assert said.code == 0
    assert [one["system"] for one in found["exchange"]["systems"]] == ["horovod", "byteps"]
    assert all(math.isfinite(one["step_time_s"]) for one in found["exchange"]["systems"])
    assert found["staleness"]["staleness"] == 2
    assert "horovod: " in said.err
    assert "staleness 2: " in said.err
