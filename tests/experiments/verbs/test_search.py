"""`sbplan search`: its document, its plan file, its exit codes, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import experiments.verbs.search as verb
import strategy.base.budget
import strategy.search.search
from experiments.cli import dispatch
from strategy.cost.calibrate import calibrate, write_calibration
from strategy.cost.measurement import CostKey, Features, Measurement
from strategy.hardware.cluster_file import read_cluster
from strategy.passes.training import Training
from strategy.plan.plan import read_plan
from strategy.plan.verify import verify
from strategy.sbp.sbp import B
from strategy.space.request import Request
from tests.conftest import ROOT, Sbplan
from tests.experiments.conftest import CLUSTER, PINS, Command
from tests.support.long_parameters import long_but
from tests.support.small_plans import config_of, exchange_left_alone

KEYS = [
    "status",
    "step_time_s",
    "objective_s",
    "lower_bound_s",
    "gap",
    "simulated_lower_bound_s",
    "search_time_s",
    "config",
    "precision",
    "peak_memory_bytes",
    "memory_limit_bytes",
    "tokens_per_s",
    "mfu",
    "hfu",
    "runners_up",
    "best",
    "best_left_out",
    "plan",
]
CONFIG = [
    "dp",
    "tp",
    "pp",
    "cp",
    "ep",
    "virtual_stages",
    "micro_batch",
    "num_micro_batches",
    "schedule",
    "recompute",
    "zero_stage",
    "zero_owner",
    "zero_min_size",
    "tiles",
    "tiled",
    "recompute_values",
    "context",
    "offload",
    "offload_values",
]
DECODERS = Path(__file__).parents[2] / "pytorch" / "decoders"
SMALL = ["gpt-tiny", "--seq", "16", "--global-batch", "4"]


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_document_and_the_plan_agree(command: Command, tmp_path: Path, cluster_file: Path, pin_file: Path) -> None:
    out = tmp_path / "plan.json"
    said = command("search", *SMALL, "--cluster", cluster_file, "--pin", pin_file, "--out", out, "--json")
    assert said.code == 0
    found = json.loads(said.out)
    assert said.out.count("\n") == 1
    assert set(KEYS) <= found.keys()
    assert set(found["config"]) == set(CONFIG)
    assert found["plan"] == str(out)
    plan = read_plan(out)
    assert verify(plan) == []
    claims = plan.claims
    assert found["status"] == "optimal"
    assert (found["objective_s"], found["lower_bound_s"], found["gap"]) == (claims.objective_s, claims.objective_s, 0.0)
    assert found["step_time_s"] == claims.step_time_s
    assert 0 < found["simulated_lower_bound_s"] <= found["step_time_s"]
    assert found["peak_memory_bytes"] == list(claims.peak_memory_bytes)
    assert found["memory_limit_bytes"] == 2**30
    assert found["tokens_per_s"] == pytest.approx(4 * 16 / claims.step_time_s)
    assert 0 < found["mfu"] == found["hfu"] < 1
    assert str(out) in said.err


def test_a_folder_is_planned_under_its_name_with_its_parameters(
    command: Command, tmp_path: Path, cluster_file: Path, pin_file: Path
) -> None:
    out = tmp_path / "plan.json"
    batch = ("--global-batch", "4", "--seq", "8", "--pin", pin_file)
    said = command("search", DECODERS / "gemma2", *batch, "--cluster", cluster_file, "--out", out, "--json")
    assert said.code == 0, said.err
    plan = read_plan(out)
    assert verify(plan) == []
    assert plan.model_name == "gemma2"
    assert json.loads(said.out)["parameters"] == plan.model.parameters


def test_a_config_that_is_wrong_is_told_in_one_message(command: Command, tmp_path: Path, cluster_file: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "llama", "hidden_size": 0, "colour": "red"}')
    said = command("search", tmp_path, "--cluster", cluster_file)
    assert said.code == 2
    assert "hidden_size: not a size (got 0" in said.err
    assert "unknown key (got 'colour')" in said.err
    assert "Traceback" not in said.err


@pytest.mark.long
def test_a_free_search_is_no_worse_than_its_runners_up(command: Command, tmp_path: Path, cluster_file: Path) -> None:
    out = tmp_path / "plan.json"
    said = command("search", *SMALL, "--cluster", cluster_file, "--out", out, "--json")
    found = json.loads(said.out)
    assert said.code == 0
    assert found["status"] in ("optimal", "feasible")
    pipelines = (4 + 5 + 5) * 4  # of one micro-batch, of two and of four, by schedule; by what is computed again
    gradients_shared = 4  # of one micro-batch, by what is computed again
    assert found["num_candidates"] == 2 * 4 * 2 + 3 * 4 + pipelines + gradients_shared
    assert all(set(one["config"]) == set(CONFIG) for one in found["runners_up"])
    assert all(one["step_time_s"] >= found["step_time_s"] for one in found["runners_up"])
    best, first = found["best"], found["best"]["plans"][0]
    assert (first["config"], first["step_time_s"]) == (found["config"], found["step_time_s"])
    assert 2 <= len(best["plans"]) <= 1 + len(found["runners_up"])
    assert sum(one["probability"] for one in best["plans"]) == pytest.approx(1)
    assert best["probability"] == first["probability"]
    assert found["best_left_out"] is None
    assert f"with probability {best['probability']:.2f}" in said.err
    assert 0 <= found["gap"] == pytest.approx(1 - found["lower_bound_s"] / found["objective_s"])


def test_the_same_inputs_give_the_same_bytes(
    sbplan: Sbplan, tmp_path: Path, cluster_file: Path, pin_file: Path, plan_file: Path
) -> None:
    """In this process and in another one, whose texts have other hashes."""
    out = tmp_path / "plan.json"
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = sbplan(
        *("search", *SMALL, "--cluster", cluster_file, "--pin", pin_file, "--out", out), env={"PYTHONHASHSEED": seed}
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert out.read_bytes() == plan_file.read_bytes()


MIXED = """
name = "two-and-two"
devices_per_node = 2
inter = { bandwidth = "1 GB/s", latency = "20 us" }

[[group]]
nodes = 1
intra = { bandwidth = "2 GB/s", latency = "10 us" }
[group.device]
name = "slow core"
backend = "numpy"
memory = "1 GiB"
memory_bandwidth = "5 GB/s"
launch = "2 us"
compute = "20 GFLOP/s"

[[group]]
nodes = 1
intra = { bandwidth = "4 GB/s", latency = "10 us" }
[group.device]
name = "fast core"
backend = "numpy"
memory = "2 GiB"
memory_bandwidth = "20 GB/s"
launch = "2 us"
compute = "80 GFLOP/s"
"""


@pytest.mark.long
@exchange_left_alone()
def test_nodes_of_two_types_get_unequal_stages(command: Command, tmp_path: Path) -> None:
    cluster, out = write(tmp_path / "mixed.toml", MIXED), tmp_path / "plan.json"
    pins = write(tmp_path / "pins.toml", "[config]\npp = 2\ndp = 2\nmicro_batch = 1\nschedule = '1f1b'\n")
    asked = ("gpt-tiny", "--seq", "32", "--global-batch", "16", "--cluster", cluster, "--pin", pins)
    said = command("search", *asked, "--out", out, "--json")
    assert said.code == 0, said.err
    found = json.loads(said.out)
    assert set(CONFIG) < set(found["config"]) <= {*CONFIG, "runs", "stage_order"}
    slow, fast = sorted(found["config"]["runs"])
    assert (slow, fast) == (1, 3)
    assert f"layers {' + '.join(map(str, found['config']['runs']))}" in said.err
    plan = read_plan(out)
    few = found["config"]["runs"].index(slow)
    assert plan.layout.stages.placements[few].devices == (0, 1)
    assert found["memory_limit_bytes"] == 2**31
    assert command("verify", out).code == 0
    assert command("simulate", out, "--straggler", "3=1.5x").code == 0
    wrong = write(
        tmp_path / "wrong.toml", MIXED.replace('[group.device]\nname = "fast', '[group.gadget]\nname = "fast')
    )
    said = command("search", "gpt-tiny", "--cluster", wrong, "--out", out)
    assert said.code == 2
    assert "[[group]] 2: gadget: unknown key" in said.err


@exchange_left_alone()
def test_pinned_layouts_and_stages_are_in_the_plan(command: Command, tmp_path: Path, cluster_file: Path) -> None:
    pins = """
    [config]
    pp = 2
    num_micro_batches = 2
    schedule = "gpipe"
    [stage]
    "layers.[0-2].*" = 0
    "layers.3.*" = 1
    """
    out = tmp_path / "plan.json"
    pin = write(tmp_path / "pins.toml", pins)
    assert command("search", *SMALL, "--cluster", cluster_file, "--pin", pin, "--out", out).code == 0
    plan = read_plan(out)
    assert verify(plan) == []
    assert (plan.config.schedule, plan.config.num_micro_batches) == ("gpipe", 2)
    stages = {op.name: plan.layout.stages.stage_of[op.name] for op in plan.graph.ops if op.layer is not None}
    assert stages == {name: int(name.startswith("layers.3")) for name in stages}

    pin = write(tmp_path / "pins.toml", '[config]\ntp = 2\n[sbp]\n"*.mlp.fc1.weight" = ["S(0)", "S(1)"]')
    assert command("search", *SMALL, "--cluster", cluster_file, "--pin", pin, "--out", out).code == 0
    plan = read_plan(out)
    assert verify(plan) == []
    for layer in range(4):
        name = f"layers.{layer}.mlp.fc1"
        # The data axis has one rank: nothing is split along it, whatever the pin says.
        weight = plan.layout.signatures[f"{name}.matmul"].inputs[1]
        assert [str(sbp) for sbp in weight] == ["B", "S(1)"]
        assert plan.layout.signatures[f"{name}.weight:adamw"].updates[0] == weight


@pytest.mark.long
@exchange_left_alone()
def test_a_pinned_placement_is_in_the_plan(command: Command, tmp_path: Path, cluster_file: Path) -> None:
    pin = write(tmp_path / "pins.toml", '[placement]\n"layers.2.*" = [1]\n"layers.[01].*" = [0]')
    out = tmp_path / "plan.json"
    assert command("search", *SMALL, "--cluster", cluster_file, "--pin", pin, "--out", out).code == 0
    plan = read_plan(out)
    assert verify(plan) == []
    for op in plan.graph.ops:
        if op.layer in (0, 1, 2):
            assert plan.layout.stages.placement(op.name).devices == (int(op.layer == 2),)


def test_all_illegal_pins_are_named_at_once(command: Command, tmp_path: Path, cluster_file: Path) -> None:
    pins = """
    [sbp]
    "*.fc9.weight" = ["B", "B"]
    "*.fc1.bias" = ["B", "S(3)"]
    [stage]
    "layer.0.*" = 0
    """
    pin = write(tmp_path / "pins.toml", pins)
    said = command("search", *SMALL, "--cluster", cluster_file, "--pin", pin, "--out", tmp_path / "plan.json")
    assert said.code == 2
    for part in (
        "pins: 6 problems",
        "[sbp] '*.fc9.weight': a pin matches no value",
        "[sbp] '*.fc1.bias': value layers.0.mlp.fc1.bias: split beyond the dims (got 'S(3)', expected a dim of (512,))",
        "[sbp] '*.fc1.bias': value layers.3.mlp.fc1.bias: split beyond the dims",
        "[stage] 'layer.0.*': a pin matches no op",
    ):
        assert part in said.err


DATA_PARALLEL = "[config]\ndp = 2\nnum_micro_batches = 1"


@pytest.fixture(scope="module")
def best_s(tmp_path_factory: pytest.TempPathFactory, cluster_file: Path) -> float:
    """The objective of the best data-parallel plan, which is not deduced."""
    folder = tmp_path_factory.mktemp("best")
    pin, out = write(folder / "pins.toml", DATA_PARALLEL), folder / "plan.json"
    assert dispatch(["search", *SMALL, "--cluster", str(cluster_file), "--pin", str(pin), "--out", str(out)]) == 0
    return read_plan(out).claims.objective_s


@pytest.mark.parametrize("rule", long_but(["match-all", "match-most", "least-cost"], 2))
def test_deduced_plans_are_legal_and_no_better(
    command: Command, tmp_path: Path, cluster_file: Path, best_s: float, rule: str
) -> None:
    out = tmp_path / "plan.json"
    pin = write(tmp_path / "pins.toml", DATA_PARALLEL)
    argv = ("search", *SMALL, "--cluster", cluster_file, "--pin", pin, "--out", out, "--json")
    deduced = json.loads(command(*argv, "--deduce", rule).out)
    plan = read_plan(out)
    assert verify(plan) == []
    assert all(sbp == B for op in plan.graph.ops for nd in plan.layout.signatures[op.name].updates for sbp in nd)
    assert best_s <= deduced["objective_s"]
    assert deduced["lower_bound_s"] <= best_s


@pytest.mark.parametrize(
    ("pins", "code", "message"),
    [
        ("[config]\ndp = 3", 3, "has dp = 3; pin another value"),
        ("[config]\nmicro_batch = 3", 3, "has micro_batch = 3; pin another value"),
        ('[sbp]\n"*.fc9.weight" = ["B", "B"]', 2, "[sbp] '*.fc9.weight': a pin matches no value"),
        ('[stage]\n"layer.0.*" = 0', 2, "[stage] 'layer.0.*': a pin matches no op"),
        ('[stage]\n"layers.0.*" = 7', 3, "has [stage] 'layers.0.*' = 7; pin another value"),
        (
            '[config]\npp = 2\n[stage]\n"layers.0.mlp.gelu" = 1',
            2,
            "[stage] op layers.0.mlp.fc2.matmul: the pins make a pass go against the pipeline",
        ),
        ('[config]\ntp = 2\n[sbp]\n"ids" = ["B", "S(0)"]', 3, "value ids: a dim is split into more parts than it has"),
        ('[config]\ntp = 2\n[sbp]\n"*.gelu" = ["B", "P"]', 3, "no legal signature of op layers.0.mlp.gelu (gelu)"),
        ("[config]\nep = 2", 3, "has ep = 2; pin another value"),
        ('[config]\norder = ["data", "data"]', 2, "no order of the axes"),
    ],
)
def test_pins_that_cannot_be_satisfied(
    command: Command, tmp_path: Path, cluster_file: Path, pins: str, code: int, message: str
) -> None:
    pin = write(tmp_path / "pins.toml", pins)
    said = command("search", *SMALL, "--cluster", cluster_file, "--pin", pin, "--out", tmp_path / "plan.json")
    assert (said.code, said.out) == (code, "")
    assert message in said.err
    assert not (tmp_path / "plan.json").exists()


@exchange_left_alone()
def test_too_little_memory_is_proved_with_the_smallest_limit(command: Command, tmp_path: Path) -> None:
    cluster = write(tmp_path / "small.toml", CLUSTER.replace("1 GiB", "4 MiB"))
    pin = write(tmp_path / "pins.toml", PINS + 'recompute = "none"\noffload = "none"\n')
    argv = ("search", *SMALL, "--pin", pin, "--out", tmp_path / "plan.json", "--json")
    said = command(*argv, "--cluster", cluster)
    assert said.code == 3
    found = json.loads(said.out)
    assert set(KEYS) <= found.keys()
    assert (found["status"], found["plan"], found["memory_limit_bytes"]) == ("infeasible", None, 2**22)
    smallest = found["smallest_limit_bytes"]
    assert f"the smallest limit that works is {smallest} bytes" in said.err
    assert "the biggest item is" in said.err


@pytest.mark.long
@exchange_left_alone()
def test_a_little_more_than_the_smallest_limit_is_enough(command: Command, tmp_path: Path) -> None:
    cluster = write(tmp_path / "small.toml", CLUSTER.replace("1 GiB", "4 MiB"))
    pin = write(tmp_path / "pins.toml", PINS + 'recompute = "none"\noffload = "none"\n')
    argv = ("search", *SMALL, "--pin", pin, "--out", tmp_path / "plan.json", "--json")
    smallest = json.loads(command(*argv, "--cluster", cluster).out)["smallest_limit_bytes"]
    enough = write(tmp_path / "enough.toml", CLUSTER.replace("1 GiB", f"{smallest * 21 // 20} B"))
    said = command(*argv, "--cluster", enough)
    assert said.code == 0
    assert max(json.loads(said.out)["peak_memory_bytes"]) <= smallest * 21 // 20


def test_a_limit_that_is_too_short_for_any_plan(command: Command, tmp_path: Path, cluster_file: Path) -> None:
    out = tmp_path / "plan.json"
    said = command("search", *SMALL, "--cluster", cluster_file, "--out", out, "--time-limit", "0.000001", "--json")
    assert said.code == 4
    assert json.loads(said.out)["status"] == "limit"
    assert "no plan was found within" in said.err
    assert not out.exists()


def test_what_is_pinned_is_priced_however_short_the_time(
    command: Command, tmp_path: Path, cluster_file: Path, pin_file: Path
) -> None:
    out = tmp_path / "plan.json"
    argv = ("search", *SMALL, "--cluster", cluster_file, "--pin", pin_file, "--out", out, "--time-limit", "0.000001")
    said = command(*argv, "--json")
    found = json.loads(said.out)
    assert (said.code, found["status"]) == (4, "limit")
    assert 0 < found["lower_bound_s"] <= found["objective_s"]
    assert verify(read_plan(out)) == []


def test_the_best_plan_so_far_is_written_when_the_time_runs_out(
    command: Command, tmp_path: Path, cluster_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solved: list[object] = []
    examine = strategy.search.search.examine

    def count(*args: object, **kwargs: object) -> object:
        solved.append(examine(*args, **kwargs))  # type: ignore[arg-type]
        return solved[-1]

    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + (1e6 if solved else 0.0))
    monkeypatch.setattr(strategy.search.search, "examine", count)
    monkeypatch.setattr(strategy.base.budget, "time", clock)
    out = tmp_path / "plan.json"
    said = command("search", *SMALL, "--cluster", cluster_file, "--out", out, "--json")
    found = json.loads(said.out)
    assert len(solved) == 1
    assert (said.code, found["status"]) == (4, "limit")
    assert found["lower_bound_s"] < found["objective_s"]
    assert verify(read_plan(out)) == []


def test_a_calibration_prices_the_plan_and_says_what_it_does_not_cover(
    command: Command, tmp_path: Path, cluster_file: Path, pin_file: Path
) -> None:
    rows = [Measurement(Features("matmul", flop, 4096), flop * 1e-10, 5, "profile") for flop in (10**6, 10**7)]
    path = tmp_path / "calibration.json"
    write_calibration(calibrate(rows, read_cluster(cluster_file)), path)
    argv = ("search", *SMALL, "--pin", pin_file, "--calibration", path, "--out", tmp_path / "plan.json", "--json")
    said = command(*argv, "--cluster", cluster_file)
    assert said.code == 0
    assert "warning" not in said.err
    found = json.loads(said.out)
    assert "gelu" in found["extrapolated"]
    assert found["extrapolated"] == sorted(set(found["extrapolated"]))
    assert read_plan(tmp_path / "plan.json").cost.coefficients.keys() == {CostKey("matmul")}

    other = write(tmp_path / "other.toml", CLUSTER.replace("two-cores", "others"))
    said = command(*argv, "--cluster", other)
    assert said.code == 0
    assert f"warning: {path} was fitted on cluster 'two-cores', not on 'others'" in said.err


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["gpt-tny"], 2, "unknown model (got 'gpt-tny'); did you mean 'gpt-tiny'?"),
        (["config.json"], 2, "config.json: no such file"),
        (["package.module:build"], 2, "package.module:build: cannot be imported: ModuleNotFoundError: "),
        (["gpt-tiny", "--time-limit", "0"], 2, "got '0', expected a number of seconds above zero"),
        (["gpt-tiny", "--time-limit", "nan"], 2, "expected a number of seconds above zero"),
        (["gpt-tiny", "--global-batch", "0"], 2, "expected a whole number of at least 1"),
        (["gpt-tiny", "--calibration", "nowhere.json"], 2, "nowhere.json: no such file"),
        (["gpt-tiny", "--pin", "nowhere.toml"], 2, "nowhere.toml: no such pin file"),
        (["gpt-tiny", "--out", "nowhere/plan.json"], 2, "--out nowhere/plan.json: no such folder"),
        (["gpt-tiny", "--out", "."], 2, "--out .: is a folder"),
        (["gpt-tiny", "--deduce", "greedy"], 2, "--deduce: invalid choice: 'greedy'"),
    ],
)
def test_wrong_arguments(command: Command, cluster_file: Path, argv: list[str], code: int, message: str) -> None:
    said = command("search", "--cluster", cluster_file, *argv)
    assert (said.code, said.out) == (code, "")
    assert message in said.err


@pytest.mark.parametrize(
    ("line", "instead", "message"),
    [
        ('bandwidth = "4 GB/s"', 'bandwidth = "-4 GB/s"', "not a possible figure"),
        ('bandwidth = "4 GB/s"', "bandwidth = 4", "not a figure with a unit"),
        ("devices_per_node = 2", "devices_per_node = 0", "devices_per_node: not a count"),
        ('memory = "1 GiB"', 'memry = "1 GiB"', "[device]: memry: unknown key; did you mean 'memory'?"),
    ],
)
def test_a_wrong_cluster(command: Command, tmp_path: Path, line: str, instead: str, message: str) -> None:
    cluster = write(tmp_path / "wrong.toml", CLUSTER.replace(line, instead))
    said = command("search", "gpt-tiny", "--cluster", cluster)
    assert (said.code, said.out) == (2, "")
    assert message in said.err


def test_an_unknown_cluster(command: Command) -> None:
    said = command("search", "gpt-tiny", "--cluster", "dgx-a10:1")
    assert said.code == 2
    assert "unknown cluster" in said.err


def test_what_native_code_prints_is_kept_off_stdout() -> None:
    code = """
import ctypes
from experiments.command.outputs import clean_stdout
native = ctypes.CDLL(None)
print("before")
with clean_stdout():
    native.puts(b"chatter")
print("after")
native.puts(b"ours again")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert sorted(done.stdout.split("\n")) == ["", "after", "before", "ours again"]
    assert done.stderr == "chatter\n"


@pytest.mark.parametrize(
    ("schedule", "laps"), long_but([("oneflow", 1), ("interleaved", 2), ("zb-h1", 1), ("zbv", 2)], 1, 3)
)
def test_a_pinned_schedule_goes_all_the_way(
    command: Command, tmp_path: Path, cluster_file: Path, schedule: str, laps: int
) -> None:
    out = tmp_path / "plan.json"
    pin = write(tmp_path / "pins.toml", f'[config]\npp = 2\nnum_micro_batches = 4\nschedule = "{schedule}"')
    said = command("search", *SMALL, "--cluster", cluster_file, "--pin", pin, "--out", out, "--json")
    assert said.code == 0
    found = json.loads(said.out)
    assert (found["config"]["schedule"], found["config"]["virtual_stages"]) == (schedule, laps)
    assert found["status"] in ("optimal", "feasible")
    assert verify(read_plan(out)) == []
    simulated = json.loads(command("simulate", out, "--json").out)
    assert simulated["step_time_s"] == found["step_time_s"]
    assert all(f <= p for f, p in zip(simulated["peak_memory_bytes"], found["peak_memory_bytes"], strict=True))


def test_a_schedule_that_no_degrees_allow(command: Command, tmp_path: Path, cluster_file: Path) -> None:
    out = tmp_path / "plan.json"
    pin = write(tmp_path / "pins.toml", '[config]\npp = 2\nmicro_batch = 4\nschedule = "interleaved"')
    said = command("search", *SMALL, "--cluster", cluster_file, "--pin", pin, "--out", out)
    assert said.code == 3
    assert "the smallest set of pins that contradict each other" in said.err
    pin = write(tmp_path / "pins.toml", '[config]\nvirtual_stages = 5\nschedule = "interleaved"')
    said = command("search", *SMALL, "--cluster", cluster_file, "--pin", pin, "--out", out)
    assert said.code == 3
    assert "has schedule = interleaved and virtual_stages = 5: the smallest set" in said.err


def test_the_passes_are_dumped_in_their_order(command: Command, tmp_path: Path, cluster_file: Path) -> None:
    pin = write(tmp_path / "pins.toml", PINS + 'recompute = "full"\n')
    place = ("--cluster", cluster_file, "--pin", pin, "--out", tmp_path / "plan.json")
    dump = ("--dump-passes", tmp_path / "passes", "--training", "precision=bf16")
    for _ in range(2):
        assert command("search", *SMALL, *place, *dump).code == 0
        names = ["1-forward.txt", "2-mixed_precision.txt", "3-training.txt", "4-recompute.txt"]
        assert sorted(path.name for path in (tmp_path / "passes").iterdir()) == names
    mixed, training = ((tmp_path / "passes" / name).read_text() for name in names[1:3])
    assert mixed.startswith("since forward: ")
    assert "\n~ layers.0.mlp.fc1.matmul: reads layers.0.mlp.fc1.weight, now " in mixed
    assert len(training.split("\n\n")[1].splitlines()) > len(read_plan(tmp_path / "plan.json").graph.ops) / 2


@pytest.mark.parametrize("place", ["file", "none/below"])
def test_passes_are_dumped_into_a_folder(command: Command, tmp_path: Path, cluster_file: Path, place: str) -> None:
    write(tmp_path / "file", "")
    said = command("search", *SMALL, "--cluster", cluster_file, "--dump-passes", tmp_path / place)
    assert said.code == 2
    assert "--dump-passes" in said.err


@pytest.mark.parametrize(
    ("cluster", "settings", "precision"),
    long_but([("dgx-a100:1", [], "bf16"), ("dgx-1:1", [], "full"), ("dgx-a100:1", ["precision=full"], "full")], 0),
)
@exchange_left_alone()
def test_what_a_model_computes_in_follows_from_the_device(
    command: Command, tmp_path: Path, cluster: str, settings: list[str], precision: str
) -> None:
    out, pin = tmp_path / "plan.json", write(tmp_path / "pins.toml", "[config]\ndp = 8\nzero_stage = 0")
    size = ("--seq", "16", "--global-batch", "8", "--pin", pin, "--out", out, "--json")
    said = command("search", "gpt-tiny", "--cluster", cluster, *size, *(["--training", *settings] if settings else []))
    assert said.code == 0, said.err
    assert json.loads(said.out)["precision"] == precision == read_plan(out).training.precision
    assert f"precision {precision}" in said.err


@pytest.mark.long
@exchange_left_alone()
def test_without_incumbents_nothing_is_laid_out_by_rules(
    command: Command, tmp_path: Path, cluster_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[int] = []

    def by_rule(_request: object, _candidates: object, count: int, _budget: object) -> list[object]:
        wanted.append(count)
        return []

    monkeypatch.setattr(strategy.search.search, "solved_by_rule", by_rule)
    monkeypatch.setattr(strategy.search.search, "COMPETITORS", 99)
    pin = write(tmp_path / "pins.toml", "[config]\nnum_micro_batches = 1\nrecompute = 'none'\n")
    argv = ("search", *SMALL, "--cluster", cluster_file, "--pin", pin, "--out", tmp_path / "plan.json")
    assert command(*argv).code == 0
    assert max(wanted) > 0
    wanted.clear()
    assert command(*argv, "--no-incumbents").code == 0
    assert max(wanted, default=0) == 0


def test_the_default_gap_is_that_of_a_request() -> None:
    assert Request.__dataclass_fields__["gap"].default == verb.GAP


def test_progress_says_what_is_known() -> None:
    config = config_of(Training(global_batch=4), dp=2)
    assert verb.progress_text(config, 2 * 10**9, None).endswith("; bound 2 s, best none yet")
    assert verb.progress_text(config, 2 * 10**9, 3 * 10**9).endswith("; bound 2 s, best 3 s")


@pytest.mark.parametrize(
    ("argv", "code", "message"),
    [
        (["--cluster", "dgx-a100:16", "--global-batch", str(10**15)], 2, "expected a whole number of at least 1"),
        (["--cluster", f"dgx-a100:{2**17 + 1}"], 2, "more devices than a plan can list"),
        (["--cluster", "dgx-a100:16", "--time-limit", "0.000001"], 4, "raise the time limit"),
        (["--cluster", f"dgx-a100:{2**17}", "--time-limit", "0.000001"], 4, "raise the time limit"),
    ],
)
def test_what_is_too_large_or_too_short_ends_in_words(
    command: Command, tmp_path: Path, argv: list[str], code: int, message: str
) -> None:
    said = command("search", "gpt2-small", *argv, "--out", tmp_path / "plan.json")
    assert (said.code, said.out) == (code, "")
    assert message in said.err


@pytest.mark.long
def test_a_signal_ends_it_with_the_best_plan(tmp_path: Path) -> None:
    """What had no time has no bound of its own; the plan is whole. Progress says when there is something to keep."""
    out = tmp_path / "plan.json"
    command = [sys.executable, "-m", "experiments", "search", "llama2-70b", "--cluster", "dgx-h200:8"]
    command += ["--global-batch", "64", "--out", str(out), "--time-limit", "80"]
    ours, theirs = os.openpty()
    terminal = {**os.environ, "TERM": "xterm", "COLUMNS": "400"}
    job = subprocess.Popen(command, cwd=ROOT, env=terminal, stderr=theirs)
    os.close(theirs)
    said = b"".join(until(ours, rb"best [0-9]"))
    assert job.poll() is None, said
    job.send_signal(signal.SIGTERM)
    said += b"".join(until(ours, None))
    job.wait(120)
    os.close(ours)
    assert job.returncode == 143, said
    plan = read_plan(out)
    assert verify(plan) == []
    assert plan.claims.status == "limit"


def until(terminal: int, pattern: bytes | None) -> Iterator[bytes]:
    """What a process writes to a terminal, until it has written what matches, or has closed it."""
    seen = b""
    while pattern is None or not re.search(pattern, seen):
        try:
            piece = os.read(terminal, 4096)
        except OSError:  # Linux says so that nobody writes any more
            return
        seen = seen[-100:] + piece
        yield piece
