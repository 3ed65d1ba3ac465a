"""The environment of a job's processes: the only file that reads it, and sets what ranks need in it."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from executor.supervision.heartbeat import identify
from strategy.base.errors import EnvironmentLacks, InputError

_FOLDER_VARIABLE = "SBPLAN_RUN_FOLDER"
_LAUNCHED_VARIABLE = "SBPLAN_LAUNCHED"
_NCCL_SHARES_FROM = 23000
_THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


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
    """The rank of this process, from what MPICH, Open MPI or Slurm left in the environment; None outside of MPI.

    Raises:
        InputError: what stands there is no rank.
    """
    variables = os.environ if environment is None else environment
    for rank, size, local_rank, local_size in _LAUNCHERS:
        if all(name in variables for name in (rank, size, local_rank)):
            found = RankIdentity(
                _count(variables, rank),
                _count(variables, size),
                _count(variables, local_rank),
                _tasks_of_node(variables.get(local_size, "1"), _count(variables, "SLURM_NODEID")),
                os.uname().nodename,
            )
            if found.rank >= found.size:
                raise InputError(
                    "not a rank of this job", where=rank, got=found.rank, expected=f"a number below {size}={found.size}"
                )
            return found
    return None


def _count(variables: Mapping[str, str], name: str) -> int:
    """A number that a launcher has left; 0 where it has left none."""
    text = variables.get(name, "0")
    if not re.fullmatch("[0-9]{1,9}", text):
        hint = "start it by mpiexec or srun, or unset the variable"
        raise InputError("not a number that a launcher sets", where=name, got=text, expected="0, 1, 2, ...", hint=hint)
    return int(text)


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


def share_device(nccl: int, rank: int) -> None:
    """Let NCCL of this version (23204 is 2.32.4) put this rank on a device that other ranks of its job use too.

    It refuses two ranks of one host on one device: before 2.30 it is told that hosts differ, and to go over loopback
    (NCCL, "Environment Variables"). To be called before NCCL is.
    """
    if nccl >= _NCCL_SHARES_FROM:
        os.environ.update({"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_MAX_CTAS": "4", "NCCL_NET_GDR_LEVEL": "LOC"})
        return
    over_loopback = {"NCCL_NET": "Socket", "NCCL_SOCKET_IFNAME": "lo", "NCCL_ALGO": "Ring", "NCCL_PROTO": "Simple"}
    without = {"NCCL_IB_DISABLE": "1", "NCCL_MNNVL_ENABLE": "0", "NCCL_NVLS_ENABLE": "0"}
    os.environ.update({"NCCL_HOSTID": f"r{rank}", "NCCL_MAX_CTAS": "2", **over_loopback, **without})


def run_folder() -> Path:
    """The run folder of this rank (heartbeats, names of actors, cause of a failure); for code under `run_rank`."""
    return Path(os.environ[_FOLDER_VARIABLE])


def named_folder() -> Path | None:
    """The run folder that the launcher has named, if it has."""
    name = os.environ.get(_FOLDER_VARIABLE)
    return Path(name) if name else None


def name_folder(folder: Path) -> None:
    """Let `run_folder` be this one."""
    os.environ[_FOLDER_VARIABLE] = str(folder)


def is_launched() -> bool:
    """Whether a launcher of ours started this process: then that does the telling."""
    return _LAUNCHED_VARIABLE in os.environ


_TUNING_PREFIXES = ("OPENBLAS_", "GOTO_", "MKL_", "OMP_", "KMP_", "BLIS_", "TORCH_", "NPY_", "MALLOC_", "LD_PRELOAD")


def clean_environment() -> dict[str, str]:
    """Ours without what tunes a BLAS, a thread pool or an allocator, and with one thread: for sides of a comparison."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith(_TUNING_PREFIXES)}
    return kept | dict.fromkeys(_THREAD_VARIABLES, "1")


def launcher_environment(ranks: int, folder: Path) -> dict[str, str]:
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
    return f"{job_of_this_process():016x}"


def job_of_this_process() -> int:
    """A number that this node's ranks of one job share and other jobs do not; asked before the rank is forked.

    A process that no launcher made a rank is a job of its own: the next one from the same shell is another.
    """
    if find_rank() is None:
        return _number_of([os.uname().nodename, *_who(os.getpid())])
    # Slurm's job is one job of ours only where its own launcher made the ranks: a batch script may call mpiexec twice.
    by_slurm = "MPI_LOCALRANKID" not in os.environ
    names = ("PMIX_NAMESPACE", *(("SLURM_JOB_ID", "SLURM_STEP_ID") if by_slurm else ()))
    words = [os.environ[name] for name in names if name in os.environ]
    return _number_of([os.uname().nodename, *(words or _who(os.getppid()))])


def _who(pid: int) -> list[str]:
    process = identify(pid)
    return [str(process.pid), str(process.start_ticks)]


def _number_of(words: list[str]) -> int:
    return int.from_bytes(hashlib.sha256(" ".join(words).encode()).digest()[:8], "little")


def pmi_descriptor() -> int | None:
    """Where the launcher hears MPI's process management, if it says so."""
    text = os.environ.get("PMI_FD", "")
    return int(text) if text.isdigit() else None


def scratch_folder(job: int) -> Path:
    """The run folder of a job that nobody gave one."""
    return Path(tempfile.gettempdir()) / f"sbplan-{os.getuid()}-{job:016x}"


def _tasks_of_node(text: str, node: int) -> int:
    """Tasks of one node in Slurm's notation: `2(x3),1` means 2, 2, 2, 1. A plain figure means itself."""
    counts: list[int] = []
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(tasks)] * int(times or 1)
    return counts[min(node, len(counts) - 1)] if counts else 1
