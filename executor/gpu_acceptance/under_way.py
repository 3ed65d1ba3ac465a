"""A training under way: its ranks as they are seen from beside it, and how it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from executor.gpu_acceptance.bench import Bench
from executor.gpu_acceptance.commands import run_sbplan
from executor.supervision.heartbeat import Beat, process_state, read_heartbeats

TRAINING_RUNS = Path("runs")
"""Where `sbplan train` keeps what it tells of a run."""
_LOOKS_EVERY_S = 0.05


class UnderWay:
    """A training that another thread waits for."""

    def __init__(self, bench: Bench, plan: Path, *, steps: int, limit_s: float) -> None:
        how = ("--backend", "cupy", "--share-devices", "--launch", "--steps", str(steps), "--json")
        self._plan = plan
        self._code, self._written = -1, ""

        def run() -> None:
            self._code, self._written = run_sbplan(bench, ("train", str(plan), *how), limit_s)

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def beats(self) -> Sequence[Beat]:
        """The last sign of life of each rank."""
        for folder in TRAINING_RUNS.glob("train-*"):
            beats = read_heartbeats(folder)
            if beats and all(self._is_of_plan(one) for one in beats):
                return beats
        return ()

    def until(self, seen: Callable[[Sequence[Beat]], bool]) -> Sequence[Beat]:
        """Signs of life once they are as asked for; none if the training ends before."""
        while self._thread.is_alive():
            beats = self.beats()
            if beats and seen(beats):
                return beats
            time.sleep(_LOOKS_EVERY_S)
        return ()

    def _is_of_plan(self, beat: Beat) -> bool:
        """Whether the rank lives, and trains by the plan: other trainings may be under way."""
        try:
            command = Path(f"/proc/{beat.process.pid}/cmdline").read_bytes()
        except OSError:
            return False
        return process_state(beat.process) is not None and str(self._plan).encode() in command

    @property
    def goes_on(self) -> bool:
        """Whether it has not ended yet."""
        return self._thread.is_alive()

    def end(self) -> tuple[int, str]:
        """Wait for its end: exit code, and what it wrote."""
        self._thread.join()
        return self._code, self._written
