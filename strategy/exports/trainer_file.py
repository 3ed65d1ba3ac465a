"""Trainer file: a plan as a trainer's files, what of the plan they do not say, and what they take and hold."""

from __future__ import annotations

from dataclasses import replace

from strategy.closed_form.calibration import shipped
from strategy.exports.of_plan import said_of_plan
from strategy.plan.plan import Plan
from strategy.trainers.priced import TrainerPrice, machine_of_cluster, priced
from strategy.trainers.trained import TrainerName
from strategy.trainers.write import WrittenConfiguration, read_back, write_configuration


def trainer_file(plan: Plan, trainer: TrainerName, name: str) -> WrittenConfiguration:
    """A plan as a trainer's files.

    Args:
        plan: what is written.
        trainer: one of `strategy.trainers.write.WRITTEN`.
        name: of the file; a second one is named after it.

    Raises:
        InputError: the model is no decoder of text, or torchtitan has no flavour like it.
    """
    said = said_of_plan(plan, trainer)
    written = write_configuration(said.trained, plan.model, plan.training, name)
    return replace(written, cannot_say=(*said.left_out, *written.cannot_say))


def file_price(plan: Plan, trainer: TrainerName) -> TrainerPrice:
    """What a plan takes and holds as a trainer's file says it, by the closed form.

    Raises:
        InputError: the closed form prices no such model or cluster.
    """
    back = read_back(trainer_file(plan, trainer, f"plan.{trainer}").files, trainer)
    return priced(back.trained, machine_of_cluster(plan.cluster), shipped())
