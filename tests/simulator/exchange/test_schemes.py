"""All schemes exchange every gradient of every step, lose no byte, and move the right way with the network."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from simulator.exchange.fabric import Fabric, rdma_pcie, tcp_cloud
from simulator.exchange.horovod import Horovod, fused
from simulator.exchange.key_value import KeyValue
from simulator.exchange.streams import Streams
from simulator.exchange.summation import Summation
from simulator.exchange.training import Scheme, simulate
from simulator.exchange.workload import ComputeSpan, Workload
from strategy.base.errors import InputError
from tests.simulator.exchange.conftest import SCHEMES, stack


def test_what_is_sent_is_received_and_no_link_is_over_its_capacity(
    scheme: Scheme, layers: Workload, steady: Fabric
) -> None:
    found = simulate(layers, steady, scheme)
    assert found.sent_bytes == found.received_bytes > 0
    assert found.makespan_ns >= max(found.busy_ns.values())
    assert found.step_ns >= found.alone_ns == layers.compute_ns
    assert found.sent_bytes >= 5 * 2 * (steady.nodes - 1) * sum(layers.nbytes)


def test_the_same_seed_gives_the_same_run_and_another_one_another(scheme: Scheme, layers: Workload) -> None:
    fabric = tcp_cloud(4, 25)
    first, again, other = (simulate(layers, fabric, scheme, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first.step_ns != other.step_ns


def test_one_gpu_exchanges_nothing(scheme: Scheme, layers: Workload) -> None:
    alone = replace(tcp_cloud(1, 25, gpus_per_node=1), straggle=0.0)
    if isinstance(scheme, Summation):
        scheme = Summation()
    found = simulate(layers, alone, scheme)
    assert found.sent_bytes == 0
    assert found.exposed < 0.06, "a cycle, or the host's summing"


def test_a_slower_network_never_helps(scheme: Scheme, layers: Workload, steady: Fabric) -> None:
    names = ("nic_bytes_per_s", "flow_bytes_per_s", "thread_bytes_per_s")
    rates = [replace(steady, **{name: share * getattr(steady, name) for name in names}) for share in (1, 0.5, 0.125)]
    steps = [simulate(layers, fabric, scheme).step_ns for fabric in rates]
    assert steps == sorted(steps)
    assert steps[2] > 1.2 * steps[0]


def test_more_nodes_never_help(scheme: Scheme, layers: Workload, steady: Fabric) -> None:
    if isinstance(scheme, Summation):
        scheme = Summation()
    steps = [simulate(layers, replace(steady, nodes=nodes), scheme).step_ns for nodes in (1, 4, 16, 64)]
    assert all(after >= 0.99 * before for before, after in pairwise(steps)), steps
    assert steps[-1] > steps[0]


@pytest.mark.parametrize("name", [name for name in SCHEMES if name != "key-value"])
def test_four_thousand_ranks_are_simulated(name: str, layers: Workload) -> None:
    found = simulate(layers, tcp_cloud(512, 25), SCHEMES[name], steps=1)
    assert found.sent_bytes == found.received_bytes
    assert found.tally.root_messages in (0, 24, 2 * 4095)


def test_one_straggler_holds_all_up(layers: Workload, steady: Fabric) -> None:
    some, more = (simulate(layers, replace(steady, straggle=s), Horovod(), steps=20) for s in (0.01, 0.03))
    assert simulate(layers, steady, Horovod()).exposed < some.exposed < more.exposed


def test_compute_slows_down_while_bytes_move(layers: Workload, steady: Fabric) -> None:
    """Everything is hidden, so that what is left is the slowing down by a tenth for as long as the links are busy."""
    long = stack(12, 2**20, forward_ns=30_000_000)
    free, slow = (simulate(long, replace(steady, slowdown=s), Streams()) for s in (0.0, 0.1))
    busy_ns = free.busy_ns["connection 0"] / 5
    assert 0 < slow.step_ns - free.step_ns <= 0.11 * 4 * busy_ns


def test_half_the_bandwidth_doubles_what_is_bound_by_it_and_nothing_else(steady: Fabric) -> None:
    half = replace(steady, nic_bytes_per_s=steady.nic_bytes_per_s / 2)
    bound, free = stack(4, 64 * 2**20, forward_ns=100_000), stack(4, 2**16, forward_ns=50_000_000)
    for step, least, most in ((bound, 1.6, 2.05), (free, 1.0, 1.02)):
        ratio = simulate(step, half, Streams()).step_ns / simulate(step, steady, Streams()).step_ns
        assert least <= ratio <= most


def test_fusing_fewer_bytes_costs_latency_at_scale(layers: Workload) -> None:
    fabric = replace(rdma_pcie(128, 25, gpus_per_node=4), straggle=0.0)
    steps = [simulate(layers, fabric, Horovod(fusion_bytes=size)).step_ns for size in (2**26, 2**23, 2**14)]
    assert steps == sorted(steps)
    assert steps[-1] > steps[0]


def test_groups_are_fused_in_order_up_to_the_threshold() -> None:
    assert fused([3, 0, 1, 2], [4, 4, 20, 4], 8) == [(3, 0), (1,), (2,)]
    assert fused([], [], 8) == []


def test_a_store_without_fusion_pays_for_every_key(steady: Fabric) -> None:
    few, many = (
        Workload("keys", (ComputeSpan(10**6, tuple(range(keys)), tuple(range(keys))),), (2**20 // keys,) * keys)
        for keys in (16, 512)
    )
    assert (
        simulate(many, steady, KeyValue(), steps=2).step_ns > 1.2 * simulate(few, steady, KeyValue(), steps=2).step_ns
    )


def test_a_hot_server_holds_up_a_store() -> None:
    """A key of half a million elements lives on one server, to which all others send; one of two million is spread."""
    fabric = replace(tcp_cloud(16, 25), straggle=0.0)
    key = Workload("key", (ComputeSpan(10**6, (0,), ()), ComputeSpan(10**6, (), (0,))), (4 * 2**19,))
    kept, cut = (simulate(key, fabric, KeyValue(split)).step_ns for split in (10**6, 10**5))
    assert kept > 5 * cut


def test_priority_pays_where_the_next_step_waits_for_the_first_layer(steady: Fabric) -> None:
    heavy = stack(12, 32 * 2**20, forward_ns=3_000_000)
    eager, barred = (simulate(heavy, steady, Summation(barrier=barrier)) for barrier in (False, True))
    assert eager.step_ns < 0.95 * barred.step_ns


def test_machines_without_gpus_take_load_off_those_with_them(steady: Fabric) -> None:
    """From a ring's traffic, 2 (n - 1) / n, down to every byte once, with as many as there are nodes."""
    heavy = stack(4, 64 * 2**20, forward_ns=100_000)
    steps = [simulate(heavy, steady, Summation(servers)) for servers in (0, 1, 2, 4)]
    times = [found.step_ns for found in steps]
    assert times == sorted(times, reverse=True)
    ratio = steps[0].busy_ns["nic out"] / steps[-1].busy_ns["nic out"]
    assert ratio == pytest.approx(1.5, rel=0.02)


def test_bandwidth_over_streams_saturates(steady: Fabric) -> None:
    bulk = Workload("bulk", (ComputeSpan(1000, tuple(range(64)), tuple(range(64))),), (2**22,) * 64)
    steps = [simulate(bulk, steady, Streams(count, 2**22)).step_ns for count in (1, 2, 4, 8, 16)]
    assert steps[0] > 1.9 * steps[1] > 2.5 * steps[2]
    assert steps[2] < 1.05 * steps[3]
    assert steps[4] == pytest.approx(steps[3], rel=0.02)


@pytest.mark.parametrize(("speeds", "loss"), [((1.0, 1.0, 1.0, 1.0), 1.0), ((1.0, 0.8, 0.6, 0.4), 1.4)])
def test_a_barrier_per_fusion_waits_for_the_slowest_stream(
    steady: Fabric, speeds: tuple[float, ...], loss: float
) -> None:
    bulk = Workload("bulk", (ComputeSpan(1000, tuple(range(64)), tuple(range(64))),), (2**22,) * 64)
    free, barred = (simulate(bulk, steady, Streams(4, 2**22, speeds=speeds, together=t)) for t in (False, True))
    assert loss <= barred.step_ns / free.step_ns < loss + 0.3


def test_what_is_no_scheme_or_fabric_is_refused() -> None:
    with pytest.raises(InputError, match="at least 1"):
        Streams(streams=0)
    with pytest.raises(InputError, match="one speed per stream"):
        Streams(streams=2, speeds=(1.0,))
    with pytest.raises(InputError, match="nodes"):
        tcp_cloud(0, 25)
    with pytest.raises(InputError, match="nic_bytes_per_s"):
        tcp_cloud(4, float("nan"))
    with pytest.raises(InputError, match="straggle"):
        replace(tcp_cloud(4, 25), straggle=-0.1)
    with pytest.raises(InputError, match="not each given once"):
        Workload("twice", (ComputeSpan(1, (), (0,)), ComputeSpan(1, (0,), (0,))), (4,))
    with pytest.raises(InputError, match="and needed"):
        Workload("never", (ComputeSpan(1, (), (0,)),), (4,))
