"""Profiling: what one rank of `sbplan profile` does."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from executor.collective_profile import collective_lanes, collective_samples
from executor.profile import profile
from executor.runtime.kernels.base import open_kernels
from executor.runtime.transport.mpi import MpiTransport
from executor.supervision.environment import run_folder
from executor.supervision.heartbeat import Heartbeat, heartbeat_path
from experiments.command.console import emit, say
from experiments.command.outputs import check_output_path
from experiments.jobs.ranks import broadcast, gather, longest, mean, world
from experiments.jobs.small_model import GLOBAL_BATCH, MODEL
from experiments.machine.machine import local_cluster
from strategy.base.errors import InputError
from strategy.base.files import write_atomic
from strategy.cost.calibrate import Calibration, calibrate, write_calibration
from strategy.cost.measurement import CostKey
from strategy.hardware.cluster import Cluster, Device, Host, Link
from strategy.hardware.cluster_file import write_cluster
from strategy.models import find_model
from strategy.program.program import ActKind

if TYPE_CHECKING:
    from mpi4py import MPI

"""The model and batch whose pieces give the sizes that are measured."""


def profile_ranks(out: Path, write: Path | None, *, kernels: str, json: bool) -> int:
    """Measure on all ranks; rank 0 writes the calibration and, to `write`, the cluster. Returns the exit code.

    Raises:
        InputError: a file cannot be written there, or the nodes have not the same number of ranks each, one node
            after another; said before anything is measured.
    """
    check_output_path(out, "--out")
    check_output_path(write, "--write", new=True)
    comm = world("profile")
    cluster = agreed_cluster(comm)
    collectives = collective_samples(cluster)
    transport = MpiTransport(comm, collective_lanes(collectives))
    heartbeat = Heartbeat(heartbeat_path(run_folder(), comm.rank))
    measured = 0

    def progress(what: str) -> None:
        nonlocal measured
        heartbeat.beat(0, measured)
        measured += 1

    rows = profile(
        find_model(MODEL),
        GLOBAL_BATCH,
        transport,
        open_kernels(kernels),
        collectives=collectives,
        mean=partial(mean, comm),
        longest=partial(longest, comm),
        progress=progress,
    )
    transport.close()
    if comm.rank == 0:
        calibration = calibrate(rows, cluster)
        write_calibration(calibration, out)
        if write is not None:
            write_atomic(write, write_cluster(_with_measured_links(cluster, calibration)))
        say(f"{len(rows)} sizes of {len(calibration.fitted)} kinds measured on {comm.size} ranks: {out}")
        if json:
            emit({"calibration": str(out), "measurements": [asdict(row) for row in rows]})
    return 0


def agreed_cluster(comm: MPI.Intracomm) -> Cluster:
    """The nodes of this job, by what rank 0 measures of a core; what is between nodes is not known yet.

    Raises:
        InputError: as `count_nodes`.
    """
    nodes = count_nodes(broadcast(comm, gather(comm, os.uname().nodename)))
    return _cluster_of(broadcast(comm, asdict(_sheet(comm.size, nodes)) if comm.rank == 0 else None))


def count_nodes(names: Sequence[str]) -> int:
    """How many nodes ranks are on, by the names of their hosts, rank by rank.

    Raises:
        InputError: the nodes do not share the ranks evenly, one node after another.
    """
    runs = [(name, len(list(same))) for name, same in itertools.groupby(names)]
    if len({count for _, count in runs}) > 1 or len({name for name, _ in runs}) < len(runs):
        raise InputError(
            "nodes do not have as many ranks each, one node after another",
            where="profile",
            got=", ".join(f"{count} on {name}" for name, count in runs),
            hint="say so to the launcher: mpiexec -ppn N, srun --ntasks-per-node=N --distribution=block",
        )
    return len(runs)


def _sheet(ranks: int, nodes: int) -> Cluster:
    """This node's cores; what is between nodes is not known yet."""
    local = local_cluster(ranks // nodes)
    if nodes == 1:
        return local
    inter = replace(local.intra, overlaps=True)  # a network card moves bytes by itself
    return replace(local, name=f"nodes:{nodes}x{ranks // nodes}", nodes=nodes, inter=inter, fabric="tcp")


def _with_measured_links(cluster: Cluster, calibration: Calibration) -> Cluster:
    """Links as messages from rank to rank were measured on them, all at once."""
    links = {}
    for level in ("intra", "inter"):
        link, found = cluster.link(level), calibration.fitted.get(CostKey(ActKind.TRANSFER, level=level))
        if found is not None:
            constants = found.coefficients
            link = replace(link, bytes_per_s=1 / constants.s_per_byte, latency_s=constants.fixed_s)
        links[level] = link
    return replace(cluster, intra=links["intra"], inter=links["inter"])


def _cluster_of(found: dict[str, Any]) -> Cluster:
    """A cluster from what `asdict` makes of one with a host."""
    links = {level: Link(**found[level]) for level in ("intra", "inter")}
    parts = {**links, "device": Device(**found["device"]), "host": Host(**found["host"]), "groups": ()}
    return Cluster(**{**found, **parts})
