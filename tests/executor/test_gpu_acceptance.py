"""Acceptance of a first device, as a dry run over stand-ins for the device and its libraries."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from executor.gpu_acceptance import __main__ as command
from executor.gpu_acceptance import array_code, beside_host, commands, endurance, killed, parts, pytorch
from executor.gpu_acceptance import bench as benches
from executor.gpu_acceptance.bench import SMALL, Bench
from executor.gpu_acceptance.collectives import checked
from executor.gpu_acceptance.experts import OPERANDS
from executor.gpu_acceptance.outcome import LeftOut, PartFailed, PartOutcome, PartStatus, read_outcomes, write_outcomes
from executor.gpu_acceptance.parts import LIMIT_S, PARTS, outcome_of, run_parts
from executor.gpu_acceptance.samples import kernel_samples, product_samples, samples_of_codes
from executor.runtime.kernels.gpu import build
from executor.runtime.kernels.gpu.cublaslt import ProductPlans
from executor.runtime.kernels.gpu.cudnn import AttentionPlans
from executor.runtime.kernels.gpu.device import DeviceActs
from executor.runtime.kernels.gpu.launch import Launch
from executor.runtime.kernels.gpu.program import ELEMENTS
from executor.runtime.kernels.gpu.table import LAUNCHES, ON_ROWS, PRODUCTS, PRODUCTS_OF_CODES
from executor.runtime.kernels.numpy import NumpyKernels
from executor.supervision.heartbeat import Heartbeat, heartbeat_path, identify, process_state
from experiments.cli import parse
from strategy.base.errors import EnvironmentLacks, InputError
from strategy.graph.ops import REGISTRY
from strategy.sbp.tensor import DType
from tests.support.cuda_on_host import device
from tests.support.cuda_on_host.host_cublaslt import HostCublasLt
from tests.support.cuda_on_host.host_cudnn import HostCudnn
from tests.support.cuda_on_host.host_cupy import DeviceArray, HostCupy
from tests.support.long_parameters import long_but

LONG = 1000
SLEEPS = "import time; time.sleep(60)"
TINY = SMALL
"""Of what is timed: the same as of what is checked."""


class HostKernels:
    """Kernels that run on the host, from their own sources, before products and before anything is copied back."""

    def __init__(self) -> None:
        self._waiting: list[Launch] = []

    def bind(self, launch: Launch) -> Callable[[int], None]:
        return lambda number: self._waiting.append(launch)

    def run(self) -> None:
        for element, launches in itertools.groupby(self._waiting, lambda launch: launch.element):
            device.run(device.build(element), list(launches))
        self._waiting.clear()


class ProductsInOrder(HostCublasLt):
    """The library of products, behind what was launched before."""

    def __init__(self, host: HostKernels) -> None:
        super().__init__()
        self._host = host

    def _matmul(self, *given: int) -> None:
        self._host.run()
        super()._matmul(*given)


class HostNccl:
    """NCCL over one rank: what is sent is what is received."""

    NcclCommunicator = staticmethod(lambda size, unique, rank: HostNccl())

    @staticmethod
    def get_version() -> int:
        return 23204

    @staticmethod
    def get_unique_id() -> bytes:
        return b"unique"

    def allReduce(self, source: int, target: int, count: int, dtype: int, op: int, stream: int) -> None:
        assert (dtype, stream) == (7, 7)
        np.copyto(_floats(target, count), _floats(source, count))

    reduceScatter = allReduce

    def allGather(self, source: int, target: int, count: int, dtype: int, stream: int) -> None:
        self.allReduce(source, target, count, dtype, 0, stream)

    def destroy(self) -> None:
        """Nothing is held."""


def _floats(address: int, count: int) -> np.ndarray:
    import ctypes

    return np.frombuffer((ctypes.c_uint8 * (4 * count)).from_address(address), np.float32)


class Commands:
    """Commands of ours, parsed as they are when they run; what they would print is made up here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.given: list[str] = []
        self.codes: dict[str, int] = {}
        self.worse = ""
        self.trainings = 0
        self.summary = {"run": str(folder), "final_loss": 1.0, "predicted_step_time_s": 0.1}

    def __call__(self, arguments: Sequence[str], limit_s: float) -> tuple[int, str]:
        assert limit_s < LIMIT_S
        if arguments[1] == "executor.gpu_acceptance":
            return self.codes.get("ranks", 0), '{"rank": 0}\n{"rank": 1}\n'
        verb, *rest = arguments[2:]
        _, args = parse(verb, rest)
        self.given.append(verb)
        if verb == "search":
            assert args.deduce == "least-cost"
            assert "fused=true" in args.training
            return self.codes.get("search", 0), "a plan"
        if verb == "refine":
            return self.codes.get("refine", 0), "a calibration"
        assert args.launch
        assert args.backend == "cupy" or not args.share_devices
        if args.steps >= LONG:
            return self.long_training(args.plan, args.steps)
        name = args.plan.name
        if name.startswith(commands.TOO_LARGE[0]) and str(commands.TOO_LARGE[1]) in name:
            return self.codes.get("large", 5), "sbplan: rank 0: out of memory: register h1 of actor fc1"
        worse = 1.5 if self.worse and self.worse in name else 1.0
        reports = [
            {"step": step, "loss": worse * 5 / (1 + step), "step_time_s": 0.1, "tokens_per_s": 1e4}
            for step in range(args.steps)
        ]
        for file in ("timeline.json.gz", "measurements.json"):
            (self.folder / file).touch()
        return 0, "\n".join(map(json.dumps, [*reports, self.summary]))

    def long_training(self, plan: Path, steps: int) -> tuple[int, str]:
        """Ranks that are processes with heartbeats, until a signal comes, or a second has passed."""
        self.trainings += 1
        run = self.folder / "runs" / f"train-{self.trainings}"
        run.mkdir(parents=True)
        count = 2 if "tp2" in plan.name else 1
        ranks = [subprocess.Popen([sys.executable, "-c", SLEEPS, str(plan)]) for _ in range(count)]
        for number, rank in enumerate(ranks):
            heartbeat = Heartbeat(heartbeat_path(run, number))
            heartbeat.start(1, identify(rank.pid))
            heartbeat.enter(identify(rank.pid))
            heartbeat.beat(0, 1)
        deadline_s = time.monotonic() + 1.0
        while time.monotonic() < deadline_s and all(process_state(identify(one.pid)) in ("R", "S") for one in ranks):
            time.sleep(0.01)
        hit = [number for number, one in enumerate(ranks) if process_state(identify(one.pid)) not in ("R", "S")]
        for rank in ranks:
            rank.kill()
            rank.wait()
        if hit:
            return self.codes.get("killed", 6), f"sbplan: rank {hit[0]} (pid 1 on a) failed: killed\nsbplan: see {run}"
        return 0, "\n".join(json.dumps({"step": step, "loss": 1.0, "step_time_s": 0.1}) for step in range(3))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A bench whose device and libraries are the host; kernels of one element type, for time."""
    from executor.gpu_acceptance import array_code, endurance, experts, kernels, killed, under_way

    monkeypatch.setattr(array_code, "open_kernels", lambda backend: NumpyKernels())
    monkeypatch.setattr(endurance, "SAMPLE_S", 0.01)
    monkeypatch.setattr(killed, "LATE_S", 0.0)
    monkeypatch.setattr(under_way, "TRAINING_RUNS", tmp_path / "runs")
    monkeypatch.setattr(kernels, "ELEMENTS", {DType.BFLOAT16: ELEMENTS[DType.BFLOAT16]})
    monkeypatch.setattr(experts, "ELEMENTS", {DType.BFLOAT16: ELEMENTS[DType.BFLOAT16]})
    monkeypatch.setattr(build, "ELEMENTS", {DType.BFLOAT16: ELEMENTS[DType.BFLOAT16]})
    monkeypatch.setattr(build, "ARCHITECTURES", (90,))
    monkeypatch.setattr(kernels, "WANTED_OF_COPY", 0.0)
    monkeypatch.setattr(kernels, "WANTED_OF_BEST", 0.0)
    xp = HostCupy()
    host = HostKernels()
    products, attention = ProductPlans(ProductsInOrder(host)), AttentionPlans(HostCudnn())
    acts: Any = DeviceActs(xp, host, products, attention)  # type: ignore[arg-type]
    plain = DeviceArray.get
    monkeypatch.setattr(DeviceArray, "get", lambda array, out=None: (host.run(), plain(array, out))[1])
    return Bench(xp, acts, products, attention, TINY, Commands(tmp_path), HostNccl())


@pytest.mark.parametrize("every", long_but([40, 1]))
def test_a_dry_run_of_the_whole(bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int) -> None:
    """Every part but PyTorch's, which needs a device of its own; the file holds what each showed, of kernels some."""
    from executor.gpu_acceptance import kernels

    monkeypatch.setattr(kernels, "kernel_samples", lambda *given: list(kernel_samples(*given))[::every])
    monkeypatch.setattr(array_code, "REGISTRY", list(REGISTRY)[::every])
    out, told = tmp_path / "out.json", []
    monkeypatch.setattr(parts, "PARTS", {**PARTS, "pytorch": _leave_out})
    outcomes = run_parts(out, list(PARTS), lambda name: outcome_of(name, lambda: bench), told.append)
    assert {name: (one.status, one.problem) for name, one in outcomes.items() if name != "pytorch"} == {
        name: (PartStatus.SUCCEEDED, "") for name in PARTS if name != "pytorch"
    }
    assert outcomes["pytorch"].status is PartStatus.LEFT_OUT
    assert [line.partition(":")[0] for line in told] == list(PARTS)
    assert read_outcomes(out) == outcomes
    found = {name: json.loads(one.figures) for name, one in outcomes.items()}
    assert found["environment"]["code"] == "sm_90"
    assert set(found["build"]["most_registers"]) >= {"swiglu", "adamw"}
    kinds = {name.split()[0] for name in found["kernels"]["acts"]}
    assert kinds == set(LAUNCHES) if every == 1 else kinds < set(LAUNCHES)
    assert all(row["seconds"] > 0 and row["of_copy"] > 0 for row in found["kernels"]["acts"].values())
    assert {*PRODUCTS, *PRODUCTS_OF_CODES} <= {name.split()[0] for name in found["products"]["products"]}
    assert {name.split()[0] for name in found["experts"]["acts"]} == set(ON_ROWS)
    assert all(row["seconds"] > 0 for row in found["experts"]["acts"].values())
    assert all(row["by_cudnn"] for row in found["attention"]["acts"].values())
    assert found["plans"]["differences"] == dict.fromkeys(commands.PLANS, 0.0)
    assert set(found["training"]) == {"gpt2-345m bf16", "llama-1b bf16", "llama-1b fp8-current"}
    assert set(found["beside_host"]) == {small.name for small in beside_host.SMALL_TRAININGS}
    assert {found["killed"][name]["code"] for name in ("SIGKILL", "SIGSTOP")} == {6}
    assert found["endurance"]["grown_bytes"]["device"] == 0
    assert found["faults"]["code"] == 5


def _leave_out(bench: Bench) -> Any:
    raise LeftOut("no device")


def test_every_kind_with_kernels_has_a_case() -> None:
    assert {sample.kind for sample in kernel_samples(SMALL, DType.BFLOAT16)} == set(LAUNCHES)
    assert set(product_samples(SMALL, DType.BFLOAT16)) == set(PRODUCTS)
    assert set(samples_of_codes(SMALL, DType.BFLOAT16)) == set(PRODUCTS_OF_CODES)
    assert {launches.__name__ for launches in OPERANDS} == set(ON_ROWS)


def test_a_part_that_fails_hides_no_other_and_is_run_again(tmp_path: Path) -> None:
    out, ran = tmp_path / "out.json", []
    results = {
        "build": [PartOutcome(PartStatus.FAILED, 1.0, "spills", "{}"), PartOutcome(PartStatus.SUCCEEDED, 1.0, "", "{}")]
    }

    def run(name: str) -> PartOutcome:
        ran.append(name)
        return results.get(name, [PartOutcome(PartStatus.SUCCEEDED, 0.0, "", '{"a": 1}')]).pop(0)

    names = ["environment", "build", "kernels"]
    results |= {name: [PartOutcome(PartStatus.SUCCEEDED, 0.0, "", '{"a": 1}')] for name in ("environment", "kernels")}
    told: list[str] = []
    run_parts(out, names, run, told.append)
    assert ran == names
    assert told[1] == "build: failed in 1 s: spills"
    run_parts(out, names, run, told.append)
    assert ran == [*names, "build"]
    assert all(one.succeeded for one in read_outcomes(out).values())


@pytest.mark.parametrize(
    ("error", "status", "figures"),
    [
        (PartFailed("slow", {"share": 0.5}), PartStatus.FAILED, '{"share": 0.5}'),
        (LeftOut("no mpiexec"), PartStatus.LEFT_OUT, "{}"),
        (EnvironmentLacks("no cubins"), PartStatus.FAILED, "{}"),
        (ZeroDivisionError("division by zero"), PartStatus.FAILED, "ZeroDivisionError: division by zero"),
    ],
)
def test_whatever_goes_wrong_in_a_part_is_its_outcome(
    monkeypatch: pytest.MonkeyPatch, bench: Bench, error: Exception, status: PartStatus, figures: str
) -> None:
    def broken(bench: Bench) -> Any:
        raise error

    monkeypatch.setattr(parts, "PARTS", {"kernels": broken})
    found = outcome_of("kernels", lambda: bench)
    assert found.status == status
    assert figures in found.figures, "a traceback, where nobody has foreseen it"
    assert str(error) in found.problem


def test_kernels_that_are_wrong_or_slow_fail_by_name(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    from executor.gpu_acceptance import kernels

    rows = {"silu bfloat16": {"error": 0.5, "most": 0.01}, "gelu bfloat16": {"error": 0.0, "most": 0.01, "fast": False}}
    with pytest.raises(PartFailed, match=r"silu bfloat16 is off by 0\.5; slow: gelu bfloat16"):
        kernels.judged({"acts": rows}, rows)
    rows = {"silu bfloat16": {"error": float("nan"), "most": 0.01}}
    with pytest.raises(PartFailed, match="off by nan"):
        kernels.judged({"acts": rows}, rows)
    refusing = HostCudnn()
    refusing.refuses = True
    bench = Bench(bench.xp, bench.acts, bench.products, AttentionPlans(refusing), TINY, bench.command)
    monkeypatch.setattr(bench.acts, "_attention", bench.attention)
    with pytest.raises(PartFailed, match=r"cuDNN has no kernel for q\[4, 16, 16, 64\] forward"):
        kernels.attention(bench)


def test_plans_that_train_otherwise_fail_by_name(bench: Bench) -> None:
    bench.command.worse = "tp2"  # type: ignore[attr-defined]
    with pytest.raises(PartFailed, match="otherwise than one rank: tensor"):
        commands.plans(bench)


def test_small_models_that_learn_otherwise_than_on_the_host_fail_by_name(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = commands.train

    def off(*given: Any, backend: str, **options: Any) -> Any:
        reports, summary = trained(*given, backend=backend, **options)
        worse = 1.0 + 4e-3 * (backend == "cupy" and "nvfp4" not in str(given[1]))
        return [report | {"loss": report["loss"] * worse} for report in reports], summary

    monkeypatch.setattr(beside_host, "train", off)
    with pytest.raises(PartFailed, match=r"gpt-tiny bf16 is off by 0\.004") as failure:
        beside_host.beside_host(bench)
    assert "fp16" not in str(failure.value), "within what halves with scaled losses may differ by"
    bench.command.codes["search"] = 2  # type: ignore[attr-defined]
    with pytest.raises(PartFailed, match=r"gpt-tiny mxfp8 search .* ends with code 2"):
        beside_host.beside_host(bench)


def test_ranks_that_end_otherwise_fail_by_signal(bench: Bench) -> None:
    bench.command.codes["killed"] = 1  # type: ignore[attr-defined]
    with pytest.raises(PartFailed, match=r"SIGKILL: code 1 .*; SIGSTOP: code 1"):
        killed.killed(bench)


def test_memory_that_grows_fails_by_name(bench: Bench) -> None:
    free = itertools.count(1 << 33, -(1 << 20))
    bench.xp.cuda.runtime.memGetInfo = lambda: (next(free), 1 << 34)
    with pytest.raises(PartFailed, match="the device's memory grows by"):
        endurance.endurance(bench)


def test_an_op_that_fails_hides_no_other(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(NumpyKernels):
        def bind(self, definition: Any, call: Any) -> Any:
            if definition.kind == "relu":
                raise AttributeError("CuPy has no such function")
            if definition.kind == "mul":
                call.outputs[0][...] = 3
                return SimpleNamespace(run=lambda: None)
            return super().bind(definition, call)

    backends = {"numpy": NumpyKernels, "cupy": Other}
    monkeypatch.setattr(array_code, "open_kernels", lambda backend: backends[backend]())
    monkeypatch.setattr(array_code, "REGISTRY", ["relu", "mul", "add"])
    with pytest.raises(PartFailed, match="such as relu 0: AttributeError: CuPy has no such") as failure:
        array_code.array_code(bench)
    problems = failure.value.figures["problems"]
    assert {name.split()[0] for name in problems} == {"relu", "mul"}


@pytest.mark.parametrize(("which", "code"), [("search", 2), ("large", 1)])
def test_a_command_that_ends_otherwise_fails_its_part(bench: Bench, which: str, code: int) -> None:
    bench.command.codes[which] = code  # type: ignore[attr-defined]
    with pytest.raises(PartFailed, match=f"code {code}"):
        commands.faults(bench)


def test_two_ranks_without_mpiexec_are_left_out(bench: Bench) -> None:
    bench.command.codes["ranks"] = 5  # type: ignore[attr-defined]
    found = outcome_of("collectives", lambda: bench)
    assert found.status is PartStatus.LEFT_OUT


def test_a_collective_that_is_wrong_is_named(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HostNccl, "allGather", lambda *arguments: None)
    with pytest.raises(PartFailed, match="all_gather over 1 ranks"):
        checked(bench.xp, bench.nccl, 0, 1, b"")


def test_without_a_device_it_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    assert command.main(["--json", str(tmp_path / "out.json")]) == 5
    assert "CuPy" in capsys.readouterr().err
    monkeypatch.setitem(
        __import__("sys").modules, "cupy", SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    )
    assert command.main(["--json", str(tmp_path / "out.json")]) == 5
    assert "nvidia-smi" in capsys.readouterr().err
    assert not (tmp_path / "out.json").exists()


def test_the_command_runs_parts_apart_and_ends_by_their_verdicts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(command, "require_device", HostCupy)
    out = tmp_path / "out.json"
    passed = {"environment": PartOutcome(PartStatus.SUCCEEDED, 1.0, "", "{}")}

    def child(arguments: Sequence[str], limit_s: float) -> tuple[int, str]:
        assert limit_s == LIMIT_S
        if arguments[-1] == "environment":
            write_outcomes(Path(arguments[4]), passed)
            return 0, ""
        return -11, "Segmentation fault"

    monkeypatch.setattr(command, "run_command", child)
    assert command.main(["--json", str(out), "--parts", "environment"]) == 0
    assert command.main(["--json", str(out), "--parts", "environment", "build"]) == 1
    assert read_outcomes(out)["build"].problem == "ended with code -11: ['Segmentation fault']"


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    for text in ("{}", "no json", '{"format": "other", "version": 1, "parts": {}}'):
        (tmp_path / "out.json").write_text(text)
        with pytest.raises(InputError):
            read_outcomes(tmp_path / "out.json")


def test_a_command_that_takes_too_long_is_ended() -> None:
    assert benches.run_command(("-c", "print(3)"), 60.0) == (0, "3\n")
    code, written = benches.run_command(("-c", "import time; print(4, flush=True); time.sleep(60)"), 1.0)
    assert (code, written.splitlines()[-1]) == (124, "ended after 1 s")


def test_pytorch_is_left_out_where_it_is_not(monkeypatch: pytest.MonkeyPatch, bench: Bench) -> None:
    monkeypatch.setitem(__import__("sys").modules, "torch", None)
    with pytest.raises(LeftOut, match="not installed"):
        pytorch.pytorch(bench)
