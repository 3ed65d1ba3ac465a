"""Part of acceptance: a long training holds no more memory at its end than it did soon after its beginning."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, median
from typing import Any

from executor.gpu_acceptance.bench import Bench
from executor.gpu_acceptance.commands import GPT, folder_of_plans, last_line, make_plan
from executor.gpu_acceptance.outcome import Figures, PartFailed
from executor.gpu_acceptance.under_way import UnderWay
from executor.supervision.heartbeat import Beat

_STEPS = 1000
_LIMIT_S = 300.0
SAMPLE_S = 1.0
_MOST_GROWN_BYTES = {"device": 1 << 20, "host": 16 << 20}
_MOST_IDLE = 0.03
_FEWEST = 8
"""Samples, of which the second half is held against what came before."""


@dataclass(frozen=True, slots=True)
class MemorySample:
    """What is held at one moment, in bytes, and in how much of the time before the device had work."""

    device: int
    host: int
    busy: float | None


def endurance(bench: Bench) -> Figures:
    """A thousand steps: memory of device and host by the second, and the share of time in which the device is idle."""
    model, batch = GPT
    samples: list[MemorySample] = []
    with folder_of_plans() as folder:
        plan = make_plan(bench, folder, model, {"dp": 1, "tp": 1, "pp": 1}, batch=batch)
        training = UnderWay(bench, plan, steps=_STEPS, limit_s=_LIMIT_S)
        training.until(lambda beats: all(one.actor >= 0 for one in beats))
        while training.goes_on:
            beats = training.beats()
            if beats:
                samples.append(_sample(bench, beats))
            time.sleep(SAMPLE_S)
        code, written = training.end()
    if code:
        raise PartFailed(f"train ends with code {code}: {last_line(written)}")
    reports = [json.loads(line) for line in written.splitlines() if line.startswith("{")]
    times = [report["step_time_s"] for report in reports if "step_time_s" in report]
    figures: dict[str, Any] = {
        "samples": [asdict(one) for one in samples],
        "steps": len(times),
        "step_s": median(times),
        "grown_bytes": {kind: _grown([getattr(one, kind) for one in samples]) for kind in _MOST_GROWN_BYTES},
    }
    busy = [one.busy for one in samples[len(samples) // 3 : -1] if one.busy is not None]
    if busy:
        figures["idle"] = 1 - fmean(busy)
    problems = [
        f"the {kind}'s memory grows by {figures['grown_bytes'][kind] / 1e6:.1f} MB"
        for kind, most in _MOST_GROWN_BYTES.items()
        if figures["grown_bytes"][kind] > most
    ]
    problems += [f"{len(samples)} samples of a training that is too short"] if len(samples) < _FEWEST else []
    problems += [f"the device is idle for {figures['idle']:.1%}"] if figures.get("idle", 0.0) > _MOST_IDLE else []
    if problems:
        raise PartFailed("; ".join(problems), figures)
    return figures


def _grown(held: Sequence[int]) -> int:
    """From the second quarter, when everything has been allocated, to the last before the end."""
    quarter = len(held) // 4
    return max(held[3 * quarter : -1], default=0) - max(held[quarter : 2 * quarter], default=0)


def _sample(bench: Bench, beats: Sequence[Beat]) -> MemorySample:
    free, total = bench.xp.cuda.runtime.memGetInfo()
    host = sum(_resident_bytes(one.process.pid) for one in beats)
    return MemorySample(int(total) - int(free), host, _busy())


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _busy() -> float | None:
    """The share of the last moments in which a kernel ran, as the driver tells it (`nvidia-smi`)."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return None
    asked = ("--query-gpu=utilization.gpu", "--format=csv,noheader,nounits", "--id=0")
    done = subprocess.run([tool, *asked], capture_output=True, text=True, timeout=10, check=False)
    return int(done.stdout) / 100 if done.stdout.strip().isdigit() else None
