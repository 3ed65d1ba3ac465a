"""Failures: what they and saving leave of a plan's time, from the mean time between failures of one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from strategy.errors import InputError
from strategy.units import format_seconds, parse_seconds

if TYPE_CHECKING:
    from strategy.cluster import Cluster
    from strategy.program import Program


@dataclass(frozen=True, slots=True)
class Lost:
    """Share of the time that becomes kept progress, with saves as often as is best."""

    goodput: float
    mtbf_s: float
    stall_s: float
    checkpoint_interval_s: float

    def __str__(self) -> str:
        saves = (
            f"a failure every {format_seconds(self.mtbf_s)}, a save every {format_seconds(self.checkpoint_interval_s)}"
        )
        return f"{self.goodput:.1%} of the time is kept ({saves})"


def lost_to_failures(
    program: Program, cluster: Cluster, *, mtbf: str, restart: str = "5 min", save: str | None = None
) -> Lost:
    """The best that saves can do.

    Args:
        program: of the plan.
        cluster: all of its devices are in use; any that fails ends the job.
        mtbf: of one device.
        restart: from a failure until the job trains again.
        save: how long a save stops training; else the time in which every device copies its state to its host, which
            writes it out beside training.

    Raises:
        InputError: a time that cannot be, or no way to know how long a save takes.
    """
    from simulator.goodput import Failures, best_interval_s, goodput, of_cluster

    device_mtbf_s = parse_seconds(mtbf, where="--mtbf")
    stall_s = _copy_s(program, cluster) if save is None else parse_seconds(save, where="--save")
    all_mtbf_s = of_cluster(device_mtbf_s, cluster.devices)
    failures = Failures(all_mtbf_s, parse_seconds(restart, where="--restart"), stall_s)
    if stall_s == 0:
        raise InputError("a save that takes no time", where="--save", expected="a time above zero")
    interval_s = best_interval_s(failures)
    return Lost(goodput(failures, interval_s), all_mtbf_s, stall_s, interval_s)


def _copy_s(program: Program, cluster: Cluster) -> float:
    if cluster.host is None:
        hint = "give --save, or write a [host] section into the cluster's file"
        raise InputError("nothing says how long a save takes", where="--mtbf", hint=hint)
    state = [0] * program.ranks
    for register in program.registers:
        if register.initial:
            state[register.rank] += register.nbytes
    return cluster.host.link_latency_s + max(state) / cluster.host.link_bytes_per_s
