"""Launching: how a job's processes start and end. The only file that reads the environment.

`launch` starts mpiexec from an ordinary process; `run_rank` is where the code of one rank begins, whoever started
it. Between them they keep three promises: stdout holds JSON lines and nothing else, a rank that fails ends the
whole job within seconds, and the cause is told once.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from executor.guard import Post, accept_interrupts, die_with_parent, stand_guard
from executor.heartbeat import RankState, identify, process_state, read_heartbeats
from executor.watchdog import FAILURE_FILE, Limits, kill_ranks, read_failure, record_failure, tell
from strategy.errors import EnvironmentLacks, InputError, InternalError, SbplanError

_FOLDER_VARIABLE = "SBPLAN_RUN_FOLDER"
_LAUNCHED_VARIABLE = "SBPLAN_LAUNCHED"
_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
_TOLD_S = 3.0
_RELAY_S = 0.2  # mpiexec drops what a rank wrote just before an abort; by then it has passed it on
_YIELD_S = 3.0
_INTERRUPTS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class RankIdentity:
    """Which rank the launcher made of this process. `node` is the host's name."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: str


# Rank, size, local rank, ranks of the node. A Slurm batch script has SLURM_PROCID as well; only srun counts its tasks.
_LAUNCHERS = (
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"),
    ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    ("PMI_RANK", "PMI_SIZE", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_TASKS_PER_NODE"),
)


def find_rank(environment: Mapping[str, str] | None = None) -> RankIdentity | None:
    """The rank of this process, from what MPICH, Open MPI or Slurm left in the environment; None outside of MPI."""
    variables = os.environ if environment is None else environment
    for rank, size, local_rank, local_size in _LAUNCHERS:
        if all(name in variables for name in (rank, size, local_rank)):
            return RankIdentity(
                int(variables[rank]),
                int(variables[size]),
                int(variables[local_rank]),
                _tasks_of_node(variables.get(local_size, "1"), int(variables.get("SLURM_NODEID", "0"))),
                os.uname().nodename,
            )
    return None


def find_mpiexec() -> Path:
    """The mpiexec beside this Python (a wheel put it there), else the one on PATH.

    Raises:
        EnvironmentLacks: there is none.
    """
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("mpiexec")
    if found is None:
        raise EnvironmentLacks(
            f'mpiexec: neither beside {sys.executable} nor on PATH; `pip install "sbplan[mpich]"` brings one'
        )
    return Path(found)


def rank_environment() -> dict[str, str]:
    """What a rank needs in its environment before NumPy is loaded: one BLAS thread per rank, set and returned."""
    variables = dict.fromkeys(_THREAD_VARIABLES, "1")
    os.environ.update(variables)
    return variables


def run_folder() -> Path:
    """The run folder of this rank (heartbeats, names of actors, cause of a failure); for code under `run_rank`."""
    return Path(os.environ[_FOLDER_VARIABLE])


def launch(argv: Sequence[str], ranks: int, *, folder: Path, mpiexec: Path | None = None) -> int:
    """Run `argv` on `ranks` ranks of this machine; relay the JSON lines of their stdout, all else goes to stderr.

    Args:
        argv: the command of one rank, which calls `run_rank`.
        ranks: how many.
        folder: the run folder; created if need be, and cleared of what an earlier job told there.
        mpiexec: instead of `find_mpiexec()`.

    Returns:
        The exit code: 0, that of the first rank that failed, 6 when one was killed, 128 + n after a signal.

    Raises:
        InputError: `ranks` below one, or this process is itself a rank.
        EnvironmentLacks: no mpiexec.
    """
    if ranks < 1:
        raise InputError("no ranks to launch", where="ranks", got=ranks, expected="at least 1")
    if find_rank() is not None:
        raise InputError("already under mpiexec", where="launch", hint="start one or the other, not one in the other")
    folder.mkdir(parents=True, exist_ok=True)
    for leftover in (folder / FAILURE_FILE, *folder.glob("heartbeat.*")):
        leftover.unlink(missing_ok=True)
    parent = os.getpid()
    process = subprocess.Popen(
        [str(mpiexec or find_mpiexec()), "-n", str(ranks), *argv],
        stdout=subprocess.PIPE,
        env=_launcher_environment(ranks, folder),
        start_new_session=True,
        preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),
    )
    with _forward_signals(process, folder) as received:
        if process.stdout is not None:
            _relay_json(process.stdout)
        code = process.wait()
    if received:
        tell(folder)
        return 128 + received[0]
    return _account_for(code, folder) if code else 0


def run_rank(main: Callable[[], int], *, folder: Path | None = None, limits: Limits | None = None) -> NoReturn:
    """Run `main` as one rank, under guard: the process ends here, with `main`'s exit code or that of its error.

    Call it before NumPy and mpi4py are imported. Works under mpiexec, srun and `launch`, and alone as the only rank.

    Args:
        main: the code of the rank; imports what it needs; returns an exit code.
        folder: the run folder, unless the launcher has named one; by default one of this job in the temporary folder.
        limits: when the watcher takes the rank for stalled.
    """
    rank_environment()
    me = find_rank() or RankIdentity(0, 1, 0, 1, os.uname().nodename)
    launched = _LAUNCHED_VARIABLE in os.environ
    job = _job_of_this_process()
    given = os.environ.get(_FOLDER_VARIABLE) or folder
    chosen = Path(given) if given else _scratch_folder(job)
    chosen.mkdir(parents=True, exist_ok=True)
    os.environ[_FOLDER_VARIABLE] = str(chosen)
    if not launched:
        _drop_older_failure(chosen)
    stand_guard(
        Post(
            chosen,
            job,
            me.rank,
            me.local_rank,
            me.local_size,
            limits or Limits(),
            _pmi_descriptor(),
            launched,
            not given,
        )
    )
    threading.excepthook = lambda event: _fail(event.exc_value or event.exc_type(), me.rank, chosen, quiet=launched)
    try:
        accept_interrupts()
        code = main()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
        if code > 128:
            _fail(error, me.rank, chosen, quiet=launched)
    except BaseException as error:  # noqa: BLE001 (every way out of a rank must end the job)
        _fail(error, me.rank, chosen, quiet=launched)
    sys.exit(code)


def _fail(error: BaseException, rank: int, folder: Path, *, quiet: bool) -> NoReturn:
    """End the whole job because of `error`; of all ranks, the first to come here tells why."""
    code = _exit_code(error)
    interrupted = code > 128
    expected = interrupted or isinstance(error, SbplanError)
    reason = "interrupted" if interrupted else str(error)
    if not expected:
        reason = "".join(traceback.format_exception_only(error)).strip()
    first = False
    with suppress(OSError):
        if first := record_failure(folder, rank, reason, exit_code=code):
            if not expected:
                traceback.print_exception(error)
            if not quiet:
                tell(folder)
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    # One ends the others. A second abort would meet a closing mpiexec, which then prints an assertion of its own.
    time.sleep(_RELAY_S if first or (interrupted and rank == 0) else _YIELD_S)
    _abort(code)
    os._exit(code)


def _exit_code(error: BaseException) -> int:
    """The code of an error; signals unwind as KeyboardInterrupt, or as SystemExit with 128 + n."""
    if isinstance(error, KeyboardInterrupt):
        return 128 + signal.SIGINT
    if isinstance(error, SystemExit) and isinstance(error.code, int):
        return error.code
    return int(getattr(error, "exit_code", InternalError.exit_code))


def _abort(code: int) -> None:
    """Have MPI end the other ranks, where it runs. It may return, and it may hang: then the alarm ends this rank.

    The cause is told by now, so MPI's own announcement goes nowhere.
    """
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is not None and mpi.Is_initialized() and not mpi.Is_finalized():
        signal.alarm(5)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        mpi.COMM_WORLD.Abort(code)


def _account_for(code: int, folder: Path) -> int:
    """After an abnormal end: wait for the cause to be written, or find it; print it; the job's exit code."""
    deadline_s = time.monotonic() + _TOLD_S
    while read_failure(folder) is None and time.monotonic() < deadline_s and _somebody_lives(folder):
        time.sleep(0.05)
    beats = read_heartbeats(folder)
    unfinished = [beat for beat in beats if beat.state is not RankState.DONE]
    if read_failure(folder) is None:
        if beats and not unfinished and code > 0:
            return code
        culprit = min(unfinished, key=lambda beat: beat.time_ns).rank if unfinished else -1
        record_failure(folder, culprit, f"mpiexec ended the job with code {code}")
    kill_ranks(unfinished, guards=True)
    tell(folder)
    failure = read_failure(folder)
    return failure.exit_code if failure else 6


def _somebody_lives(folder: Path) -> bool:
    """Whether a cause may still come: a rank that never said how it ended."""
    return any(beat.state is not RankState.DONE for beat in read_heartbeats(folder))


def _relay_json(lines: Iterable[bytes]) -> None:
    """Copy a stdout line by line, until it ends: JSON documents to ours, the launcher's own talk to stderr."""
    for line in lines:
        stream = sys.stdout if _is_json(line) else sys.stderr
        stream.write(line.decode(errors="replace"))
        stream.flush()


def _is_json(line: bytes) -> bool:
    if not line.lstrip().startswith((b"{", b"[")):
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return False
    return True


@contextmanager
def _forward_signals(process: subprocess.Popen[bytes], folder: Path) -> Iterator[list[int]]:
    """Pass interrupts on while mpiexec runs; the list holds those that came. On an error, end it.

    The first goes to the ranks, through their guards, so that they can write what they must; mpiexec would kill
    them. Where there are none yet, and from the second on, it goes to mpiexec.
    """
    received: list[int] = []

    def forward(signum: int, frame: FrameType | None) -> None:
        received.append(signum)
        record_failure(folder, -1, f"interrupted by {signal.Signals(signum).name}", exit_code=128 + signum)
        guards = [beat.guard for beat in read_heartbeats(folder) if process_state(beat.guard) is not None]
        if len(received) > 1 or not guards:
            process.send_signal(signum)
            return
        for guard in guards:
            with suppress(ProcessLookupError):
                os.kill(guard.pid, signum)

    in_main_thread = threading.current_thread() is threading.main_thread()
    before = {signum: signal.signal(signum, forward) for signum in _INTERRUPTS} if in_main_thread else {}
    try:
        yield received
    finally:
        for signum, handler in before.items():
            signal.signal(signum, handler)
        if process.poll() is None:
            process.terminate()
            process.wait()


def _launcher_environment(ranks: int, folder: Path) -> dict[str, str]:
    """Ours, with what ranks need and what Open MPI asks for on a crowded machine; the user's own settings win."""
    cores = os.cpu_count() or 1
    added: dict[str, str] = {}
    if os.geteuid() == 0:
        added |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    if ranks > cores:
        added |= {"PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe", "OMPI_MCA_mpi_yield_when_idle": "1"}
    needed = dict.fromkeys(_THREAD_VARIABLES, "1") | {
        _FOLDER_VARIABLE: str(folder.resolve()),
        _LAUNCHED_VARIABLE: "1",
    }
    return added | os.environ | needed


def job_name() -> str:
    """A name that this node's ranks of one job share and other jobs do not."""
    return f"{_job_of_this_process():016x}"


def _job_of_this_process() -> int:
    """A number that this node's ranks of one job share and other jobs do not."""
    names = ("PMIX_NAMESPACE", "SLURM_JOB_ID", "SLURM_STEP_ID")
    words = [os.environ[name] for name in names if name in os.environ]
    parent = identify(os.getppid())
    text = " ".join([os.uname().nodename, *(words or [str(parent.pid), str(parent.start_ticks)])])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


def _pmi_descriptor() -> int | None:
    text = os.environ.get("PMI_FD", "")
    return int(text) if text.isdigit() else None


def _scratch_folder(job: int) -> Path:
    return Path(tempfile.gettempdir()) / f"sbplan-{os.getuid()}-{job:016x}"


def _drop_older_failure(folder: Path) -> None:
    """Remove a cause that an earlier job left in the same folder: one older than this job's launcher."""
    path = folder / FAILURE_FILE
    launcher_age_s = _age_s(os.getppid())
    with suppress(FileNotFoundError):
        if time.time() - path.stat().st_mtime > launcher_age_s + 1.0:
            path.unlink(missing_ok=True)


def _age_s(pid: int) -> float:
    ticks = identify(pid).start_ticks
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")


def _tasks_of_node(text: str, node: int) -> int:
    """Tasks of one node in Slurm's notation: `2(x3),1` means 2, 2, 2, 1. A plain figure means itself."""
    counts: list[int] = []
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(tasks)] * int(times or 1)
    return counts[min(node, len(counts) - 1)] if counts else 1
