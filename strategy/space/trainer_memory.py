"""Trainer memory: the configurations whose files a trainer is likely to hold in the devices' memory.

A plan says to the byte what our program allocates; what a trainer holds for the same plan is a prediction of the closed
form. It follows from the configuration, but for what layouts decide, which is taken to be what trainers are told most:
the optimiser's state is shared out where layouts may do so, and experts are not cut along the tensor axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from strategy.base.errors import InfeasibleError, InputError, present
from strategy.base.units import format_bytes
from strategy.closed_form.calibration import shipped
from strategy.closed_form.memory_error import MemoryErrors
from strategy.closed_form.products import Floats
from strategy.layout.config import PlanConfig
from strategy.space.request import Request
from strategy.trainers.priced import PricedMachine, TrainerPrice, held_memory, machine_of_cluster
from strategy.trainers.trained import TrainedModel, TrainerName, configured, uncut
from strategy.trainers.write import read_back, write_configuration

EXPECTED = 0.5
"""Probability with which a trainer's file has to fit where nothing is asked for."""


def fitting_groups(request: Request, groups: Sequence[tuple[PlanConfig, ...]]) -> Iterator[tuple[PlanConfig, ...]]:
    """Of groups of configurations for a trainer those whose files fit with the probability that is asked for.

    All of them, where the closed form prices no such model or cluster and nothing is asked for.

    Raises:
        InputError: a probability is asked for, and the closed form prices no such model or cluster.
        InfeasibleError: none fits.
    """
    probability = request.pins.fit_probability
    try:
        machine = machine_of_cluster(request.cost.cluster)
        plain = _as_written(request)
    except InputError:
        if probability is not None:
            raise
        yield from groups
        return
    configs = [config for group in groups for config in group]
    if not configs:
        return
    missing = _missing(request, plain, machine, configs)
    if missing.min() > 0:
        limit = min(machine.device.memory_bytes, request.memory_limit_bytes)
        sure = EXPECTED if probability is None else probability
        raise InfeasibleError(
            f"no file of {plain.trainer} fits with probability {sure:g}: {format_bytes(limit)} are there, and the one "
            f"that needs least takes {format_bytes(limit + int(missing.min()))} to be as sure",
            hint="ask for less with --fit-probability, or give more GPUs",
        )
    fits = iter((missing <= 0).tolist())
    for group in groups:
        found = tuple(config for config in group if next(fits))
        if found:
            yield found


def missing_bytes(price: TrainerPrice, limit_bytes: int, probability: float | None) -> int:
    """Bytes per GPU that a priced file lacks to fit with a probability; none, or less than none, where it does."""
    needed = math.ceil(price.needed_memory_bytes * margin(price.job.framework, probability))
    lacking = needed - min(price.limit_bytes, limit_bytes)
    return lacking if price.fits else max(lacking, 1)


def margin(framework: str, probability: float | None) -> float:
    """What has to be there over what is predicted of a framework's run."""
    errors: MemoryErrors = present(shipped().memory, "errors of memory")
    return errors.margin(framework, EXPECTED if probability is None else probability)


def _as_written(request: Request) -> TrainedModel:
    """The model and its training as the trainer's own file says them, on devices that nothing is cut among."""
    cluster, trainer = request.cost.cluster, TrainerName(present(request.pins.trainer, "the trainer"))
    plain = uncut(trainer, request.model, request.training, cluster.devices, cluster.devices_per_node)
    written = write_configuration(plain, request.model, request.training, f"plan.{trainer}")
    return read_back(written.files, trainer).trained


def _missing(request: Request, plain: TrainedModel, machine: PricedMachine, configs: Sequence[PlanConfig]) -> Floats:
    """`missing_bytes` of each configuration; (configurations,)."""
    held = held_memory([configured(plain, config, 1) for config in configs], machine, shipped())
    margins = {name: margin(name, request.pins.fit_probability) for name in set(held.frameworks)}
    needed = held.needed_bytes * [margins[name] for name in held.frameworks]
    lacking = np.ceil(needed) - min(machine.device.memory_bytes, request.memory_limit_bytes)
    return np.where(held.fits, lacking, np.maximum(lacking, 1.0))
