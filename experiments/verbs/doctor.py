"""Check this machine: what is there, what is missing, and how to get it. With --ops, check the ops instead.

Every signature that an op lists is run on pieces and compared with one device, what it does not list must be wrong,
and its gradient must be that of finite differences.
"""

from __future__ import annotations

import argparse
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.command.arguments import add_json
from experiments.command.console import emit, say
from experiments.command.outputs import check_output_path
from strategy.base.errors import EnvironmentLacks, InputError, RunError

if TYPE_CHECKING:
    from strategy.hardware.cluster import Cluster

PROBE_TIMEOUT_S = 60.0
CUPY, LEAST_CUPY = "cupy-cuda13x", 14
"""What the extra `gpu` asks for."""
_MOST_TEXT = 2**20
"""Characters of a hostfile or of a topology."""
MPI_LIBRARY = """
import mpi4py
mpi4py.rc.initialize = False
from mpi4py import MPI
print(MPI.Get_library_version().splitlines()[0])
"""
CUDA_MPI = """
from mpi4py import MPI
from executor.runtime.transport.cuda_support import cuda_support, mpi_library
print(cuda_support(MPI.COMM_SELF, mpi_library(MPI)))
"""
DEVICES = """
import cupy
print(", ".join(
    cupy.cuda.runtime.getDeviceProperties(device)["name"].decode()
    for device in range(cupy.cuda.runtime.getDeviceCount())
))
"""


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that sbplan needs, or can use: whether it is there, what was found, and else how to get it."""

    name: str
    ok: bool
    found: str
    needed: bool = True
    hint: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan doctor` takes."""
    parser.add_argument("kinds", metavar="KIND", nargs="*", help="with --ops: these kinds alone")
    parser.add_argument("--ops", action="store_true", help="try every op: signatures, gradients, what is not listed")
    parser.add_argument("--backend", default="numpy", metavar="NAME", help="with --ops: numpy or cupy (default: numpy)")
    parser.add_argument("--seed", type=int, default=0, metavar="S", help="with --ops: of operands and choices")
    parser.add_argument("--write", type=Path, metavar="cluster.toml", help="describe this machine as a cluster")
    parser.add_argument("--gpu", default="", metavar="NAME", help="with --write: the nodes' GPU, such as h100")
    parser.add_argument("--hostfile", type=Path, metavar="F", help="with --write: nodes as MPI's hostfile lists them")
    parser.add_argument("--slurm", action="store_true", help="with --write: nodes of the Slurm job around this process")
    parser.add_argument(
        "--topology", type=Path, metavar="F", help="with --write: what 'nvidia-smi topo -m' printed on one node"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Look, measure, print.

    Raises:
        EnvironmentLacks: something that is needed is missing; said after everything has been printed.
        RunError: an op is not what it says; likewise.
    """
    if args.ops:
        return check_ops(args)
    if args.kinds or args.backend != "numpy":
        raise InputError("ops are checked with --ops", got=" ".join(args.kinds) or args.backend)
    if args.gpu or args.hostfile or args.slurm or args.topology:
        return write_allocated(args)
    from executor.supervision.environment import rank_environment

    check_output_path(args.write, "--write", new=True)
    rank_environment()  # a rank computes with one thread, so its core is measured with one
    checks = list(look())
    for check in checks:
        mark = "ok     " if check.ok else "MISSING" if check.needed else "absent "
        say(f"{mark} {check.name}: {check.found}" + (f"; {check.hint}" if check.hint else ""))
    cluster = measured(args.write)
    if args.json:
        emit({"ok": all(c.ok for c in checks if c.needed), "checks": [asdict(c) for c in checks], **sheet(cluster)})
    lacking = [check for check in checks if check.needed and not check.ok]
    if lacking:
        raise EnvironmentLacks("; ".join(f"{check.name} is missing: {check.hint}" for check in lacking))
    return 0


def write_allocated(args: argparse.Namespace) -> int:
    """Describe the nodes of a job, of which this process need not be one, as a cluster.

    Raises:
        InputError: there is nowhere to write to, two sources of nodes or none, or one that is wrong.
    """
    from executor.supervision.environment import slurm_variables
    from experiments.machine.allocated import described, nodes_of_hostfile, nodes_of_slurm, topology_of
    from strategy.base.files import write_atomic
    from strategy.hardware.cluster_file import write_cluster

    if args.write is None or args.ops:
        raise InputError("nodes are described with --write", where="sbplan doctor", hint="add --write cluster.toml")
    if args.hostfile and args.slurm:
        raise InputError("two sources of nodes", where="--hostfile, --slurm", hint="leave one of them out")
    if not (args.hostfile or args.slurm or args.topology):
        raise InputError("nothing says how many GPUs", where="--gpu", hint="add --hostfile F, --slurm or --topology F")
    check_output_path(args.write, "--write", new=True)
    found = nodes_of_slurm(slurm_variables()) if args.slurm else None
    if args.hostfile:
        found = nodes_of_hostfile(text_of(args.hostfile, "--hostfile"), str(args.hostfile))
    topology = topology_of(text_of(args.topology, "--topology"), str(args.topology)) if args.topology else None
    cluster = described(args.gpu, found, topology)
    write_atomic(args.write, write_cluster(cluster))
    joined = (
        f"{cluster.intra.bytes_per_s / 1e9:.4g} GB/s inside of nodes, {cluster.inter.bytes_per_s / 1e9:.4g} between"
    )
    say(f"{args.write}: {cluster.nodes} nodes of {cluster.devices_per_node} {cluster.device.name}, {joined}; written")
    if args.json:
        emit({"ok": True, **sheet(cluster)})
    return 0


def text_of(path: Path, flag: str) -> str:
    """A small file of text.

    Raises:
        InputError: it cannot be read.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(_MOST_TEXT)
    except OSError as error:
        raise InputError("the file cannot be read", where=f"{flag} {path}", got=error.strerror) from error


def check_ops(args: argparse.Namespace) -> int:
    """Try ops, and say per kind what was tried and what was wrong.

    Raises:
        RunError: something was wrong.
    """
    from executor.runtime.kernels.base import open_kernels
    from executor.supervision.environment import rank_environment
    from experiments.machine.op_checks import Coverage, check_kind, stale_reasons, total
    from strategy.graph.ops import REGISTRY, op_definition

    rank_environment()
    kernels = open_kernels(args.backend)
    kinds = [op_definition(kind).kind for kind in dict.fromkeys(args.kinds)] or list(REGISTRY)
    found: list[Coverage] = []
    for kind in kinds:
        found.append(check_kind(kind, kernels, seed=args.seed))
        say(str(found[-1]))
        for problem in found[-1].problems:
            say(f"  {problem}")
    stale = stale_reasons(found) if kernels.host else []
    for line in stale:
        say(line)
    say(f"{len(found)} kinds; {total(found)}")
    wrong = [coverage.kind for coverage in found if coverage.problems]
    if args.json:
        emit({"ok": not wrong and not stale, "kinds": [asdict(c) for c in found], "stale_reasons": stale})
    if wrong or stale:
        raise RunError(f"ops are not what they say: {', '.join(wrong) or 'reasons that excuse nothing'}")
    return 0


def look() -> Iterator[Check]:
    """Everything that is checked, in the order in which it is printed."""
    from experiments.machine.machine import memory_bytes, num_cores
    from strategy.base.units import format_bytes

    yield Check("cores", True, str(num_cores()))
    yield Check("memory", True, format_bytes(memory_bytes()))
    yield Check("python", True, f"{platform.python_version()} at {sys.executable}")
    yield Check("numpy", True, numpy_and_blas())
    yield attempt("mpiexec", mpiexec_version, hint='pip install "sbplan[mpich]"')
    yield attempt("mpi4py", lambda: probe([sys.executable, "-c", MPI_LIBRARY]), hint="pip install mpi4py")
    yield cuda_mpi()
    yield attempt("gpu", lambda: probe([sys.executable, "-c", DEVICES]), needed=False, hint=gpu_hint())


def cuda_mpi() -> Check:
    """Whether MPI may be given addresses of GPUs, which matters where there is no NCCL."""
    found = attempt("cuda-aware mpi", lambda: probe([sys.executable, "-c", CUDA_MPI]), needed=False, hint="")
    if found.ok and found.found.startswith("moves"):
        return found
    return replace(found, ok=False, hint="GPUs without NCCL move arrays through pinned memory")


def gpu_hint() -> str:
    """How to get a CuPy that works; builds for another CUDA or older ones are in its way."""
    found = {one.metadata["Name"]: one.version for one in distributions() if _is_cupy(one.metadata["Name"])}
    wrong = {name: version for name, version in sorted(found.items()) if not _is_wanted(name, version)}
    install = 'pip install "sbplan[gpu]" with a GPU'
    if not wrong:
        return install
    told = ", ".join(f"{name} {version}" for name, version in wrong.items())
    return f"{told}: {CUPY} {LEAST_CUPY} or newer is needed; pip uninstall {' '.join(wrong)}, then {install}"


def _is_cupy(distribution: str | None) -> bool:
    return distribution is not None and re.fullmatch("cupy(-.+)?", distribution) is not None


def _is_wanted(name: str, version: str) -> bool:
    return name == CUPY and int(version.split(".")[0]) >= LEAST_CUPY


def attempt(name: str, find: Callable[[], str], *, needed: bool = True, hint: str) -> Check:
    """The check of one thing that may not be there."""
    try:
        return Check(name, True, find(), needed)
    except (EnvironmentLacks, OSError, subprocess.SubprocessError) as error:
        return Check(name, False, reason_of(error), needed, hint)


def reason_of(error: Exception) -> str:
    """Why something is missing, on one line."""
    said = (getattr(error, "stderr", None) or str(error)).strip()
    return said.splitlines()[-1] if said else type(error).__name__


def probe(command: list[str]) -> str:
    """The first line that a command prints. What may crash its process, as an MPI or a driver does, is tried apart.

    Raises:
        SubprocessError: it failed or did not end.
    """
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=True)
    said = done.stdout.replace("\0", "").strip()
    if not said:
        raise subprocess.SubprocessError("nothing found")
    return " ".join(said.splitlines()[0].split())


def mpiexec_version() -> str:
    """Where mpiexec is, and what it says that it is."""
    from executor.supervision.environment import find_mpiexec

    path = find_mpiexec()
    done = subprocess.run(
        [str(path), "--version"], capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
    )
    words = [line.split() for line in done.stdout.replace("\0", "").splitlines()]
    version = next((" ".join(line) for line in words if any("ersion" in word for word in line)), "version not told")
    return f"{path} ({version})"


def numpy_and_blas() -> str:
    """NumPy's version, its BLAS, and the threads that one rank uses."""
    import numpy as np

    blas = np.show_config(mode="dicts")["Build Dependencies"]["blas"]
    return f"{np.__version__} with {blas['name']} {blas.get('version', '')}, one thread per rank"


def measured(path: Path | None) -> Cluster:
    """This machine as a cluster, said and, if asked for, written."""
    from experiments.machine.machine import find_machine
    from strategy.base.files import write_atomic
    from strategy.base.units import format_seconds
    from strategy.hardware.cluster_file import write_cluster

    cluster = find_machine("local")
    device, link = cluster.device, cluster.intra
    say(
        f"a core: {device.flop_per_s / 1e9:.3g} GFLOP/s, {device.memory_bytes_per_s / 1e9:.3g} GB/s, "
        f"{format_seconds(device.launch_s)} a call, {format_seconds(link.latency_s)} a message"
    )
    if path is not None:
        write_atomic(path, write_cluster(cluster))
        say(f"{path}: written; use it with --cluster {path}")
    return cluster


def sheet(cluster: Cluster) -> dict[str, object]:
    """The measured figures for the JSON document."""
    return {"cluster": asdict(cluster)}
