"""Published configurations: their degrees are their devices, their models those that were published."""

from __future__ import annotations

import math

import pytest

from experiments.published.cells import read_cells
from experiments.published.configurations import BLOOM, CONFIGURATIONS, Configuration, chosen
from experiments.published.fitting import TRAINING, reference
from strategy.base.errors import InputError
from strategy.closed_form.frameworks import PROFILES
from strategy.hardware.presets import find_cluster
from strategy.layout.schedule import schedule_problem

NAMES = [one.name for one in CONFIGURATIONS]


def number(value: int | None) -> int:
    assert value is not None, "a source says all of it"
    return value


@pytest.mark.parametrize("one", CONFIGURATIONS, ids=NAMES)
def test_degrees_are_the_devices_and_micro_batches_the_batch(one: Configuration) -> None:
    pins = one.pins
    degrees = [number(value) for value in (pins.dp, pins.tp, pins.cp, pins.pp)]
    assert math.prod(degrees) == find_cluster(one.cluster).devices
    samples = degrees[0] * number(pins.micro_batch)
    assert one.training.global_batch % samples == 0
    assert degrees[3] * pins.laps <= one.model.layers
    assert pins.schedule is not None
    assert schedule_problem(pins.schedule, degrees[3], pins.laps, one.training.global_batch // samples) is None
    assert pins.recompute is not None
    assert pins.zero_stage is not None
    assert one.framework in PROFILES
    assert one.source


def test_names_tell_them_apart_and_measured_rows_are_there() -> None:
    assert len(set(NAMES)) == len(NAMES) == 17
    rows = {cells["row_id"]: cells for cells in read_cells(reference(TRAINING[0]))}
    for one in CONFIGURATIONS:
        if one.measured_row:
            cells = rows[one.measured_row]
            assert int(cells["num_gpus"]) == find_cluster(one.cluster).devices
            assert int(cells["global_batch"]) == one.training.global_batch
            assert int(cells["layers"]) == one.model.layers
            assert [cells[name] for name in ("dp", "tp", "pp")] == [
                str(one.pins.dp),
                str(one.pins.tp),
                str(one.pins.pp),
            ]


def test_models_have_their_published_sizes() -> None:
    """In billions; of BLOOM exactly but for its positions (bigscience/bloom: 176,247,271,424)."""
    assert BLOOM.parameters - BLOOM.sequence * BLOOM.width + 2 * BLOOM.width == 176_247_271_424
    size = {one.name: one.model.parameters / 1e9 for one in CONFIGURATIONS}
    assert round(size["mt-nlg-530b"]) == 530
    assert round(size["mixtral-8x7b"], 1) == 46.7
    assert round(size["llama3-405b-8k"]) == round(size["llama3-405b-128k"]) == 406
    assert round(size["megatron-1t"]) == 1008


def test_names_and_patterns_choose_in_the_order_of_the_table() -> None:
    assert [one.name for one in chosen([])] == NAMES
    assert [one.name for one in chosen(["mixtral*", "megatron-1.7b", "MEGATRON-1T"])] == [
        "megatron-1.7b",
        "megatron-1t",
        "mixtral-8x7b",
    ]


def test_an_unknown_name_gets_a_hint() -> None:
    with pytest.raises(InputError, match=r"--only: no published .*got 'megatron-2b'.*did you mean 'megatron-"):
        chosen(["megatron-1t", "megatron-2b"])
    with pytest.raises(InputError, match=r"known: .*bloom-176b"):
        chosen(["zzz*"])
