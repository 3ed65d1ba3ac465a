"""Searches for models and clusters that no preset has: a plan, verified, with a small gap, in time and memory.

Each is a new process with nothing but the files of the request, its memory limit left at its default and its time
limit below that.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from experiments.command.exit_codes import EXIT_LIMIT
from strategy.base.errors import InfeasibleError
from tests.campaigns.outcome import Outcome
from tests.support.unseen import Unseen, unseen

QUOTAS = {"experts": 0.3, "64 GPUs or more": 0.5, "a plan": 0.9, "gap within 1 %": 1.0}
TIME_LIMIT_S = 50.0
LATE_S = 2.5
"""A time limit is kept within a second or five per cent."""
MOST_BYTES = 4 * 2**30
COMMAND = (sys.executable, "-m", "experiments")


def run(cases: int, seed: int) -> Outcome:
    """Search for `cases` plans."""
    outcome = Outcome(QUOTAS)
    for number in range(cases):
        asked = unseen(number, seed)
        exercised = list(asked.covers)
        outcome.add(f"request {number}", check(asked, exercised), exercised)
    return outcome


def check(asked: Unseen, exercised: list[str], time_limit_s: float = TIME_LIMIT_S) -> Iterator[str]:
    """What is wrong with the answer to a request; adds to what is exercised what came out."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        plan = folder / "plan.json"
        command = [*COMMAND, *asked.arguments(folder), "--json", "--out", str(plan)]
        begin = time.monotonic()
        done = subprocess.run(
            [*command, "--time-limit", str(time_limit_s)], capture_output=True, text=True, check=False
        )
        took_s = time.monotonic() - begin
        if done.returncode == InfeasibleError.exit_code:
            exercised.append("infeasible")
            return
        if done.returncode not in {0, EXIT_LIMIT} or not plan.exists():
            yield f"exit {done.returncode} after {took_s:.1f} s: {done.stderr.strip()[-300:]}"
            return
        answer = json.loads(done.stdout)
        exercised.append("a plan")
        if answer["gap"] <= 0.01 + 1e-9:
            exercised.append("gap within 1 %")
        if answer["search_time_s"] > time_limit_s + LATE_S:
            yield f"it took {answer['search_time_s']:.1f} s of {time_limit_s:g} s"
        if not answer["lower_bound_s"] <= answer["objective_s"] * (1 + 1e-9):
            yield f"a bound of {answer['lower_bound_s']} above {answer['objective_s']}"
        config = {key: answer["config"][key] for key in ("dp", "tp", "pp", "ep", "cp", "zero_stage", "recompute")}
        sys.stderr.write(
            f"{asked.config['model_type']} {answer['parameters'] / 1e9:.1f}B on {asked.gpus}, "
            f"batch {asked.global_batch} x {asked.sequence}: {answer['step_time_s']:.3f} s "
            f"(objective {answer['objective_s']:.3f}), "
            f"gap {answer['gap']:.1%}, {answer['search_time_s']:.1f} s, {config}, "
            f"{max(answer['peak_memory_bytes']) / answer['memory_limit_bytes']:.0%} of memory\n"
        )
        verified = subprocess.run([*COMMAND, "verify", str(plan)], capture_output=True, text=True, check=False)
        if verified.returncode:
            yield f"refused: {verified.stderr.strip()[-300:]}"
