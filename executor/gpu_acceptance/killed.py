"""Part of acceptance: a rank that is killed, or stopped, while it trains on a device, ends the job by name."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import Any

from executor.gpu_acceptance.bench import Bench
from executor.gpu_acceptance.commands import CALM, folder_of_plans, last_line, make_plan
from executor.gpu_acceptance.outcome import Figures, PartFailed
from executor.gpu_acceptance.under_way import UnderWay
from executor.supervision.heartbeat import Beat, RankState, process_state
from strategy.base.errors import RunError

_DEGREES = {"dp": 1, "tp": 2, "pp": 1}
"""Ranks that wait for one another in every layer."""
_STEPS = 1_000_000
_LIMIT_S = 150.0
LATE_S = 3.0
"""Of training, before a rank is killed."""
WANTED_S = 30.0
"""From the signal to the end of the job."""
_SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
_VICTIM = 1


def killed(bench: Bench) -> Figures:
    """Seconds from a signal to the end of the job, its code, what it says; no rank outlives it."""
    figures: dict[str, Any] = {}
    problems = []
    with folder_of_plans() as folder:
        plan = make_plan(bench, folder, "gpt-tiny", _DEGREES, batch=16, recipe=CALM)
        for number in _SIGNALS:
            training = UnderWay(bench, plan, steps=_STEPS, limit_s=_LIMIT_S)
            beats = training.until(_all_train)
            begin = time.monotonic()
            if beats:
                time.sleep(LATE_S)
                begin = time.monotonic()
                os.kill(beats[_VICTIM].process.pid, number)
            code, written = training.end()
            seconds, left = time.monotonic() - begin, [one.rank for one in beats if process_state(one.process)]
            told = [line for line in written.splitlines() if line.startswith(f"sbplan: rank {_VICTIM} ")]
            figures[number.name] = {"seconds": seconds, "code": code, "says": told, "left": left}
            if not beats or code != RunError.exit_code or len(told) != 1 or left or seconds > WANTED_S:
                problems.append(f"{number.name}: code {code} after {seconds:.1f} s, {last_line(written)}")
    if problems:
        raise PartFailed("; ".join(problems), figures)
    return figures


def _all_train(beats: Sequence[Beat]) -> bool:
    busy = RankState.RUNNING, RankState.WAITING
    return len(beats) == _DEGREES["tp"] and all(one.state in busy and one.actor >= 0 for one in beats)
