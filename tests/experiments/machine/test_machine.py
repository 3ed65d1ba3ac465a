"""This machine as a cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.machine.machine import Rates, find_machine, local_cluster, measure_rates, memory_bytes, num_cores
from strategy.base.errors import InputError
from strategy.hardware.cluster_file import read_cluster, write_cluster

RATES = Rates(flop_per_s=1e11, memory_bytes_per_s=2e10, call_s=1e-6, message_s=2e-5)


def test_the_rates_of_a_core_are_possible() -> None:
    found = measure_rates()
    assert 1e8 < found.flop_per_s < 1e13
    assert 1e8 < found.memory_bytes_per_s < 1e13
    assert 1e-8 < found.call_s < 1e-3
    assert 1e-7 < found.message_s < 1e-1


def test_ranks_share_the_machine() -> None:
    found = local_cluster(4, RATES)
    assert (found.name, found.devices, found.nodes) == ("local:4", 4, 1)
    assert found.device.memory_bytes == memory_bytes() // 4
    assert found.device.flop_per_s == 1e11
    assert found.intra == found.inter
    assert found.intra.bytes_per_s == 5e9
    assert not found.overlaps


def test_the_same_rates_give_the_same_cluster_and_it_survives_a_file(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_text(write_cluster(local_cluster(2, RATES)))
    assert read_cluster(path) == local_cluster(2, RATES)


def test_local_has_a_rank_per_core_and_two_at_least() -> None:
    assert find_machine("local").devices == max(2, num_cores())
    assert find_machine("local:3").devices == 3


def test_other_clusters_are_found_too(cluster_file: Path) -> None:
    assert find_machine("dgx-a100:2").devices == 16
    assert find_machine(str(cluster_file)).name == "two-cores"


@pytest.mark.parametrize("text", ["local:", "local:0", "local:-1", "local:two", "local:1.5", "local:02", "local:99999"])
def test_a_wrong_number_of_ranks(text: str) -> None:
    with pytest.raises(InputError, match="not a number of ranks"):
        find_machine(text)
