"""Prices of configurations: parts add up, what is exposed or offloaded costs, sizes follow."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from strategy.base.errors import InputError
from strategy.closed_form.calibration import shipped
from strategy.hardware.cluster import Host
from strategy.hardware.devices import GIB, device
from strategy.trainers.known_models import named_model
from strategy.trainers.priced import PricedMachine, TrainerPrice, priced
from strategy.trainers.trained import TrainedModel, TrainerName
from tests.support.trainer_configs import shipped_configurations

HOST = Host(1 << 40, 2e11, 1e12, 5e10, 1e-5)
MACHINE = PricedMachine(device("H100"), 64, 8, host=HOST)
LLAMA = TrainedModel(
    TrainerName.MEGATRON, named_model("llama3-8b"), 8192, 1, 128, tp=2, zero=1, sequence_parallel=True
)  # fmt: skip


def price(read: TrainedModel = LLAMA, machine: PricedMachine = MACHINE) -> TrainerPrice:
    return priced(read, machine, shipped())


def gpus_of(read: TrainedModel) -> int:
    """A number of GPUs on which the batch comes out even: the file's, or as many replicas as the experts need."""
    if read.gpus:
        return read.gpus
    replicas = math.lcm(read.ep * read.etp, read.replica_gpus) // read.replica_gpus
    return read.replica_gpus * replicas * read.replicas


@pytest.mark.long
def test_published_configurations_have_a_price() -> None:
    """Every third; files that name a number of GPUs on which their own batch does not come out even are told so."""
    odd = []
    for one in shipped_configurations()[::3]:
        read = one.read(one.documents()).trained
        gpus = gpus_of(read)
        try:
            found = price(read, PricedMachine(device("H100"), gpus, min(gpus, read.gpus_per_node or 8), host=HOST))
        except InputError:
            odd.append(one.name)
            continue
        assert 0 < found.lo_s < found.step_time_s < found.hi_s < math.inf, one.name
        assert sum(found.causes_s.values()) == pytest.approx(found.step_time_s), one.name
        assert min(found.memory_bytes.values()) >= 0, one.name
        assert 0 < found.mfu < 1, one.name
    assert len(odd) <= 4, odd


def test_gradients_that_nothing_overlaps_cost_more() -> None:
    exposed = price(replace(LLAMA, exposed=("gradients",)))
    assert exposed.causes_s["gradients exchanged"] > 2 * price().causes_s["gradients exchanged"]
    assert exposed.step_time_s > price().step_time_s


def test_what_waits_on_the_host_moves_over_its_link() -> None:
    own, away = price(), price(replace(LLAMA, offload=("optimizer",)))
    assert away.memory_bytes["optimiser"] == 0
    assert own.peak_memory_bytes - away.peak_memory_bytes == own.memory_bytes["optimiser"]
    assert away.causes_s["host link"] > 0.0
    assert away.step_time_s == pytest.approx(own.step_time_s + away.causes_s["host link"])
    assert "offloading" in away.extrapolated


def test_what_does_not_fit_is_told() -> None:
    assert price().fits
    large = price(replace(LLAMA, model=named_model("llama3-405b")))
    assert not large.fits
    assert large.peak_memory_bytes > 80 * GIB


def test_twice_the_experts_chosen_cost_more_flop_not_more_memory_of_weights() -> None:
    moe = replace(LLAMA, model=named_model("mixtral-8x7b"), ep=8, zero=1)
    more = replace(moe, model=replace(moe.model, choices=4))
    assert price(more).step_time_s > 1.3 * price(moe).step_time_s
    assert price(more).memory_bytes["parameters"] == price(moe).memory_bytes["parameters"]


@pytest.mark.parametrize(
    ("change", "message"),
    [({"tp": 3}, "do not divide"), ({"global_batch": 100}, "no multiple"), ({"ep": 3}, "more ranks than there are")],
)
def test_what_does_not_come_out_even_is_refused(change: dict[str, int], message: str) -> None:
    with pytest.raises(InputError, match=message):
        price(replace(LLAMA, **change))
