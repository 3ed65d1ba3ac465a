"""A training under way: its ranks as they are seen from beside it, and how it ends."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from executor.gpu_acceptance.bench import Bench
from executor.gpu_acceptance.commands import run_sbplan
from executor.supervision.heartbeat import Beat, read_heartbeats

RUNS = Path("runs")
"""Where `sbplan train` keeps what it tells of a run."""
_POLL_S = 0.05


class UnderWay:
    """A training that another thread waits for."""

    def __init__(self, bench: Bench, plan: Path, *, steps: int, limit_s: float) -> None:
        before = set(RUNS.glob("train-*"))
        how = ("--backend", "cupy", "--share-devices", "--launch", "--steps", str(steps), "--json")
        self._before = before
        self._code, self._written = -1, ""

        def run() -> None:
            self._code, self._written = run_sbplan(bench, ("train", str(plan), *how), limit_s)

        self._thread = threading.Thread(target=run)
        self._thread.start()

    def beats(self) -> Sequence[Beat]:
        """The last sign of life of each rank."""
        found = [read_heartbeats(folder) for folder in set(RUNS.glob("train-*")) - self._before]
        return max(found, key=len, default=())

    def until(self, seen: Callable[[Sequence[Beat]], bool]) -> Sequence[Beat]:
        """Signs of life once they are as asked for; none if the training ends before."""
        while self._thread.is_alive():
            beats = self.beats()
            if beats and seen(beats):
                return beats
            time.sleep(_POLL_S)
        return ()

    @property
    def goes_on(self) -> bool:
        """Whether it has not ended yet."""
        return self._thread.is_alive()

    def end(self) -> tuple[int, str]:
        """Wait for its end: exit code, and what it wrote."""
        self._thread.join()
        return self._code, self._written
