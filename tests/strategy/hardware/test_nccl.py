"""NCCL's figures: as the table has them, and nowhere else."""

from __future__ import annotations

import json
import math
from importlib import resources

import pytest

from simulator.exchange.collectives import fenced
from simulator.exchange.fabric import rdma_nvlink, rdma_pcie, tcp_cloud
from strategy.closed_form import collectives
from strategy.closed_form.calibration import shipped
from strategy.closed_form.constants import nominal
from strategy.hardware.devices import Generation
from strategy.hardware.nccl import Algorithm, HopProtocol, Wire, tuning

TABLE = json.loads((resources.files("strategy.hardware") / "nccl.json").read_text())


def test_latencies_and_caps_are_those_of_the_table_to_the_last_bit() -> None:
    found = tuning()
    for protocol in HopProtocol:
        for algorithm in Algorithm:
            base_us = TABLE["baseLatencies"][algorithm][protocol]
            assert found.base_s(algorithm, protocol) == float(f"{base_us}e-6")
            for wire in Wire:
                hop_us = TABLE["hwLatencies"][wire][algorithm][protocol]
                assert found.hop_s(wire, algorithm, protocol) == float(f"{hop_us}e-6")
    assert found.most_by_ll == dict(zip(Generation, (39e9, 87.7e9, 141e9, 282e9), strict=True))
    assert found.channel_by_ll128 == dict(zip(Generation, (20e9, 20e9, 36.7e9, 40e9), strict=True))
    assert found.nvls_ns == 25_000


def test_a_fence_is_the_difference_of_two_protocols() -> None:
    assert [tuning().fence_s(wire) for wire in (Wire.NVLINK, Wire.NETWORK)] == [2.8e-6, 11.3e-6]


def test_fabrics_take_their_hops_shares_and_straggling_from_the_table_and_the_fit() -> None:
    far, near, cloud = rdma_nvlink(2, 100), rdma_pcie(2, 100, gpus_per_node=4), tcp_cloud(2, 100)
    assert far.network_hop_s == tuning().hop_s(Wire.NETWORK, Algorithm.RING, HopProtocol.LL)
    assert (far.inside_hop_s, near.inside_hop_s) == tuple(
        tuning().hop_s(wire, Algorithm.RING, HopProtocol.LL) for wire in (Wire.NVLINK, Wire.PCIE)
    )
    assert fenced(far).inside_hop_s == far.inside_hop_s + tuning().fence_s(Wire.NVLINK)
    assert cloud.nic_bytes_per_s == 100e9 / 8 * nominal(collectives.CONSTANTS)["nccl.network"]
    fitted = shipped().constants["jitter.language"]
    assert cloud.straggle * math.log(2) == pytest.approx(fitted, abs=5e-5)
