"""Goldens: what the commands of one commit write, byte for byte, against those of this tree.

    python -m tests.goldens --base COMMIT [--only PATTERN] [--json]

A refactoring is right if nothing that users keep has changed: plans, the programs that plans are lowered to (every act
of them stands in a trace), predictions, choices of the solver with their certificates, and what campaigns cover. The
old commit is checked out into a folder of its own and runs the same commands with the same interpreter. What differs on
purpose stands in `DIFFERENCES`, each difference with its reason; everything else fails.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "experiments" / "reference"
TIMES = frozenset({"search_time_s", "solve_time_s", "simulate_time_s", "first_feasible_s", "peak_rss_bytes", "seconds"})
"""Keys of JSON documents that say how long a command took, or how much memory it had."""

DRAWN = "graphs draw ops in the order of the registry: by module, some of which have other names (skip: skipped_steps)"
DIFFERENCES: Mapping[tuple[str, str, str], str] = {
    ("campaign/layouts", "said0", "$[0].coverage.boxing B>P(max)"): DRAWN,
    ("campaign/layouts", "said0", "$[0].coverage.boxing B>P(min)"): DRAWN,
    ("campaign/layouts", "said0", "$[0].coverage.boxing P(max)>B"): DRAWN,
    ("campaign/layouts", "said0", "$[0].coverage.boxing P(max)>S"): DRAWN,
    ("campaign/layouts", "said0", "$[0].coverage.boxing S>P(max)"): DRAWN,
    ("campaign/layouts", "said0", "$[0].coverage.family linear"): DRAWN,
    ("campaign/layouts", "said0", "$[0].coverage.family skip"): DRAWN,
    ("campaign/layouts", "said0", "$[0].coverage.family skipped_steps"): DRAWN,
    ("campaign/layouts", "said0", "$[0].coverage.kind adjust_scale"): DRAWN,
    ("campaign/layouts", "said0", "$[0].coverage.kind count_step"): DRAWN,
    ("campaign/layouts", "said0", "$[0].coverage.kind div"): DRAWN,
    ("campaign/layouts", "said0", "$[0].coverage.kind full_like"): DRAWN,
    ("campaign/layouts", "said0", "$[0].coverage.kind mul"): DRAWN,
    ("campaign/layouts", "said0", "$[0].coverage.kind neg"): DRAWN,
    ("campaign/layouts", "said0", "$[0].coverage.kind rsqrt"): DRAWN,
    ("campaign/layouts", "said0", "$[0].coverage.kind rsqrt_grad"): DRAWN,
    ("campaign/layouts", "said0", "$[0].coverage.kind scale"): DRAWN,
    ("campaign/layouts", "said0", "$[0].coverage.scaled loss"): DRAWN,
}
"""(case, file, path of the key) -> why it is not what it was; the base is 05620b9."""

CLUSTER = """
name = "golden"
nodes = 2
devices_per_node = 2

[device]
name = "A100"
backend = "cupy"
memory = "40 GB"
memory_bandwidth = "1555 GB/s"
launch = "5 us"
compute = "156 TFLOP/s"
bf16_speedup = 2.0
fp16_speedup = 2.0

[intra]
bandwidth = "300 GB/s"
latency = "3 us"

[inter]
bandwidth = "25 GB/s"
latency = "5 us"

[host]
memory = "512 GB"
memory_bandwidth = "100 GB/s"
compute = "1 TFLOP/s"
bandwidth = "25 GB/s"
latency = "10 us"
"""

FAMILIES = (
    *("gpt-tiny", "llama-tiny", "mixtral-tiny", "bert-tiny", "vit-tiny", "wide-and-deep-tiny", "arcface-tiny"),
    *("mlp-tiny", "resnet-tiny", "vgg-tiny", "inception-tiny"),
)
DEGREES: Mapping[str, Mapping[str, object]] = {
    "data": {"dp": 4, "tp": 1, "pp": 1, "micro_batch": 1},
    "both": {"dp": 2, "tp": 2, "pp": 1, "micro_batch": 1},
    "stages": {"dp": 1, "tp": 2, "pp": 2, "micro_batch": 2},
}
TECHNIQUES: Mapping[str, Mapping[str, object]] = {
    "zero1": {"dp": 2, "tp": 2, "pp": 1, "micro_batch": 1, "zero_stage": 1},
    "zero2": {"dp": 2, "tp": 2, "pp": 1, "micro_batch": 1, "zero_stage": 2},
    "zero3": {"dp": 4, "tp": 1, "pp": 1, "micro_batch": 1, "zero_stage": 3},
    "full-recompute": {"dp": 2, "tp": 2, "pp": 1, "micro_batch": 1, "recompute": "full"},
    "selective-recompute": {"dp": 2, "tp": 2, "pp": 1, "micro_batch": 1, "recompute": "selective"},
    "tiles": {"dp": 2, "tp": 2, "pp": 1, "micro_batch": 1, "tiles": 2, "zero_stage": 3},
    "offload": {"dp": 2, "tp": 1, "pp": 2, "micro_batch": 1, "offload": "all"},
    "ring": {"dp": 1, "cp": 2, "tp": 2, "pp": 1, "micro_batch": 2},
    "heads": {"dp": 1, "cp": 2, "tp": 2, "pp": 1, "micro_batch": 2, "context": "all_to_all"},
    "gpipe": {"dp": 2, "tp": 1, "pp": 2, "micro_batch": 1, "schedule": "gpipe"},
    "interleaved": {"dp": 2, "tp": 1, "pp": 2, "micro_batch": 1, "schedule": "interleaved", "virtual_stages": 2},
    "zero-bubble": {"dp": 2, "tp": 1, "pp": 2, "micro_batch": 1, "schedule": "zb-h1"},
    "zbv": {"dp": 2, "tp": 1, "pp": 2, "micro_batch": 1, "schedule": "zbv", "virtual_stages": 2},
}
LARGE: Mapping[str, tuple[str, str, Mapping[str, object]]] = {
    "gpt2-small": ("gpt2-small", "dgx-a100:1", {"dp": 2, "tp": 2, "pp": 2, "micro_batch": 1}),
    "llama3-8b": ("llama3-8b", "dgx-h100:8", {"dp": 8, "tp": 8, "pp": 1, "micro_batch": 1, "zero_stage": 3}),
    "bert-base": ("bert-base", "v100-ib100:2", {"dp": 8, "tp": 2, "pp": 1, "micro_batch": 2}),
    "vit-b16": ("vit-b16", "dgx-a100:2", {"dp": 16, "tp": 1, "pp": 1, "micro_batch": 8}),
    "resnet18": ("resnet18", "dgx-a100:1", {"dp": 8, "tp": 1, "pp": 1, "micro_batch": 32}),
}
CAMPAIGNS = ("layouts", "transparency", "mutation", "memory", "order", "admission", "boxing-bytes", "solver")


@dataclass(frozen=True, slots=True)
class Case:
    """Commands that run one after another in an empty folder, which `files` are written into before."""

    name: str
    commands: tuple[tuple[str, ...], ...]
    files: tuple[tuple[str, str], ...] = ()


def cases() -> Iterator[Case]:
    """All of them, in the order in which they run."""
    for model in FAMILIES:
        for name, pins in DEGREES.items():
            yield _plan(f"{model}/{name}", model, "cluster.toml", 8, pins, deduce=name != "data")
    for name, pins in TECHNIQUES.items():
        for model, precision in (("gpt-tiny", "full"), ("llama-tiny", "bf16"), ("mixtral-tiny", "fp16")):
            several_laps = "virtual_stages" in pins  # the others have too few layers for them
            if model == "gpt-tiny" or not (several_laps or ("cp" in pins and model == "mixtral-tiny")):
                yield _plan(f"{model}/{name}", model, "cluster.toml", 8, pins, precision=precision, deduce=True)
    yield _plan("searched/gpt-tiny", "gpt-tiny", "cluster.toml", 8, {"pp": 1}, precision="bf16")
    yield _plan("searched/mlp-tiny", "mlp-tiny", "cluster.toml", 8, {})
    for name, (model, cluster, pins) in LARGE.items():
        batch = 2 * int(str(pins["dp"])) * int(str(pins["micro_batch"])) * max(4, int(str(pins["pp"])))
        yield _plan(f"large/{name}", model, cluster, batch, pins, precision="bf16", deduce=True)
    for instance in ("G", "A"):
        problem = str(REFERENCE / "iopddl" / f"asplos-2025-iopddl-{instance}.json.gz")
        yield Case(f"solve/{instance}", (("solve", problem, "--certificate", "certificate.json", "--json"),))
    problem = str(REFERENCE / "iopddl" / "asplos-2025-iopddl-M.json.gz")
    limited = ("solve", problem, "--work-limit", "60", "--certificate", "certificate.json", "--json")
    yield Case("solve/M", (limited,))
    rows = str(REFERENCE / "published" / "training_measurements.csv")
    yield Case("predict", (("predict", rows, "--out", "predictions.csv"),))
    yield Case("validate", (("validate", "--json"),))
    for name in CAMPAIGNS:
        yield Case(f"campaign/{name}", (("-m", "tests.campaigns", name, "--cases", "12", "--seed", "7", "--json"),))


def _plan(
    name: str,
    model: str,
    cluster: str,
    batch: int,
    pins: Mapping[str, object],
    *,
    precision: str = "full",
    deduce: bool = False,
) -> Case:
    """A plan of a configuration, and every act of its step."""
    figures = "".join(f"{key} = {json.dumps(value)}\n" for key, value in pins.items())
    search = ["search", model, "--cluster", cluster, "--global-batch", str(batch), "--pin", "pins.toml", "--json"]
    search += ["--training", f"precision={precision}", "--time-limit", "300", "--out", "plan.json"]
    if deduce:
        search += ["--deduce", "least-cost"]
    simulate = ("simulate", "plan.json", "--trace", "trace.json", "--json")
    files = (("pins.toml", "[config]\n" + figures), ("cluster.toml", CLUSTER))
    return Case(name, (tuple(search), simulate), files)


DRIVER = """
import contextlib, io, json, os, sys
from experiments.entry import main

for folder, files, commands in json.loads(sys.stdin.read()):
    os.makedirs(folder)
    os.chdir(folder)
    for name, text in files:
        open(name, "w").write(text)
    for number, command in enumerate(commands):
        sys.argv = ["sbplan", *command]
        with open(f"said{number}", "w") as said, open(f"told{number}", "w") as told:
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(told):
                code = main()
            said.write(f"exit {code}\\n")
        if code in (0, 4):
            os.remove(f"told{number}")
"""
"""One process for all cases of a tree: starting one is most of what a small case takes."""


def run_cases(chosen: Sequence[Case], tree: Path, folder: Path) -> None:
    """Run cases with the code of `tree`; what each wrote, and said, is in a folder of its number.

    An exit code is a result like any other: a plan that is infeasible must be so in both.
    """
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
    jobs = [(str(folder / str(number)), case.files, case.commands) for number, case in enumerate(chosen)]
    verbs = [job for job in jobs if job[2][0][0] != "-m"]
    subprocess.run(
        [sys.executable, "-c", DRIVER], cwd=tree, env=environment, input=json.dumps(verbs), text=True, check=True
    )
    for place, _, commands in jobs:
        if commands[0][0] == "-m":
            Path(place).mkdir()
            done = subprocess.run(
                [sys.executable, *commands[0]], cwd=tree, env=environment, capture_output=True, text=True, check=False
            )
            Path(place, "said0").write_text(f"{done.stdout}exit {done.returncode}\n")


def differences(case: str, old: Path, new: Path) -> Iterator[str]:
    """What two runs of a case wrote differently, one line each."""
    names = sorted({path.name for folder in (old, new) for path in folder.iterdir()})
    for name in names:
        one, other = old / name, new / name
        if not (one.exists() and other.exists()):
            yield f"{case}: {name}: only the {'old' if one.exists() else 'new'} commit writes it"
            continue
        before, after = _content(one), _content(other)
        if before != after:
            for path in _differing(_document(before), _document(after)):
                if (case, name, path) not in DIFFERENCES:
                    yield f"{case}: {name}: {path}"


def _content(path: Path) -> bytes:
    held = path.read_bytes()
    return gzip.decompress(held) if held[:2] == b"\x1f\x8b" else held


def _document(held: bytes) -> Any:
    """The JSON of a file without figures of this run alone; its text where it is none."""
    text = held.decode()
    with contextlib.suppress(ValueError):
        return _timeless(json.loads(text))
    lines: list[Any] = []
    for line in text.splitlines():
        try:
            lines.append(_timeless(json.loads(line)))
        except ValueError:
            lines.append(line)
    return lines


def _timeless(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _timeless(value) for key, value in content.items() if key not in TIMES}
    return [_timeless(item) for item in content] if isinstance(content, list) else content


def _differing(one: Any, other: Any, path: str = "$") -> Iterator[str]:
    """Paths at which two documents differ, at most one below each list."""
    if isinstance(one, dict) and isinstance(other, dict):
        for key in sorted({*one, *other}):
            if key not in one or key not in other:
                yield f"{path}.{key}"
            elif one[key] != other[key]:
                yield from _differing(one[key], other[key], f"{path}.{key}")
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        unequal = (position for position, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1])
        for position in islice(unequal, 1):
            yield from _differing(one[position], other[position], f"{path}[{position}]")
    elif one != other:
        yield path


def compare(base: str, patterns: Sequence[str]) -> dict[str, object]:
    """Run every case whose name matches with both trees, at once; what differed."""
    chosen = [case for case in cases() if any(fnmatchcase(case.name, pattern) for pattern in patterns)]
    found: list[str] = []
    statuses: Counter[str] = Counter()
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as made:
        folder, tree = Path(made), Path(made) / "tree"
        subprocess.run(["git", "worktree", "add", "--detach", "--quiet", tree, base], cwd=ROOT, check=True)
        try:
            with ThreadPoolExecutor(2) as both:
                for done in [
                    both.submit(run_cases, chosen, where, folder / name)
                    for where, name in ((tree, "old"), (ROOT, "new"))
                ]:
                    done.result()
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", tree], cwd=ROOT, check=True)
        for number, case in enumerate(chosen):
            statuses[(folder / "new" / str(number) / "said0").read_text().splitlines()[-1]] += 1
            found += differences(case.name, folder / "old" / str(number), folder / "new" / str(number))
    seconds = round(time.monotonic() - started, 1)
    return {"cases": len(chosen), "statuses": dict(statuses), "differences": found, "seconds": seconds}


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.goldens", description=__doc__)
    parser.add_argument("--base", required=True, metavar="COMMIT", help="the commit that was right")
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="names of cases")
    args = parser.parse_args()
    found = compare(args.base, args.only)
    print(json.dumps(found))
    return int(bool(found["differences"]) or not found["cases"])


if __name__ == "__main__":
    sys.exit(main())
