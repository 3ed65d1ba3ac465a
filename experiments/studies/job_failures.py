"""Job failures: what failures and saves add to the days of a training, whatever its plan.

Any GPU that fails ends the job, which goes on from its last save; saves come as often as is best
(`simulator.goodput`: Young 1974, Daly 2006). A save stops training while the state (parameters and the optimiser's
moments, in single precision) is written, with what each node gives to storage. What is not asked for is assumed:

    a GPU fails every 50,000 h   Llama Team 2024, The Llama 3 Herd of Models (arXiv 2407.21783), section 3.3.4: 419
                                 interruptions that nobody planned in 54 days of 16,384 H100, or
                                 54 x 24 h x 16,384 / 419 = 50,676 h
    a node writes 2 GB/s         a share of parallel storage that most clusters have; no measurement
    5 min from a failure         until training goes on; no measurement
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass

from experiments.studies.failures import Lost
from simulator.goodput import Failures, best_interval_s, goodput, of_cluster
from strategy.base.errors import InputError
from strategy.base.units import format_bytes, format_duration, parse_bandwidth, parse_seconds
from strategy.passes.updates import Optimizer
from strategy.space.request import Request

HOUR_S = 3600.0
NEVER = "never"
MOMENTS: Mapping[Optimizer, int] = {
    Optimizer.SGD: 1,
    Optimizer.ADAGRAD: 1,
    Optimizer.MUON: 1,
    Optimizer.ADAM: 2,
    Optimizer.ADAMW: 2,
    Optimizer.LAMB: 2,
}
"""Of a parameter, kept from step to step; Muon's vectors have one more, which is left out."""
NBYTES = 4


@dataclass(frozen=True, slots=True)
class JobSize:
    """What days, failures and saves follow from: a training's devices and nodes, what it takes and what it saves.

    Attributes:
        devices: of the job; any that fails ends it.
        nodes: each writes its share of a checkpoint.
        tokens_per_step: of the global batch.
        checkpoint_bytes: of a save.
    """

    devices: int
    nodes: int
    tokens_per_step: int
    checkpoint_bytes: int


@dataclass(frozen=True, slots=True)
class FailureRates:
    """What is assumed of GPUs, storage and restarts; `save_s` where it is known how long a save stops training."""

    device_mtbf_s: float
    restart_s: float
    storage_bytes_per_s: float
    save_s: float | None = None

    def lost(self, job: JobSize, step_s: float) -> Lost:
        """What failures and saves leave of the time of a training, with a step at least between two saves.

        Raises:
            InputError: nothing is ever saved between two failures.
        """
        stall_s = self.stall_s(job)
        failures = Failures(of_cluster(self.device_mtbf_s, job.devices), self.restart_s, stall_s)
        interval_s = max(step_s, best_interval_s(failures))
        kept = goodput(failures, interval_s)
        if kept <= 0:
            said = f"a failure every {format_duration(failures.mtbf_s)}, and a save takes {format_duration(stall_s)}"
            hint = "fewer GPUs, a longer --mtbf, or a faster --storage"
            raise InputError("no training is ever over", where=f"{job.devices} GPUs", got=said, hint=hint)
        return Lost(kept, failures.mtbf_s, stall_s, interval_s)

    def stall_s(self, job: JobSize) -> float:
        """How long a save stops training."""
        written_s = job.checkpoint_bytes / (job.nodes * self.storage_bytes_per_s)
        return written_s if self.save_s is None else self.save_s

    def text(self, job: JobSize) -> str:
        """What is assumed, with the flag that says otherwise."""
        if self.save_s is None:
            rate = f"{self.storage_bytes_per_s / 1e9:.3g} GB/s of each node (--storage)"
            save = f"{format_bytes(job.checkpoint_bytes)} are saved at {rate}"
        else:
            save = f"a save stops training for {format_duration(self.save_s)} (--save)"
        return (
            f"assumed: a GPU fails every {self.device_mtbf_s / HOUR_S:,.0f} h (--mtbf; 'never' leaves failures out), "
            f"training goes on after {format_duration(self.restart_s)} (--restart), {save}"
        )


def checkpoint_bytes(parameters: int, moments: int) -> int:
    """Of a save: parameters, and so many moments of each."""
    return NBYTES * (1 + moments) * parameters


def size_of(request: Request) -> JobSize:
    """The size of what is searched for."""
    return JobSize(
        devices=request.devices,
        nodes=request.cost.cluster.nodes,
        tokens_per_step=request.training.global_batch * request.model.tokens_per_sample,
        checkpoint_bytes=checkpoint_bytes(request.model.parameters, MOMENTS[request.training.optimizer]),
    )


def read_failure_rates(args: argparse.Namespace) -> FailureRates | None:
    """What the flags of `arguments.add_failures` say; None where nothing ever fails.

    Raises:
        InputError: not a time, or not a rate.
    """
    if args.mtbf == NEVER:
        return None
    device_s = parse_seconds(args.mtbf, where="--mtbf")
    if not device_s:
        expected = "a time above zero, or never"
        raise InputError("not a time between failures", where="--mtbf", got=args.mtbf, expected=expected)
    save_s = None if args.save is None else parse_seconds(args.save, where="--save")
    rates = parse_seconds(args.restart, where="--restart"), parse_bandwidth(args.storage, where="--storage")
    return FailureRates(device_s, *rates, save_s)
