"""Trainer pins: the degrees that a trainer's file says, as what a user pins of a search."""

from __future__ import annotations

from strategy.layout.config import Recompute
from strategy.space.request import Pins
from strategy.trainers.trained import TrainedModel, batch_of, micro_batch_of


def trainer_pins(read: TrainedModel, gpus: int) -> Pins:
    """The degrees as the search's pins."""
    dp = gpus // read.replica_gpus
    batch, micro_batch = batch_of(read, gpus), micro_batch_of(read, gpus)
    zero, group = read.zero if dp > 1 else 0, dp // read.replicas
    return Pins(
        dp=dp,
        tp=read.tp,
        cp=read.cp,
        ep=read.ep,
        pp=read.pp,
        micro_batch=micro_batch,
        num_micro_batches=batch // (dp * micro_batch),
        schedule=read.schedule,
        virtual_stages=read.virtual,
        recompute=_recompute(read),
        zero_stage=zero if group > 1 else 0,
        zero_group=group if zero and 1 < group < dp else None,
    )


def _recompute(read: TrainedModel) -> Recompute:
    if read.recompute == "selective" and read.recompute_modules not in ((), ("core_attn",)):
        return Recompute.NONE if "core_attn" not in read.recompute_modules else Recompute.SELECTIVE
    return Recompute(read.recompute)
