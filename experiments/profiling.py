"""Profiling: what one rank of `sbplan profile` does."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from executor.profile import collective_lanes, collective_samples, profile
from executor.runtime.kernels.base import open_kernels
from executor.runtime.transport.mpi import MpiTransport
from executor.supervision.environment import run_folder
from executor.supervision.heartbeat import Heartbeat, heartbeat_path
from experiments.console import emit, say
from experiments.machine import local_cluster
from experiments.outputs import check_output_path
from experiments.ranks import broadcast, mean, world
from experiments.small_model import GLOBAL_BATCH, MODEL
from strategy.cost.calibrate import calibrate, write_calibration
from strategy.hardware.cluster import Cluster, Device, Host, Link
from strategy.models import find_model

"""The model and batch whose pieces give the sizes that are measured."""


def profile_ranks(out: Path, *, json: bool) -> int:
    """Measure on all ranks; rank 0 writes the calibration. Returns the exit code.

    Raises:
        InputError: the calibration cannot be written there; said before anything is measured.
    """
    check_output_path(out, "--out")
    comm = world("profile")
    cluster = _cluster_of(broadcast(comm, asdict(local_cluster(comm.size)) if comm.rank == 0 else None))
    collectives = collective_samples(cluster, comm.size)
    transport = MpiTransport(comm, collective_lanes(collectives, comm.size))
    heartbeat = Heartbeat(heartbeat_path(run_folder(), comm.rank))
    measured = 0

    def progress(what: str) -> None:
        nonlocal measured
        heartbeat.beat(0, measured)
        measured += 1

    rows = profile(
        find_model(MODEL),
        GLOBAL_BATCH,
        cluster,
        transport,
        open_kernels("numpy"),
        collectives=collectives,
        combine=lambda seconds: mean(comm, seconds),
        progress=progress,
    )
    transport.close()
    if comm.rank == 0:
        calibration = calibrate(rows, cluster)
        write_calibration(calibration, out)
        say(f"{len(rows)} sizes of {len(calibration.fitted)} kinds measured on {comm.size} ranks: {out}")
        if json:
            emit({"calibration": str(out), "measurements": [asdict(row) for row in rows]})
    return 0


def _cluster_of(found: dict[str, Any]) -> Cluster:
    """A cluster from what `asdict` makes of one with a host."""
    links = {level: Link(**found[level]) for level in ("intra", "inter")}
    parts = {**links, "device": Device(**found["device"]), "host": Host(**found["host"]), "groups": ()}
    return Cluster(**{**found, **parts})
