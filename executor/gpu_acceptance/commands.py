"""Parts of acceptance that are a user's commands: plans on one rank and more, training, faults, a measured timeline."""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from executor.gpu_acceptance.bench import Bench
from executor.gpu_acceptance.outcome import Figures, PartFailed
from strategy.base.files import write_atomic

_SBPLAN = ("-m", "experiments.entry")
_SEARCH_S, _TRAIN_S = 120.0, 300.0
_LATE_STEPS = 15
"""Of a training, which are not timed act by act."""
_ALIKE = 1e-2
"""Of losses of one model on one rank and on more, in bfloat16."""
_FAULT_S = 60.0
_LACKS_ROOM, _NOT_PROVED = 5, 4
"""Codes of a run that its devices have no room for, and of a plan that is there but not shown to be the best."""
_TOLD_BYTES = 2**46
"""What the search is told that there is, so that it lets by what does not fit."""
TOO_LARGE = ("gpt2-345m", 1024)
"""A model, and more samples than any device holds the activations of."""
CALM = ("lr=0.0003",)
"""A rate at which a difference of the last bit does not grow: plans add up in different orders."""
PLANS = {
    "data": {"dp": 2, "tp": 1, "pp": 1},
    "tensor": {"dp": 1, "tp": 2, "pp": 1},
    "pipeline": {"dp": 1, "tp": 1, "pp": 2},
    "mixed": {"dp": 2, "tp": 1, "pp": 2},
}
"""Plans that are to train as one rank does; on a machine with one device, their ranks share it."""
GPT = ("gpt2-345m", 8)
"""A preset, and samples of a step, all of them one micro-batch; `pytorch` has the same."""
LLAMA_BATCH = 4
LLAMA_1B = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 2048,
    "num_hidden_layers": 16,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 8192,
    "vocab_size": 128256,
    "max_position_embeddings": 2048,
    "rope_theta": 500000.0,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": True,
}
"""The shape of Llama 3.2 1B (Meta 2024), in Hugging Face's keys; positions are as many as are trained on."""
_CLUSTER = """name = "acceptance"
nodes = 1
devices_per_node = {devices}

[device]
name = "first"
backend = "cupy"
memory = "{memory_bytes} B"
memory_bandwidth = "2 TB/s"
launch = "5 us"
compute = "150 TFLOP/s"
bf16_speedup = 2.0
fp16_speedup = 2.0
fp8_speedup = 4.0
mx_scales = true
nvfp4_speedup = 8.0

[intra]
bandwidth = "100 GB/s"
latency = "5 us"
"""
"""Rates do not matter here, for the pins leave one configuration; memory does, and that all codes have a rate."""


def plans(bench: Bench) -> Figures:
    """Tiny models by every kind of plan: the losses of one rank."""
    with folder_of_plans() as folder:
        right = _losses(bench, folder, "gpt-tiny", {"dp": 1, "tp": 1, "pp": 1}, steps=8, batch=16)
        figures: dict[str, Any] = {"one rank": right}
        for name, degrees in PLANS.items():
            figures[name] = _losses(bench, folder, "gpt-tiny", degrees, steps=8, batch=16)
    worst = {name: max(abs(a - b) / abs(b) for a, b in zip(figures[name], right, strict=True)) for name in PLANS}
    figures["differences"] = worst
    wrong = [name for name, difference in worst.items() if not difference <= _ALIKE]
    if wrong:
        raise PartFailed(f"plans that train otherwise than one rank: {', '.join(wrong)}", figures)
    return figures


def training(bench: Bench) -> Figures:
    """Models of a size that people train: tokens in a second, and losses that fall."""
    figures: dict[str, Any] = {}
    with folder_of_plans() as folder:
        config = folder / "llama-1b.json"
        write_atomic(config, json.dumps(LLAMA_1B))
        llama = str(config), LLAMA_BATCH
        for (model, batch), precision in ((GPT, "bf16"), (llama, "bf16"), (llama, "fp8-current")):
            plan = make_plan(bench, folder, model, {"dp": 1, "tp": 1, "pp": 1}, batch=batch, precision=precision)
            reports, _ = train(bench, plan, steps=50)
            losses = [report["loss"] for report in reports]
            late = reports[-_LATE_STEPS:]
            figures[f"{Path(model).stem} {precision}"] = {
                "losses": losses,
                "step_s": median(report["step_time_s"] for report in late),
                "tokens_per_s": median(report["tokens_per_s"] for report in late),
            }
            if not losses[-1] < losses[0]:
                raise PartFailed(f"{model} does not learn: {losses[0]:.3f}, then {losses[-1]:.3f}", figures)
    return figures


def faults(bench: Bench) -> Figures:
    """A step that does not fit into the device's memory ends soon, with code 5 and the reason.

    Ranks that are killed or stopped end as they do without a device, which the tests of the supervision show.
    """
    model, batch = TOO_LARGE
    with folder_of_plans() as folder:
        plan = make_plan(bench, folder, model, {"dp": 1, "tp": 1, "pp": 1}, batch=batch, memory_bytes=_TOLD_BYTES)
        arguments = ("train", str(plan), "--backend", "cupy", "--launch", "--steps", "2", "--json")
        begin = time.perf_counter()
        code, written = run_sbplan(bench, arguments, _FAULT_S)
    figures = {"code": code, "seconds": time.perf_counter() - begin, "says": last_line(written)}
    if code != _LACKS_ROOM or "memory" not in written:
        raise PartFailed(f"a step that does not fit ends with code {code}: {last_line(written)}", figures)
    return figures


def profile(bench: Bench) -> Figures:
    """A run leaves a timeline, and measurements that a calibration is fitted to."""
    with folder_of_plans() as folder:
        plan = make_plan(bench, folder, "gpt-tiny", {"dp": 1, "tp": 1, "pp": 1}, batch=16)
        arguments = ("train", str(plan), "--backend", "cupy", "--launch", "--steps", "8", "--json")
        code, written = run_sbplan(bench, arguments, _TRAIN_S)
        if code:
            raise PartFailed(f"train ends with code {code}: {last_line(written)}")
        lines = _documents(written)
    summary = lines[-1] if lines else {}
    run = Path(summary.get("run", ""))
    missing = [name for name in ("timeline.json.gz", "measurements.json") if not (run / name).exists()]
    if missing:
        raise PartFailed(f"the run leaves no {' and no '.join(missing)}", {"summary": summary})
    return {"summary": summary}


def run_sbplan(bench: Bench, arguments: Sequence[str], limit_s: float) -> tuple[int, str]:
    """Run a verb: its exit code, and what it wrote."""
    return bench.command((*_SBPLAN, *arguments), limit_s)


def _losses(
    bench: Bench, folder: Path, model: str, degrees: Mapping[str, int], *, steps: int, batch: int
) -> list[float]:
    plan = make_plan(bench, folder, model, degrees, batch=batch, recipe=CALM)
    return [report["loss"] for report in train(bench, plan, steps=steps)[0]]


def train(
    bench: Bench, plan: Path, *, steps: int, backend: str = "cupy"
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The reports of a training, and its summary.

    Raises:
        PartFailed: it fails, or a loss is no number.
    """
    on = ("--backend", "cupy", "--share-devices") if backend == "cupy" else ("--backend", backend)
    code, written = run_sbplan(bench, ("train", str(plan), *on, "--launch", "--steps", str(steps), "--json"), _TRAIN_S)
    if code:
        raise PartFailed(f"train {plan.stem} ends with code {code}: {last_line(written)}")
    documents = _documents(written)
    reports = [found for found in documents if "loss" in found and "step" in found]
    if len(reports) != steps or not all(math.isfinite(report["loss"] or math.nan) for report in reports):
        raise PartFailed(f"train {plan.stem} gives {len(reports)} finite losses of {steps}")
    return reports, documents[-1]


def make_plan(
    bench: Bench,
    folder: Path,
    model: str,
    degrees: Mapping[str, int],
    *,
    batch: int,
    memory_bytes: int = 0,
    precision: str = "bf16",
    recipe: Sequence[str] = (),
    calibration: Path | None = None,
) -> Path:
    """A plan file for a model by degrees, with fused ops.

    There is one micro-batch but for pipelines; ranks share the devices that there are.
    """
    sizes = (f"{key}{value}" for key, value in degrees.items())
    name = "-".join((Path(model).name, precision, *sizes, str(batch)))
    pins, cluster, plan = (folder / f"{name}.{kind}" for kind in ("pins.toml", "cluster.toml", "json"))
    count, devices = degrees["pp"], math.prod(degrees.values())
    settings = {**degrees, "num_micro_batches": count, "micro_batch": batch // (count * degrees["dp"])}
    write_atomic(pins, "[config]\n" + "".join(f"{key} = {value}\n" for key, value in settings.items()))
    runtime = bench.xp.cuda.runtime
    share = runtime.memGetInfo()[1] * min(1.0, runtime.getDeviceCount() / devices)
    write_atomic(cluster, _CLUSTER.format(devices=devices, memory_bytes=memory_bytes or int(share)))
    given = ("--cluster", str(cluster), "--global-batch", str(batch), "--pin", str(pins), "--out", str(plan))
    how = ("--deduce", "least-cost", "--training", f"precision={precision}", "fused=true", *recipe)
    fitted = () if calibration is None else ("--calibration", str(calibration))
    code, written = run_sbplan(bench, ("search", model, *given, *how, *fitted), _SEARCH_S)
    if code not in (0, _NOT_PROVED):
        raise PartFailed(f"search {name} ends with code {code}: {last_line(written)}")
    return plan


def _documents(written: str) -> list[dict[str, Any]]:
    """The JSON objects among lines."""
    return [json.loads(line) for line in written.splitlines() if line.startswith("{")]


def last_line(written: str) -> str:
    """The last of what a command wrote."""
    lines: Sequence[str] = written.strip().splitlines()
    return lines[-1] if lines else "it says nothing"


@contextmanager
def folder_of_plans() -> Iterator[Path]:
    """For files of commands."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)
