"""Patterns spelt out message by message do what they are for, at the times that their folded forms say."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from simulator.exchange.collectives import GPU_OUT, NIC_OUT, fenced, ring
from simulator.exchange.fabric import Fabric, rdma_pcie, tcp_cloud
from simulator.exchange.messages import MessageClocks, doubling, ring_rounds
from simulator.exchange.negotiation import Negotiation, negotiate


def cluster(ranks: int) -> Fabric:
    return tcp_cloud(ranks, 25, gpus_per_node=1)


@pytest.mark.parametrize("ranks", [1, 2, 3, 7, 8, 13, 320])
def test_recursive_doubling_tells_everyone_everything(ranks: int) -> None:
    known = np.eye(ranks, dtype=bool)
    for senders, receivers in doubling(ranks):
        assert len(set(senders.tolist())) == len(senders)
        told = known[senders]
        known[receivers] |= told
    assert known.all()


def test_a_coordinator_of_320_handles_638_messages_and_nobody_18_without_one() -> None:
    central = negotiate(Negotiation.CENTRAL, tcp_cloud(40, 25), 161, 161)
    agreed = negotiate(Negotiation.AGREED, tcp_cloud(40, 25), 161, 161)
    assert (central.root_messages, central.total_messages) == (638, 638)
    assert agreed.most_messages == 18
    assert agreed.time_ns < central.time_ns / 30


@pytest.mark.parametrize("kind", list(Negotiation))
def test_a_negotiation_takes_longer_among_more(kind: Negotiation) -> None:
    times = [negotiate(kind, cluster(ranks), 10, 161).time_ns for ranks in (2, 8, 64, 512, 4096)]
    assert times == sorted(times)
    per_doubling = [(after - before) / before for before, after in pairwise(times)]
    assert (per_doubling[-1] > 6) == (kind is Negotiation.CENTRAL)


def test_a_coordinator_takes_longer_when_more_is_named() -> None:
    few, many = (negotiate(Negotiation.CENTRAL, cluster(320), named, 161).time_ns for named in (1, 161))
    assert many > 10 * few


def spelt_out(fabric: Fabric, nbytes: int) -> tuple[MessageClocks, int]:
    """A ring's messages by the protocol that the folded form takes, and the time that this takes alone."""
    folded = ring(fabric, nbytes, 0)
    piece = -(-nbytes // fabric.ranks)
    wire = max(folded.legs[NIC_OUT], folded.legs[GPU_OUT]) // (2 * (fabric.ranks - 1))
    run = MessageClocks.of(fenced(fabric) if wire == piece else fabric)
    for senders, receivers in ring_rounds(fabric.ranks):
        run.round(senders, receivers, wire, 0)
    run.check()
    assert run.sent.sum() == folded.messages
    far_s = folded.legs[NIC_OUT] / min(fabric.nic_bytes_per_s, fabric.flow_bytes_per_s)
    near_s = folded.legs[GPU_OUT] / min(fabric.inside_bytes_per_s, fabric.bridge_bytes_per_s)
    return run, folded.latency_ns + round(max(far_s, near_s) * 1e9)


@pytest.mark.parametrize("ranks", [2, 5, 16])
@pytest.mark.parametrize("nbytes", [2**10, 2**24])
def test_a_folded_ring_in_one_node_takes_what_its_messages_take(ranks: int, nbytes: int) -> None:
    run, alone_ns = spelt_out(tcp_cloud(1, 25, gpus_per_node=ranks), nbytes)
    assert run.clock_ns.max() == pytest.approx(alone_ns, rel=1e-3)


RDMA, TCP, LARGE = rdma_pcie(8, 25, gpus_per_node=4), tcp_cloud(4, 25), rdma_pcie(512, 100, gpus_per_node=8)


@pytest.mark.parametrize(("fabric", "nbytes"), [
    (RDMA, 2**12), (RDMA, 2**20), (RDMA, 2**26), (TCP, 2**12), (TCP, 2**20), (TCP, 2**26), (LARGE, 2**26),
])  # fmt: skip
def test_a_folded_ring_over_nodes_takes_nearly_what_its_messages_take(fabric: Fabric, nbytes: int) -> None:
    """The slow edges' bytes hide latency of the others, which the folded form adds; it leaves out the others' bytes."""
    run, alone_ns = spelt_out(fabric, nbytes)
    assert alone_ns == pytest.approx(run.clock_ns.max(), rel=0.25)
