"""Failures: what they and saving leave of a plan's time, from the mean time between failures of one device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from strategy.base.errors import InputError
from strategy.base.units import format_duration, parse_seconds

if TYPE_CHECKING:
    from strategy.cost.cost import CostModel
    from strategy.program.program import Program


@dataclass(frozen=True, slots=True)
class Lost:
    """Share of the time that becomes kept progress, with saves as often as is best."""

    goodput: float
    mtbf_s: float
    stall_s: float
    checkpoint_interval_s: float

    def __str__(self) -> str:
        fails, saves = format_duration(self.mtbf_s), format_duration(self.checkpoint_interval_s)
        return f"{self.goodput:.1%} of the time is kept (a failure every {fails}, a save every {saves})"


def lost_to_failures(
    program: Program, cost: CostModel, *, mtbf: str, restart: str = "5 min", save: str | None = None
) -> Lost:
    """The best that saves can do, with a step at least between two.

    Args:
        program: of the plan.
        cost: of its cluster. All devices are in use; any that fails ends the job.
        mtbf: of one device.
        restart: from a failure until the job trains again.
        save: how long a save stops training; else by how much a step is longer in which every device copies its state
            to its host, which writes it out beside training.

    Raises:
        InputError: a time that cannot be, or no way to know how long a save takes.
    """
    from simulator.goodput import Failures, best_interval_s, goodput, of_cluster
    from simulator.simulate import simulate

    device_mtbf_s = parse_seconds(mtbf, where="--mtbf")
    step_s = simulate(program).step_time_s
    stall_s = _stall_s(program, cost, step_s) if save is None else parse_seconds(save, where="--save")
    all_mtbf_s = of_cluster(device_mtbf_s, cost.cluster.devices)
    failures = Failures(all_mtbf_s, parse_seconds(restart, where="--restart"), stall_s)
    interval_s = max(step_s, best_interval_s(failures))
    return Lost(goodput(failures, interval_s), all_mtbf_s, stall_s, interval_s)


def _stall_s(program: Program, cost: CostModel, step_s: float) -> float:
    from simulator.saving import with_saves
    from simulator.simulate import simulate

    if cost.cluster.host is None:
        hint = "give --save, or write a [host] section into the cluster's file"
        raise InputError("nothing says how long a save takes", where="--mtbf", hint=hint)
    return max(0.0, simulate(with_saves(program, cost)).step_time_s - step_s)
