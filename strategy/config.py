"""PlanConfig: the degrees of parallelism and the memory techniques that people talk about."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from strategy.lowering.schedule import Schedule


class Recompute(StrEnum):
    """Which activations of the repeated layers the backward pass computes again."""

    NONE = "none"
    SELECTIVE = "selective"
    """What lies inside of attention (Korthikanti et al. 2022, arXiv:2205.05198, section 5)."""
    FULL = "full"
    """All but the inputs of every layer."""


class Offload(StrEnum):
    """What waits in the host's memory while the device does not need it (see `passes.offload`)."""

    NONE = "none"
    ACTIVATIONS = "activations"
    OPTIMIZER = "optimizer"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class PlanConfig:
    """How a step is spread over devices and time. Data times tensor times pipeline is the number of devices.

    Attributes:
        dp: data-parallel degree.
        tp: tensor-parallel degree.
        pp: pipeline stages.
        micro_batch: samples of a micro-batch on one data-parallel rank.
        num_micro_batches: of a step.
        schedule: in which order a stage runs its chunks.
        cp: context-parallel degree.
        ep: expert-parallel degree.
        virtual_stages: runs of layers per device.
        recompute: which activations the backward pass computes again.
        recompute_values: patterns of names of activations that it computes again besides.
        offload: what waits in the host's memory.
        offload_values: patterns of names of the activations that do, if `offload` names activations; else all do.
        zero_stage: what data-parallel ranks share out between them instead of repeating it (Rajbhandari et al. 2020,
            arXiv:1910.02054): 1 optimiser state, 2 gradients too, 3 parameters too.
    """

    dp: int
    tp: int
    pp: int
    micro_batch: int
    num_micro_batches: int
    schedule: Schedule
    cp: int = 1
    ep: int = 1
    virtual_stages: int = 1
    recompute: Recompute = Recompute.NONE
    recompute_values: tuple[str, ...] = ()
    offload: Offload = Offload.NONE
    offload_values: tuple[str, ...] = ()
    zero_stage: int = 0
