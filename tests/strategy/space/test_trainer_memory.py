"""Trainer memory: what is left of a space fits as its trainer holds it, and nothing else that does was left out."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.base.errors import InfeasibleError, InputError
from strategy.closed_form.calibration import shipped
from strategy.cost.cost import CostModel
from strategy.hardware.presets import find_cluster
from strategy.models import find_preset
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.space.candidates import expressible, listed
from strategy.space.request import Pins, Request
from strategy.space.trainer_memory import missing_bytes
from strategy.space.trainer_space import TargetTrainer
from strategy.trainers.priced import machine_of_cluster, priced
from strategy.trainers.trained import TrainerName, configured, uncut
from strategy.trainers.write import read_back, write_configuration
from tests.support.long_parameters import long_but
from tests.support.mixed_clusters import mixed


def asked(trainer: TargetTrainer, *, probability: float | None = None, cluster: str = "dgx-h100:4") -> Request:
    """Llama-3-8B, of which some configurations fit 32 H100 and some do not."""
    found = find_cluster(cluster)
    pins = Pins(trainer=trainer, fit_probability=probability)
    model, training = find_preset("llama3-8b").model, Training(128, precision=Precision.BF16)
    return Request("llama3-8b", model, training, CostModel(found, {}), found.largest_memory_bytes, pins)


CASES = [(trainer, probability) for trainer in TargetTrainer for probability in (None, 0.95)]


@pytest.mark.parametrize(("trainer", "probability"), long_but(CASES, 2))
def test_what_is_listed_is_what_fits_by_its_price(trainer: TargetTrainer, probability: float | None) -> None:
    request = asked(trainer, probability=probability)
    cluster = request.cost.cluster
    name, machine = TrainerName(trainer), machine_of_cluster(cluster)
    plain = uncut(name, request.model, request.training, cluster.devices, cluster.devices_per_node)
    configs = [config for group in expressible(request) for config in group]
    found = {config for group in listed(request) for config in group}
    assert 0 < len(found) < len(configs)
    for config in configs[:: max(1, len(configs) // 40)]:
        wanted = configured(plain, config, 1)
        files = write_configuration(wanted, request.model, request.training, "plan").files
        price = priced(read_back(files, name).trained, machine, shipped())
        fits = missing_bytes(price, request.memory_limit_bytes, probability) <= 0
        assert fits == (config in found), config
        assert not fits or (price.fits and (price.fit_probability or 0.0) >= (probability or 0.5))


def test_of_a_surer_space_less_is_left() -> None:
    counts = [sum(1 for _ in listed(asked(TargetTrainer.MEGATRON, probability=one))) for one in (0.5, 0.9, 0.99)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1] > 0


def test_where_nothing_fits_what_needs_least_is_told() -> None:
    request = replace(asked(TargetTrainer.MEGATRON, probability=0.9), memory_limit_bytes=2**30)
    with pytest.raises(InfeasibleError, match=r"probability 0\.9: 1\.00 GiB are there, and the one that needs least"):
        list(listed(request))


def test_without_a_price_all_is_listed_unless_a_probability_is_asked_for() -> None:
    unlike = replace(asked(TargetTrainer.MEGATRON), cost=CostModel(mixed(1.0, 2.0), {}))
    assert list(listed(unlike))
    with pytest.raises(InputError, match="alike nodes"):
        list(listed(replace(unlike, pins=replace(unlike.pins, fit_probability=0.9))))
