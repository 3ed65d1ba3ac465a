"""What-ifs about the cluster: what they change, what they leave alone, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.studies.what_if import FIELDS, what_if
from simulator.simulate import simulate
from strategy.base.errors import InputError
from strategy.cost.cost import Coefficients, CostModel
from strategy.cost.measurement import CostKey
from strategy.hardware.cluster import Cluster, Device, Link
from strategy.hardware.presets import find_cluster
from strategy.lowering.lower import lower
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.sbp.placement import Space
from tests.experiments.conftest import Command
from tests.support.small_plans import config_of, deduced_plan, request

COST = CostModel(find_cluster("dgx-a100:2"), {})


def step_s(plan: Plan, *changes: str) -> float:
    cost = what_if(plan.cost, changes)
    return simulate(lower(plan.graph, plan.layout, plan.pipeline, cost)).step_time_s


def data_parallel(flop_per_s: float, bytes_per_s: float) -> Plan:
    """Two devices on two nodes that reduce their gradients."""
    device = Device("small", "numpy", 2**40, 1e15, flop_per_s, 1e-9)
    link = Link(bytes_per_s, 1e-9)
    training = Training(global_batch=4, num_micro_batches=1)
    where = Cluster("two", 2, 1, device, link, link)
    asked = replace(request(2, training), cost=CostModel(where, {}))
    return deduced_plan(asked, config_of(training, dp=2), ("data", "tensor"))


def test_half_the_bandwidth_moves_what_is_bound_by_communication_alone() -> None:
    slow, fast = data_parallel(1e15, 1e4), data_parallel(1e6, 1e12)
    assert step_s(slow, "inter.bandwidth=0.5x") / step_s(slow) >= 1.6
    assert 1.0 <= step_s(fast, "inter.bandwidth=0.5x") / step_s(fast) <= 1.02
    assert step_s(fast, "device.compute=2x") / step_s(fast) <= 0.6
    assert step_s(slow, "intra.bandwidth=0.01x") == step_s(slow)


def test_gpu_direct_is_turned_off_and_on() -> None:
    far, near = CostKey("all_gather", level="inter"), CostKey("matmul")
    measured = replace(COST, coefficients={far: Coefficients(1e-5, 0.0, 1e-12), near: Coefficients(0.0, 1e-15, 0.0)})
    host = COST.cluster.host
    assert host is not None
    off = what_if(measured, ["inter.gpu_direct=false"])
    assert off.cluster == replace(COST.cluster, gpu_direct=False)
    assert off.coefficients[far] == Coefficients(1e-5 + 2 * host.link_latency_s, 0.0, 1 / host.link_bytes_per_s)
    assert off.coefficients[near] == measured.coefficients[near]
    on = what_if(off, ["inter.gpu_direct=true"])
    assert on.cluster == COST.cluster
    assert list(on.coefficients) == [near]
    for text in ("yes", "2x", ""):
        with pytest.raises(InputError, match="neither true nor false"):
            what_if(COST, [f"inter.gpu_direct={text}"])
    with pytest.raises(InputError, match="no host to pass through"):
        what_if(replace(COST, cluster=replace(COST.cluster, host=None)), ["inter.gpu_direct=false"])


def test_a_slowdown_is_given_as_a_percentage() -> None:
    assert what_if(COST, ["device.slowdown=40%"]).cluster.device.slowdown == pytest.approx(0.4)
    assert what_if(COST, ["device.slowdown=0 %"]).cluster.device.slowdown == 0.0
    for text in ("0.4", "100%", "-1%", "some%"):
        with pytest.raises(InputError, match="not a possible figure"):
            what_if(COST, [f"device.slowdown={text}"])


def test_absolute_figures_are_those_of_a_factor() -> None:
    assert what_if(COST, ["inter.bandwidth=50 GB/s"]) == what_if(COST, ["inter.bandwidth=2x"])
    assert what_if(COST, ["device.launch=10us"]).cluster.device.launch_s == pytest.approx(1e-5)
    assert what_if(COST, []) == COST


def test_several_at_once() -> None:
    found = what_if(COST, ["inter.bandwidth=2x", "inter.latency=3x", "host.bandwidth=0.5x"]).cluster
    assert found.inter == Link(5e10, 5e-6 * 3)
    assert found.host is not None
    assert found.host.link_bytes_per_s == 31.5e9 / 2
    assert found.device == COST.cluster.device


def test_what_was_measured_is_scaled() -> None:
    one = Coefficients(1e-6, 1e-12, 1e-9)
    product, far = CostKey("matmul", "bfloat16"), CostKey("all_reduce", level="inter")
    update, copy = CostKey("adamw", space=Space.HOST), CostKey("to_host")
    cost = replace(COST, coefficients=dict.fromkeys((product, far, update, copy), one))
    scaled = what_if(cost, ["inter.bandwidth=2x", "device.compute=4x", "host.memory_bandwidth=0.5x"]).coefficients
    assert scaled[far] == Coefficients(1e-6, 1e-12, 0.5e-9)
    assert scaled[product] == Coefficients(1e-6, 0.25e-12, 1e-9)
    assert scaled[update] == Coefficients(1e-6, 1e-12, 2e-9)
    assert scaled[copy] == one


@pytest.mark.parametrize("key", FIELDS)
@pytest.mark.parametrize("text", ["", "2", "nan", "nanx", "0x", "-1x", "infx", "x", "1e400x", "1e-400x", "2 parsec"])
def test_impossible_figures(key: str, text: str) -> None:
    if key == "device.slowdown" and text in ("0x", "1e-400x"):
        assert what_if(COST, [f"{key}={text}"]).cluster.device.slowdown == 0.0
        return
    with pytest.raises(InputError, match=r"a factor such as .2x., or a figure with its unit such as"):
        what_if(COST, [f"{key}={text}"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("inter.bandwidths=2x", "did you mean 'inter.bandwidth'"),
        ("bandwidth=2x", "unknown field"),
        ("inter.bandwidth", "above zero"),
        ("inter.bandwidth=0 GB/s", "above zero"),
        ("inter.bandwidth=-5 GB/s", "above zero"),
        ("inter.bandwidth=NaN GB/s", "above zero"),
        ("inter.latency=5 GB/s", "5 us"),
        ("device.launch=0 us", "above zero"),
        ("", "unknown field"),
    ],
)
def test_wrong_changes_exit_with_what_was_expected(
    command: Command, plan_file: Path, change: str, message: str
) -> None:
    said = command("simulate", plan_file, "--set", change, "--json")
    assert (said.code, said.out) == (2, "")
    assert message in said.err


def test_all_wrong_changes_are_named_at_once(command: Command, plan_file: Path) -> None:
    said = command("simulate", plan_file, "--set", "inter.bandwidth=0x", "nodes=2x", "--set", "device.compute=9")
    assert said.code == 2
    assert all(key in said.err for key in ("inter.bandwidth", "nodes", "device.compute"))
    twice = command("simulate", plan_file, "--set", "inter.bandwidth=2x", "inter.bandwidth=3x")
    assert twice.code == 2
    assert "given more than once" in twice.err


def test_the_command_answers(command: Command, plan_file: Path) -> None:
    plain = json.loads(command("simulate", plan_file, "--json").out)
    faster = json.loads(
        command("simulate", plan_file, "--set", "device.compute=2x", "device.launch=0.5x", "--json").out
    )
    assert faster["step_time_s"] < plain["step_time_s"]
