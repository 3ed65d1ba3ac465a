"""Patterns spelt out message by message do what they are for, at the times that their folded forms say."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from simulator.exchange.collectives import GPU_OUT, ring
from simulator.exchange.fabric import Fabric, rdma_pcie, tcp_cloud
from simulator.exchange.messages import Messages, doubling, ring_rounds
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


@pytest.mark.parametrize("ranks", [2, 5, 16])
def test_a_folded_ring_in_one_node_takes_what_its_messages_take(ranks: int) -> None:
    fabric = tcp_cloud(1, 25, gpus_per_node=ranks)
    nbytes = 16 * 2**20
    run = Messages.of(fabric)
    folded = ring(fabric, nbytes, 0)
    wire = folded.legs[GPU_OUT] // folded.messages
    slower = replace(fabric, inside_hop_s=folded.latency_ns / folded.messages * 1e-9)
    run.fabric = slower
    for senders, receivers in ring_rounds(ranks):
        run.round(senders, receivers, wire, 0)
    alone_ns = folded.latency_ns + folded.legs[GPU_OUT] / fabric.inside_bytes_per_s * 1e9
    assert run.clock_ns.max() == pytest.approx(alone_ns, rel=1e-3)
    assert set(run.sent.tolist()) == {folded.messages}
    assert set(run.sent_bytes.tolist()) == {folded.legs[GPU_OUT]}


def test_a_folded_ring_over_nodes_takes_nearly_what_its_messages_take() -> None:
    """The slow edges' bytes hide part of the latency of the fast ones, which the folded form adds."""
    fabric = rdma_pcie(8, 25, gpus_per_node=4)
    for nbytes in (2**12, 2**20, 2**26):
        folded = ring(fabric, nbytes, 0)
        rate = min(fabric.nic_bytes_per_s, fabric.flow_bytes_per_s)
        alone_ns = folded.latency_ns + folded.legs["nic out"] / rate * 1e9
        run = Messages.of(fabric)
        for senders, receivers in ring_rounds(fabric.ranks):
            run.round(senders, receivers, -(-nbytes // fabric.ranks), 0)
        assert 0.9 * run.clock_ns.max() <= alone_ns <= 2.1 * run.clock_ns.max(), nbytes
    assert alone_ns == pytest.approx(run.clock_ns.max(), rel=0.02)
