"""Every boxing step against the whole tensor, for random uneven cuts, with the bytes that it sends."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from executor.runtime.collectives import prepare
from executor.runtime.pieces import cut
from executor.runtime.transport.base import Transport, wait
from strategy.graph.ops.base import Workspace
from strategy.program.program import ActKind, BoxingTask
from strategy.sbp.sbp import Reduce
from tests.executor.random_boxing import KINDS, RandomBoxing, on_threads, play, random_boxing


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
def test_random_uneven_boxes_bitwise_and_bytes(kind: ActKind, ranks: int) -> None:
    rng = np.random.default_rng([ranks, KINDS.index(kind)])
    for number in range(12):
        case = random_boxing(rng, ranks, kind)
        transports = on_threads(ranks, functools.partial(_check, case, number))
        assert sum(sum(t.bytes_sent.values()) for t in transports) == 2 * case.sent_nbytes, case


def _check(case: RandomBoxing, number: int, transport: Transport) -> None:
    found = play(case, number, transport)
    if found is not None:
        np.testing.assert_array_equal(found, case.expected[transport.rank])


def test_even_all_to_all_sends_all_but_the_diagonal() -> None:
    p, side = 4, 8
    rows = tuple(((2 * i, 2 * i + 2), (0, side)) for i in range(p))
    columns = tuple(((0, side), (2 * i, 2 * i + 2)) for i in range(p))
    task = BoxingTask(tuple(range(p)), rows, columns)
    whole = np.arange(side * side, dtype=np.float32).reshape(side, side)
    sources = {i: whole[2 * i : 2 * i + 2].copy() for i in range(p)}
    expected = {i: whole[:, 2 * i : 2 * i + 2].copy() for i in range(p)}
    case = RandomBoxing(ActKind.ALL_TO_ALL, task, sources, expected, whole.nbytes * (p - 1) // p)
    transports = on_threads(p, functools.partial(_check, case, 0))
    assert sum(t.bytes_sent["exchange"] for t in transports) == 2 * case.sent_nbytes


@pytest.mark.parametrize(("reduce", "expected"), [(Reduce.MIN, -3.0), (Reduce.MAX, 5.0), (Reduce.SUM, 3.0)])
def test_reductions(reduce: Reduce, expected: float) -> None:
    terms = [np.full((1,), value, np.float32) for value in (5.0, -3.0, 1.0)]
    task = BoxingTask((0, 1, 2), (((0, 1),),) * 3, (((0, 1),),) * 3, reduce)

    def reduce_rank(transport: Transport) -> None:
        target, rank = np.empty(1, np.float32), transport.rank
        kind, scratch = ActKind.ALL_REDUCE, Workspace(np)
        for request in prepare(kind, task, rank, 0, transport, terms[rank], target, scratch)():
            wait(request, transport)
        assert target[0] == expected

    on_threads(3, reduce_rank)


def test_scalars_are_reduced_and_sliced() -> None:
    """A 0-d tensor has no dim to cut: one rank sums it, and B -> P leaves it on the group's first rank."""
    task = BoxingTask((1, 0), ((), ()), ((), ()))
    value = np.float64(2.5)
    for kind, after in ((ActKind.ALL_REDUCE, [5.0, 5.0]), (ActKind.SLICE, [0.0, 2.5])):
        sources = {rank: np.array(value) for rank in (0, 1)}
        case = RandomBoxing(kind, task, sources, {rank: np.array(after[rank]) for rank in (0, 1)}, 0)
        on_threads(2, functools.partial(_check, case, 3))


def test_contiguous_cuts_are_not_copied() -> None:
    array, frame = np.zeros((4, 3)), ((10, 14), (0, 3))
    rows = cut(array, frame, [((10, 12), (0, 3)), None, ((12, 14), (0, 3))], Workspace(np), "rows")
    columns = cut(array, frame, [((10, 14), (1, 2))], Workspace(np), "columns")
    assert not rows.copies
    assert rows.flat[0] is not None
    assert np.shares_memory(rows.flat[0], array)
    assert rows.flat[1] is None
    assert len(columns.copies) == 1
    assert columns.flat[0] is not None
    assert not np.shares_memory(columns.flat[0], array)
