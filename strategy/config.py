"""PlanConfig: the degrees of parallelism and the memory techniques that people talk about."""

from __future__ import annotations

from dataclasses import dataclass

from strategy.lowering.schedule import Schedule


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
        virtual_stages: runs of layers per device, which a micro-batch passes on as many laps (see `schedule`).
        recompute: which activations the backward pass computes again.
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
    recompute: str = "none"
    zero_stage: int = 0
