"""Random boxing steps with what must come out of them, computed on whole tensors in one place."""

from __future__ import annotations

import dataclasses
import itertools
import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from executor.runtime.collectives import prepare
from executor.runtime.transport.base import HostArray, Lanes, Transport, wait
from executor.runtime.transport.loopback import LoopbackHub, SentMessage, Tamper, faithfully
from strategy.comm.hierarchical import PARTS
from strategy.graph.ops.base import Workspace
from strategy.program.program import ActKind, BoxingTask, Message, TransferTask
from strategy.sbp.sbp import Reduce
from strategy.sbp.tensor import Box, DType, box_shape, intersect, within
from tests.support.oracle import combine, neutral

KINDS = (
    ActKind.ALL_REDUCE,
    ActKind.REDUCE_SCATTER,
    ActKind.ALL_GATHER,
    ActKind.ALL_TO_ALL,
    ActKind.ROTATE,
    ActKind.SLICE,
    ActKind.TRANSFER,
)


@dataclass(frozen=True, slots=True)
class RandomBoxing:
    """One act of all its ranks: what each holds before and must hold after, and the bytes that all send together."""

    kind: ActKind
    task: BoxingTask | TransferTask
    sources: dict[int, HostArray]
    expected: dict[int, HostArray]
    sent_nbytes: int


def random_boxing(rng: np.random.Generator, ranks: int, kind: ActKind) -> RandomBoxing:
    """A step of `kind` over a random group, frame, uneven cut and dtype."""
    group = tuple(int(rank) for rank in rng.permutation(ranks)[: rng.integers(1, ranks + 1)])
    dims = int(rng.integers(1, 4))
    frame = tuple((begin, begin + int(rng.integers(1, 7)) + ranks) for begin in map(int, rng.integers(0, 9, dims)))
    dtypes = [one for one in DType if not one.is_code]
    dtype = dtypes[int(rng.integers(len(dtypes)))].numpy
    if kind is ActKind.TRANSFER:
        return _transfer(rng, ranks, frame, dtype)
    one, other = int(rng.integers(dims)), int(rng.integers(dims))
    whole, split = (frame,) * len(group), _cuts(rng, frame, one, len(group))
    if kind is ActKind.ALL_REDUCE and rng.integers(3) == 0:
        whole = (((0, 1),) * dims,) * len(group)
    source, target, partial = {
        ActKind.ALL_REDUCE: (whole, whole, True),
        ActKind.REDUCE_SCATTER: (whole, split, True),
        ActKind.ALL_GATHER: (split, whole, False),
        ActKind.ALL_TO_ALL: (split, _cuts(rng, frame, other, len(group)), False),
        ActKind.ROTATE: (split, _rotated(rng, split), False),
        ActKind.SLICE: [(whole, split, False), (whole, whole, False), (split, whole, False)][int(rng.integers(3))],
    }[kind]
    nodes = _nodes(group) if kind in PARTS and rng.integers(2) else ()
    reduce = Reduce(str(rng.choice(list(Reduce)))) if partial or kind is ActKind.SLICE else Reduce.SUM
    return _boxing(rng, kind, BoxingTask(group, source, target, reduce, nodes), dtype, partial=partial)


def _rotated(rng: np.random.Generator, pieces: tuple[Box, ...]) -> tuple[Box, ...]:
    """The pieces of other ranks; of its own, where there is one rank."""
    shift = int(rng.integers(1, max(len(pieces), 2)))
    return (*pieces[shift:], *pieces[:shift])


def _nodes(group: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """A group of 4 or 6 as two nodes, ranks dealt in turn."""
    return () if len(group) not in (4, 6) else (group[::2], group[1::2])


def _boxing(
    rng: np.random.Generator, kind: ActKind, task: BoxingTask, dtype: np.dtype[Any], *, partial: bool
) -> RandomBoxing:
    group, p = task.group, len(task.group)
    frame = tuple(
        (min(box[d][0] for box in task.source_boxes), max(box[d][1] for box in task.source_boxes))
        for d in range(len(task.source_boxes[0]))
    )
    if partial:
        terms = [_values(rng, frame, dtype) for _ in group]
        by_node = [[terms[group.index(rank)] for rank in node] for node in task.nodes or (group,)]
        logical = combine([combine(node, task.reduce) for node in by_node], task.reduce)
    else:
        logical = _values(rng, frame, dtype)
        terms = [logical[within(box, frame)].copy() for box in task.source_boxes]
    after = [logical[within(box, frame)].copy() for box in task.target_boxes]
    if kind is ActKind.SLICE and task.target_boxes == (frame,) * p:
        after = [np.full_like(logical, neutral(task.reduce, logical.dtype)) for _ in group]
        for index, box in enumerate(task.source_boxes):
            if box != frame or index == 0:
                after[index][within(box, frame)] = logical[within(box, frame)]
    total = logical.nbytes
    kept = sum(
        _nbytes(intersect(a, b), logical.itemsize) for a, b in zip(task.source_boxes, task.target_boxes, strict=True)
    )
    sent = {
        ActKind.ALL_REDUCE: 2 * total * (p - 1),
        ActKind.REDUCE_SCATTER: total * (p - 1),
        ActKind.ALL_GATHER: total * (p - 1),
        ActKind.ALL_TO_ALL: total - kept,
        ActKind.ROTATE: total - kept,
        ActKind.SLICE: 0,
    }[kind]
    return RandomBoxing(kind, task, dict(zip(group, terms, strict=True)), dict(zip(group, after, strict=True)), sent)


def _transfer(rng: np.random.Generator, ranks: int, frame: Box, dtype: np.dtype[Any]) -> RandomBoxing:
    """A tensor cut one way over some ranks, moved to another cut over others; the two sets may meet."""
    some = sorted(int(r) for r in rng.permutation(ranks)[: rng.integers(1, ranks + 1)])
    others = sorted(int(r) for r in rng.permutation(ranks)[: rng.integers(1, ranks + 1)])
    logical = _values(rng, frame, dtype)
    sources = dict(zip(some, _cuts(rng, frame, int(rng.integers(len(frame))), len(some)), strict=True))
    targets = dict(zip(others, _cuts(rng, frame, int(rng.integers(len(frame))), len(others)), strict=True))
    messages = []
    for source, held in sources.items():
        for target, wanted in targets.items():
            shared = intersect(held, wanted)
            if shared is not None:
                messages.append(Message(source, target, shared))
    sent = sum(_nbytes(m.box, logical.itemsize) for m in messages if m.source != m.target)
    before = {rank: logical[within(box, frame)].copy() for rank, box in sources.items()}
    after = {rank: logical[within(box, frame)].copy() for rank, box in targets.items()}
    return RandomBoxing(ActKind.TRANSFER, TransferTask(tuple(messages), sources, targets), before, after, sent)


def _cuts(rng: np.random.Generator, frame: Box, dim: int, parts: int) -> tuple[Box, ...]:
    """The frame cut along `dim` in so many pieces, uneven, none empty."""
    begin, end = frame[dim]
    inner = sorted(int(cut) for cut in rng.choice(np.arange(begin + 1, end), parts - 1, replace=False))
    edges = [begin, *inner, end]
    return tuple((*frame[:dim], (a, b), *frame[dim + 1 :]) for a, b in itertools.pairwise(edges))


def _values(rng: np.random.Generator, frame: Box, dtype: np.dtype[Any]) -> HostArray:
    return (rng.standard_normal(box_shape(frame)) * 1000).astype(dtype)


def _nbytes(box: Box | None, itemsize: int) -> int:
    return 0 if box is None else itemsize * math.prod(box_shape(box))


def play(case: RandomBoxing, number: int, transport: Transport, *, timeout_s: float = 30.0) -> HostArray | None:
    """This rank's part of a case, through to its end; gives what it then holds."""
    rank = transport.rank
    if rank not in case.sources and rank not in case.expected:
        return None
    target = np.full_like(case.expected[rank], 77) if rank in case.expected else None
    start = prepare(case.kind, case.task, rank, number, transport, case.sources.get(rank), target, Workspace(np))
    for _ in range(2):
        for request in start():
            wait(request, transport, timeout_s=timeout_s)
    return target


def on_threads(
    ranks: int, play_rank: Callable[[Transport], object], lanes: Lanes | None = None, tamper: Tamper = faithfully
) -> list[Transport]:
    """Run a function on every rank of a loopback; gives the transports, or raises the first failure."""
    hub = LoopbackHub(ranks, lanes, tamper=tamper)
    transports: list[Transport] = [hub.transport(rank) for rank in range(ranks)]

    def drive(transport: Transport) -> None:
        try:
            play_rank(transport)
            transport.barrier()
            transport.close()
        except BaseException as failure:  # noqa: BLE001 - whatever ends one rank ends all
            hub.poison(failure)

    threads = [threading.Thread(target=drive, args=(transport,)) for transport in transports]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if hub.failure is not None:
        raise hub.failure
    return transports


FAULTS = ["lost", "doubled", "late", "renumbered", "strayed", "shortened"]
"""What may befall a message."""


class Fault:
    """Does something to the `at`-th message from rank `source`, or nothing when there is none; `met` is that one."""

    def __init__(self, kind: str, at: int, *, source: int = 0) -> None:
        self.kind, self.at, self.source = kind, at, source
        self.count = 0
        self.met: SentMessage | None = None
        self.held: list[SentMessage] = []

    def __call__(self, message: SentMessage) -> Iterable[SentMessage]:
        if message.channel.source != self.source or message.channel.target == self.source:
            return [message]
        self.count += 1
        if self.count - 1 != self.at:
            held, self.held = self.held, []
            return [message, *held]
        self.met = message
        match self.kind:
            case "lost":
                return []
            case "doubled":
                return [message, message]
            case "late":
                self.held = [message]
                return []
            case "renumbered":
                return [dataclasses.replace(message, number=message.number + 1)]
            case "strayed":
                other = dataclasses.replace(message.channel, lane="messages of 404")
                return [dataclasses.replace(message, number=404, channel=other)]
            case _:
                return [dataclasses.replace(message, payload=message.payload[:-1])]
