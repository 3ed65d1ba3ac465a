"""Jobs: `sbplan VERB` as a user starts it, under mpiexec or alone; no job may leave a process behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from executor.supervision.environment import find_mpiexec
from executor.supervision.heartbeat import Beat, read_heartbeats

ROOT = Path(__file__).resolve().parents[2]
MARK = "SBPLAN_TEST_JOB"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a job ended; `seconds` count from its start, or from the last signal that it was sent."""

    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def documents(self) -> list[dict[str, Any]]:
        """The JSON documents on stdout, of which every line must be one."""
        return [json.loads(line) for line in self.stdout.splitlines()]

    @property
    def messages(self) -> list[str]:
        """What was said on stderr."""
        return self.stderr.splitlines()


class Job:
    """A verb under way: on `ranks` ranks under mpiexec, or in one process where that is None."""

    def __init__(
        self,
        folder: Path,
        *arguments: object,
        ranks: int | None = None,
        module: str = "experiments",
        mpiexec: Path | None = None,
    ) -> None:
        launcher = [] if ranks is None else [str(mpiexec or find_mpiexec()), "-n", str(ranks)]
        command = [*launcher, sys.executable, "-P", "-m", module, *map(str, arguments)]
        self.folder = folder
        self.mark = uuid.uuid4().hex
        self._lines: list[str] = []
        self._begin_s = time.monotonic()
        self.process = subprocess.Popen(
            command,
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(ROOT), MARK: self.mark},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for_step(self, step: int) -> None:
        """Until the job says that it has done this step; it must be a `train --json`."""
        assert self.process.stdout is not None
        while not any(f'"step": {step},' in line for line in self._lines[-1:]):
            self._lines.append(self.process.stdout.readline())
            if not self._lines[-1]:
                raise AssertionError(f"the job ended before step {step}: {self.wait()}")

    def lines(self) -> Iterator[str]:
        """What the job says on stdout, line by line, as it comes; not kept.

        Raises:
            AssertionError: it ends.
        """
        assert self.process.stdout is not None
        while line := self.process.stdout.readline():
            yield line
        raise AssertionError(f"the job ended: {self.wait()}")

    def run_folder(self) -> Path:
        """The run folder of this job: the one whose heartbeats are of its processes."""
        mine = {pid for pid, _ in self.processes()}
        for folder in (self.folder / "runs").iterdir():
            if any(beat.process.pid in mine for beat in (read_heartbeats(folder) if folder.is_dir() else ())):
                return folder
        raise AssertionError(f"no run folder of {mine}")

    def beats(self) -> Sequence[Beat]:
        """What the ranks say of themselves, by rank."""
        return read_heartbeats(self.run_folder())

    def signal(self, signum: signal.Signals, pid: int | None = None) -> None:
        """Send a signal to the process that was started, or to one of the job."""
        self._begin_s = time.monotonic()
        os.kill(self.process.pid if pid is None else pid, signum)

    def processes(self) -> list[tuple[int, str]]:
        """(pid, name) of all living processes of the job, wherever they went: all inherit its mark."""
        found = []
        for path in Path("/proc").iterdir():
            try:
                if path.name.isdigit() and f"{MARK}={self.mark}".encode() in (path / "environ").read_bytes():
                    found.append((int(path.name), (path / "comm").read_text().strip()))
            except OSError:  # it ended meanwhile, or is another user's
                continue
        return found

    def _rest(self, timeout_s: float) -> tuple[str, str]:
        """What is left to be read of both streams, to their ends; `communicate` loses what a line's read brought along.

        Raises:
            subprocess.TimeoutExpired: they have not ended.
        """
        streams = {"stdout": self.process.stdout, "stderr": self.process.stderr}
        found: dict[str, str] = {}

        def read(name: str, stream: IO[str] | None) -> None:
            found[name] = stream.read() if stream is not None else ""

        threads = [threading.Thread(target=read, args=one, daemon=True) for one in streams.items()]
        deadline_s = time.monotonic() + timeout_s
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline_s - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            raise subprocess.TimeoutExpired(self.process.args, timeout_s)
        self.process.wait(timeout=max(1.0, deadline_s - time.monotonic()))
        return found["stdout"], found["stderr"]

    def wait(self, *, timeout_s: float = 120.0) -> Ended:
        """Until the end of the job and of all its processes.

        Raises:
            AssertionError: a process is left.
        """
        try:
            stdout, stderr = self._rest(timeout_s)
        finally:
            self.process.kill()
        ended = Ended(self.process.returncode, "".join(self._lines) + stdout, stderr, time.monotonic() - self._begin_s)
        deadline_s = time.monotonic() + 5
        while (left := self.processes()) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        for pid, _ in left:
            os.kill(pid, signal.SIGKILL)
        assert left == [], f"processes are left: {left}"
        return ended


def run(folder: Path, *arguments: object, ranks: int | None = None, timeout_s: float = 120.0) -> Ended:
    """Run a verb to its end."""
    return Job(folder, *arguments, ranks=ranks).wait(timeout_s=timeout_s)


def run_well(folder: Path, *arguments: object, ranks: int | None = None, timeout_s: float = 120.0) -> Ended:
    """Run a verb that must succeed.

    Raises:
        AssertionError: with what it said, where it did not.
    """
    ended = run(folder, *arguments, ranks=ranks, timeout_s=timeout_s)
    assert ended.code == 0, f"{arguments}: code {ended.code}\n{ended.stdout}\n{ended.stderr}"
    return ended
