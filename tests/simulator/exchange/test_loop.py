"""Transfers share links, and nothing is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from simulator.exchange.loop import LinkGroup, Loop, Side, TaskQueue
from strategy.base.errors import InternalError

WIRE = {"out": LinkGroup(1e9, Side.OUT), "in": LinkGroup(1e9, Side.IN)}


def note(loop: Loop, times: list[int]) -> Callable[[], None]:
    return lambda: times.append(loop.now_ns)


def test_a_transfer_waits_its_latency_and_then_moves_its_bytes() -> None:
    loop, times = Loop(WIRE), list[int]()
    loop.transfer({"out": 1000, "in": 1000}, 50, note(loop, times))
    loop.run()
    assert times == [1050]
    assert loop.sent_bytes == loop.received_bytes == 1000


def test_two_transfers_share_a_link_and_a_connection_holds_one_back() -> None:
    loop, times = Loop(WIRE | {"connection": LinkGroup(0.25e9)}), list[int]()
    loop.transfer({"out": 1000, "in": 1000, "connection": 1000}, 0, note(loop, times))
    loop.transfer({"out": 1000, "in": 1000}, 0, note(loop, times))
    loop.run()
    assert times == [2000, 4000]
    assert loop.busy_ns == {"out": 2000, "in": 2000, "connection": 4000}


def test_a_transfer_of_nothing_ends_after_its_latency() -> None:
    loop, times = Loop(WIRE), list[int]()
    loop.transfer({"out": 0}, 7, note(loop, times))
    loop.run()
    assert times == [7]


def test_bytes_that_nobody_receives_are_found() -> None:
    loop = Loop(WIRE)
    loop.transfer({"out": 1000, "in": 999}, 0, lambda: None)
    with pytest.raises(InternalError, match="1000 bytes were sent and 999 received"):
        loop.run()


def test_alike_links_count_as_many_times_as_they_are() -> None:
    loop = Loop({"out": LinkGroup(1e9, Side.OUT, count=3), "in": LinkGroup(1e9, Side.IN)})
    loop.transfer({"out": 100, "in": 300}, 0, lambda: None)
    loop.run()
    assert loop.sent_bytes == 300


def test_the_network_is_told_to_move_once_for_all_that_moves_at_once() -> None:
    loop, told = (
        Loop({"out": LinkGroup(1e9, Side.OUT, far=True), "in": LinkGroup(1e9, Side.IN)}),
        list[tuple[int, bool]](),
    )
    loop.moves = lambda moving: told.append((loop.now_ns, moving))
    for latency_ns in (0, 500):
        loop.transfer({"out": 1000, "in": 1000}, latency_ns, lambda: None)
    loop.run()
    assert told == [(0, True), (2000, False)]


def test_a_stream_does_one_act_after_another() -> None:
    loop, times, stream = Loop(WIRE), list[int](), TaskQueue()
    for _ in range(2):
        stream.put(lambda over: loop.transfer({"out": 10, "in": 10}, 5, lambda: (note(loop, times)(), over())[0]))
    assert not stream.free
    loop.run()
    assert times == [15, 30]
    assert stream.free
