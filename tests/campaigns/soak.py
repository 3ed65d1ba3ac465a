"""A long training of one real job: constant memory, steps as long as at first, a loss that falls, saves all along.

A warm-up comes first: registers are touched, compiled code is loaded, the timeline is recorded, two checkpoints are
written, however long that takes. Then `--seconds S` are shared out to `--cases N` windows, each of which is compared
with the first: memory and loss always, the time of a step where no rank waited for a core of the machine in either.
"""

from __future__ import annotations

import json
import os
import signal
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, quantiles

from experiments.jobs.core_wait import waited_for_core_s
from tests.campaigns.outcome import Outcome
from tests.mpi.faults import LIMIT_S
from tests.mpi.jobs import Job
from tests.mpi.plans import small_plan, write_small_plan

QUOTAS = {"saved": 0.8, "compared": 0.5}
"""`undisturbed` is told beside these: windows whose steps have a time to be compared."""
LAYOUTS = ("mixed", "tensor")
EVERY, KEPT = 50, 2
"""Steps between two checkpoints, and how many are kept."""
WARM_SAVES = 2
ENDLESS = 10**9
MOST_GROWTH_BYTES = 2**20
"""Of a process's memory after the warm-up: less than a float per step of a soak of an hour."""
MOST_DRIFT = 0.1
MOST_WAITED = 0.05
"""Of a window, how long a rank may be without a core where the window's steps have a time of their own."""


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the soak: its steps, a time that a tenth of them beat, mean loss, memory by process, newest save.

    `waited` is the share of it that the rank that waited longest for a core did so.
    """

    steps: int
    step_time_s: float
    loss: float
    resident_bytes: Mapping[int, int]
    saved_step: int
    waited: float


def run(cases: int, seed: int, *, seconds: float = 300.0) -> Outcome:
    """Train for so long, and compare the windows; the layout is the seed's."""
    outcome = Outcome(QUOTAS)
    layout = LAYOUTS[seed % len(LAYOUTS)]
    with tempfile.TemporaryDirectory() as name:
        windows = list(soak(Path(name), layout, windows=cases, seconds=seconds))
    predicted_s = small_plan(layout).claims.step_time_s
    for number, window in enumerate(windows):
        exercised = ["saved"] * (window.saved_step > (windows[number - 1].saved_step if number else 0))
        exercised += ["compared"] * (number > 0) + ["undisturbed"] * (window.waited <= MOST_WAITED)
        outcome.add(f"window {number + 1}", compared(windows[: number + 1], predicted_s), exercised)
        print(
            f"window {number + 1}: {window.steps} steps, {1e3 * window.step_time_s:.2f} ms, "
            f"{window.step_time_s / predicted_s:.2f} of predicted, loss {window.loss:.4f}, "
            f"{sum(window.resident_bytes.values()) / 2**20:.1f} MiB, waited {window.waited:.0%}",
            flush=True,
        )
    return outcome


def soak(folder: Path, layout: str, *, windows: int, seconds: float) -> Iterator[Window]:
    """The windows of one job, which is ended by a signal then and has to save once more."""
    plan, ranks = write_small_plan(folder, layout), small_plan(layout).ranks
    saves = ("--checkpoint", "saved", "--checkpoint-every", EVERY, "--keep", KEPT)
    job = Job(folder, "train", plan, "--json", "--steps", ENDLESS, *saves, ranks=ranks)
    lines = job.lines()
    while _newest(folder) < WARM_SAVES * EVERY:
        step = json.loads(next(lines))["step"]
    for _ in range(windows):
        times: list[float] = []
        losses: list[float] = []
        begin_s, before_s = time.monotonic(), waits(job)
        end_s = begin_s + seconds / windows
        for line in lines:
            report = json.loads(line)
            step = report["step"]
            times.append(report["step_time_s"])
            losses.append(report["loss"])
            if time.monotonic() > end_s and len(times) > 1:
                break
        lasted_s, after_s = time.monotonic() - begin_s, waits(job)
        waited = max(after_s[pid] - before for pid, before in before_s.items()) / lasted_s
        fastest = quantiles(times, n=10)[0]
        yield Window(len(times), fastest, fmean(losses), resident(job), _newest(folder), waited)
    job.signal(signal.SIGTERM)
    ended = job.wait(timeout_s=LIMIT_S)
    assert ended.code == 128 + signal.SIGTERM, ended.stderr
    assert _newest(folder) >= step, ended.stderr


def resident(job: Job) -> Mapping[int, int]:
    """Bytes of memory of every process of a job, by pid."""
    found = {}
    for pid, _ in job.processes():
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        found[pid] = pages * os.sysconf("SC_PAGE_SIZE")
    return found


def waits(job: Job) -> Mapping[int, float]:
    """Seconds that every rank of a job has waited for a core, by pid."""
    return {pid: waited_for_core_s(pid) for pid, name in job.processes() if name == "sbplan-rank"}


def _newest(folder: Path) -> int:
    return max((int(path.name.removeprefix("step-")) for path in (folder / "saved").glob("step-????????")), default=0)


def compared(windows: Sequence[Window], predicted_s: float) -> Iterator[str]:
    """What the last of some windows has that the first had not."""
    if len(windows) < 2:
        return
    first, last = windows[0], windows[-1]
    if first.resident_bytes.keys() != last.resident_bytes.keys():
        yield f"processes {sorted(last.resident_bytes)} for {sorted(first.resident_bytes)}"
    for pid, nbytes in last.resident_bytes.items():
        growth = nbytes - first.resident_bytes.get(pid, nbytes)
        if growth > MOST_GROWTH_BYTES:
            yield f"process {pid} has grown by {growth} bytes"
    before, after = (one.step_time_s / predicted_s for one in (first, last))
    if max(first.waited, last.waited) <= MOST_WAITED and abs(after / before - 1) > MOST_DRIFT:
        yield f"a step takes {after:.2f} times what was predicted, at first {before:.2f}"
    if last.loss >= first.loss:
        yield f"loss {last.loss:.4f}, at first {first.loss:.4f}"
