"""One mesh: the configuration of a single stage, with its data axis and without."""

from __future__ import annotations

from dataclasses import replace

from strategy.layout.config import Offload, PlanConfig
from strategy.layout.schedule import Schedule


def on_one_stage(config: PlanConfig) -> PlanConfig:
    """The configuration with the same mesh and micro-batches, without a pipeline."""
    return replace(config, pp=1, virtual_stages=1, schedule=Schedule.ONE_F_ONE_B, runs=(), stage_order=())


def without_data_axis(config: PlanConfig) -> PlanConfig:
    """The same with the samples of one data-parallel rank, or of those that share out experts, in two micro-batches.

    Its axes lie as they do without strides. Where parameters live is nothing that it counts.
    """
    once, offload = on_one_stage(config), Offload.ACTIVATIONS if config.offload.of_activations else Offload.NONE
    return replace(once, dp=config.ep, num_micro_batches=2, zero_stage=0, zero_group=0, strides=(), offload=offload)
