"""Both transports move the same; on the loopback every injected fault ends in an error that names it."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest

from executor.runtime.transport.base import Lane, PeerError, Transport, TransportError, lanes_of, wait
from executor.runtime.transport.loopback import LoopbackHub
from strategy.program.program import ActKind, Actor, BoxingTask, Program, Stream
from tests.executor.random_boxing import FAULTS, Fault, on_threads
from tests.mpi.launch import run_ranks
from tests.support.long_parameters import long_but


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", long_but([2, 3, 4], 1))
def test_mpi_plays_the_cases_that_loopback_plays(ranks: int) -> None:
    printed = run_ranks(ranks, "tests.mpi.movements", "120", str(ranks))
    assert printed == f"120 cases by ranks {list(range(ranks))}\n"


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", long_but([2, 3], 0))
def test_a_library_that_counts_in_32_bits_plays_them_by_datatypes(ranks: int) -> None:
    printed = run_ranks(ranks, "tests.mpi.movements", "120", str(ranks), "mpi3")
    assert printed == f"120 cases by ranks {list(range(ranks))}\n"


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", long_but([2, 3], 0))
def test_mpi_plays_them_by_addresses_and_messages_alone(ranks: int) -> None:
    printed = run_ranks(ranks, "tests.mpi.movements", "120", str(ranks), "addresses")
    assert printed == f"120 cases by ranks {list(range(ranks))}\n"


@pytest.mark.long
@pytest.mark.mpi
def test_what_is_moved_once_is_not_kept() -> None:
    """Each call moves 1 MiB through arrays of its own; all kept, 30 of them would grow a rank by 63 MB."""
    grown = json.loads(run_ranks(2, "tests.mpi.eager", "30"))["grown_nbytes"]
    assert grown < 16 * 2**20


@pytest.mark.mpi
def test_shared_memory_has_no_name_that_a_killed_job_would_leave_behind() -> None:
    assert json.loads(run_ranks(3, "tests.mpi.segments")) == [[], [], []]


def _exchange(transport: Transport) -> None:
    """Two exchanges and two messages around a ring of all ranks, each verified."""
    group = tuple(range(transport.size))
    for number in (5, 9):
        send = [np.array([number, transport.rank, peer]) for peer in group]
        receive = [np.zeros(3, int) for _ in group]
        wait(transport.exchange(group, number, send, receive), transport, timeout_s=0.3)
        for peer in group:
            np.testing.assert_array_equal(receive[peer], [number, peer, transport.rank])
    for turn in range(2):
        got = np.zeros(1)
        mine = transport.receive((transport.rank - 1) % transport.size, 3, got)
        sent = transport.send((transport.rank + 1) % transport.size, 3, np.array([turn + 0.5]))
        wait(mine, transport, timeout_s=0.3)
        wait(sent, transport, timeout_s=0.3)
        assert got == turn + 0.5


def test_untampered_ring() -> None:
    transports = on_threads(3, _exchange)
    assert [t.bytes_sent for t in transports] == [{"exchange": 2 * 2 * 24, "all_gather": 0, "send": 16}] * 3


@pytest.mark.parametrize(("kind", "at"), [(k, at) for k in FAULTS for at in range(4) if (k, at) != ("late", 1)])
def test_every_injected_fault_is_named(kind: str, at: int) -> None:
    began = time.monotonic()
    with pytest.raises(TransportError, match=r"rank [01]") as caught:
        on_threads(2, _exchange, {5: Lane((0, 1)), 9: Lane((0, 1))}, Fault(kind, at))
    assert not isinstance(caught.value, PeerError)
    expected = {
        "lost": "lost or out of order|waited",
        "doubled": "duplicate|never asked",
        "late": "lost or out of order|waited",
        "renumbered": "another rendezvous",
        "strayed": "lost or out of order|waited",
        "shortened": "bytes and found",
    }[kind]
    assert any(word in str(caught.value) for word in expected.split("|")), caught.value
    assert time.monotonic() - began < 5


def test_messages_of_other_channels_may_overtake() -> None:
    """The last exchange's message comes after the first message of rendezvous 3: slow, and no fault."""
    on_threads(2, _exchange, {5: Lane((0, 1)), 9: Lane((0, 1))}, Fault("late", 1))


def test_a_failing_rank_ends_the_others_at_once() -> None:
    ended: dict[int, BaseException] = {}

    def play_rank(transport: Transport) -> None:
        if transport.rank == 2:
            raise ValueError("no more")
        try:
            wait(transport.receive(2, 0, np.zeros(1)), transport, timeout_s=30)
        except PeerError as error:
            ended[transport.rank] = error
            raise

    began = time.monotonic()
    with pytest.raises(ValueError, match="no more"):
        on_threads(3, play_rank)
    assert time.monotonic() - began < 1
    assert sorted(ended) == [0, 1]
    assert all("no more" in str(error) for error in ended.values())


def test_send_is_over_only_when_taken() -> None:
    hub = LoopbackHub(2)
    one, other = hub.transport(0), hub.transport(1)
    payload = np.arange(4)
    sent = one.send(1, 7, payload)
    payload[:] = 0
    assert not sent.test()
    assert "rank 1 to take" in sent.describe()
    got = np.empty_like(payload)
    assert other.receive(0, 7, got).test()
    assert sent.test()
    np.testing.assert_array_equal(got, np.arange(4))


def test_lanes_follow_streams() -> None:
    """One group on two streams is two lanes, for nothing orders the one's collectives and the other's."""
    task = BoxingTask((0, 1), (((0, 2),),) * 2, (((0, 2),),) * 2)
    names = {"tensor": (0, 1), "data": (2,)}
    actors: list[Actor] = []
    streams: list[Stream] = []
    for rank in (0, 1):
        for name, numbers in names.items():
            first = len(actors)
            actors += [Actor(f"{name}{n}", rank, ActKind.ALL_REDUCE, rendezvous=n, task=task) for n in numbers]
            streams.append(Stream(rank, name, tuple(range(first, len(actors)))))
    lanes = lanes_of(Program(2, (), tuple(actors), tuple(streams)))
    assert sorted(lanes) == [0, 1, 2]
    assert {lane.group for lane in lanes.values()} == {(0, 1)}
    assert lanes[0] == lanes[1] != lanes[2]


def test_a_second_transport_of_a_rank_is_refused() -> None:
    """Two workers of one rank on one hub would take each other's messages."""
    hub = LoopbackHub(2)
    hub.transport(1)
    with pytest.raises(TransportError, match="rank 1 has its transport of this hub already"):
        hub.transport(1)
    hub.transport(0)
