"""Bits go around: any number of ranks know them all after the least number of messages."""

from __future__ import annotations

import math
import threading
from functools import reduce

import numpy as np
import pytest

from executor.exchange.gradient_exchange import GradientExchange
from executor.exchange.negotiation import Asking, ReadyBits, RecursiveDoubling, message_nbytes
from executor.exchange.progress import ActProgress
from executor.exchange.tuning import FusionTuner
from executor.runtime.pieces import Requests
from executor.runtime.transport.loopback import LoopbackHub
from strategy.base.errors import InputError


def drawn(rng: np.random.Generator, ranks: int, tensors: int) -> ReadyBits:
    def some(count: int) -> int:
        return int.from_bytes(rng.bytes(-(-count // 8)), "little") & ((1 << count) - 1)

    return ReadyBits(
        Asking(int(rng.integers(32))),
        *(some(ranks) for _ in range(3)),
        *(some(tensors) | 1 for _ in range(3)),
        *(some(64) for _ in range(2)),
    )


@pytest.mark.parametrize("tensors", [1, 8, 9, 100])
def test_a_message_says_what_was_put_in(tensors: int) -> None:
    bits = drawn(np.random.default_rng(tensors), 11, tensors)
    message = bits.to_array(11, tensors)
    assert message.size == message_nbytes(11, tensors)
    assert ReadyBits.from_array(message, 11, tensors) == bits


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8, 13])
def test_b11_all_know_all_after_the_least_number_of_messages(ranks: int) -> None:
    """Rank 0 begins; the others are called by the first message that reaches them."""
    hub = LoopbackHub(ranks, {})
    bits = [drawn(np.random.default_rng(rank), ranks, 20) for rank in range(ranks)]
    found: dict[int, ReadyBits] = {}
    ends = [RecursiveDoubling(hub.transport(rank), 1) for rank in range(ranks)]

    def drive(rank: int) -> None:
        end = ends[rank]
        end.listen(20)
        while rank and not end.has_begun():
            pass

        def act() -> Requests:
            found[rank] = yield from end.combine(bits[rank])

        progress = ActProgress(act(), rank, 10.0)
        while not progress.advance():
            pass

    threads = [threading.Thread(target=drive, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[rank] for rank in range(ranks)] == [reduce(ReadyBits.together, bits)] * ranks
    assert {end.messages for end in ends} == {2 * math.ceil(math.log2(ranks))}


def test_b12_the_choice_is_that_of_the_slowest_rank() -> None:
    candidates = ((1, 1), (2, 1), (3, 1))
    tuner = FusionTuner(candidates, 3)
    tried = []
    while not tuner.is_through:
        tried.append(tuner.tried)
        tuner.note(100.0 if len(tried) % 4 == 1 else float(tried[-1][0]))
    assert tried == [pair for pair in candidates for _ in range(4)]
    assert tuner.medians_s().tolist() == [1, 2, 3], "the first step with each does not count"
    others = np.array([9.0, 2.5, 2.5])
    assert tuner.choose([tuner.medians_s(), others]) == (2, 1)


def test_a_transport_carries_one_exchange_at_a_time() -> None:
    """When the first is closed, or has failed, another may begin."""
    transport = LoopbackHub(1, {}).transport(0)
    first = GradientExchange(transport)
    with pytest.raises(
        InputError, match=r"rank 0: the transport carries another exchange.*; close that exchange first"
    ):
        GradientExchange(transport)
    x = np.ones(3)
    assert first.all_reduce("x", x).wait().tolist() == [1.0, 1.0, 1.0]
    first.close()
    second = GradientExchange(transport)
    second.register({"x": x})
    second.close()
