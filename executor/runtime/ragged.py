"""Boxing and transfers of ragged tensors on one rank: the rows that there are travel, each with its place.

Every movement is made twice. First every rank tells the others how many rows it has for each (8 bytes a message), then
the rows go, in messages of exactly that length; where there are none, no message. Who gives what box to whom is what it
is for arrays (`strategy.comm.rank_parts`), and what comes is added up by cell in rank order: pieces of the tensor do
not meet, and terms add up, of which some may lack rows.

With n rows to go, w bytes in the part of a row that goes, a message has n (8 + w) bytes. The receiver refuses
more than it has room for.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

import numpy as np

from executor.runtime.pieces import Requests, Start
from executor.runtime.transport.base import HostArray, PendingTransfer, Transport
from strategy.base.errors import present
from strategy.comm.rank_parts import incoming, outgoing
from strategy.graph.graph import Graph
from strategy.program.program import ActKind, Actor, BoxingTask, OpTask, Program, TransferTask
from strategy.sbp.ragged import Rows, check_room
from strategy.sbp.sbp import balanced_split
from strategy.sbp.tensor import INDEX_NBYTES, Box, TensorSpec, intersect, is_empty

Width = tuple[int, int]
"""[begin, end) of the last dim, in logical indices."""
Chunk = tuple[HostArray, HostArray, Width]
"""Cells, rows, and which part of the width the rows have."""
Move = Callable[[Sequence[HostArray | None], Sequence[HostArray | None]], Sequence[PendingTransfer]]
"""Starts to send and receive arrays, one or None per peer."""


def prepare_rows(
    kind: ActKind,
    task: BoxingTask | TransferTask,
    rank: int,
    number: int,
    transport: Transport,
    source: Rows | None,
    target: Rows | None,
) -> Start:
    """The act of `rank` in a boxing step or transfer of a ragged tensor; see `executor.runtime.collectives.prepare`."""
    if isinstance(task, TransferTask):
        return lambda: _transfer(task, rank, number, transport, source, target)
    part = _Part(task, task.group.index(rank), number, transport, _full(source), _full(target))
    return lambda: _STEPS[kind](part)


def terms_may_lack_rows(program: Program, graph: Graph) -> bool:
    """Whether some term of a partial tensor may lack rows that other terms have: everything else has the same rows.

    Terms are made out of pieces (`_slice`), or of a part of the choices of every token.
    """
    return any(_makes_terms(actor, program, graph) for actor in program.actors)


def _makes_terms(actor: Actor, program: Program, graph: Graph) -> bool:
    if all(program.registers[port.register].ragged is None for port in actor.writes):
        return False
    match actor.task:
        case OpTask() as task:
            boxes = zip(graph.by_name[task.op].inputs, task.input_boxes, strict=True)
            return any(_is_part_of_choices(graph.values[name].spec, box) for name, box in boxes)
        case BoxingTask() as task if actor.kind is ActKind.SLICE:
            pairs = zip(task.source_boxes, task.target_boxes, strict=True)
            return any(intersect(frame, goal) == frame for frame, goal in pairs)
    return False


def _is_part_of_choices(spec: TensorSpec, box: Box) -> bool:
    """Of integers [g, s, k], whether some of the last dim are elsewhere."""
    return not spec.dtype.is_float and not is_empty(box) and box[-1] != (0, spec.shape[-1])


@dataclass(frozen=True, slots=True)
class _Part:
    """One rank's part of a boxing step; `me` is its index in the group."""

    task: BoxingTask
    me: int
    number: int
    transport: Transport
    source: Rows
    target: Rows

    def swap(
        self, given: Sequence[Chunk | None], widths: Sequence[Width | None]
    ) -> Generator[PendingTransfer, None, list[Chunk]]:
        """Exchange parts with the group; returns what everyone gave, in rank order, the own part included."""

        def move(send: Sequence[HostArray | None], receive: Sequence[HostArray | None]) -> Sequence[PendingTransfer]:
            return [self.transport.exchange(self.task.group, self.number, list(send), list(receive))]

        others = [None if i == self.me else part for i, part in enumerate(given)]
        wanted = [None if i == self.me else width for i, width in enumerate(widths)]
        came = yield from _swap(move, others, wanted, self.target)
        came[self.me] = given[self.me]
        return [part for part in came if part is not None]


def _slice(part: _Part) -> Requests:
    """B -> S keeps the rank's rows, S -> P all that it has; B -> P keeps all on the group's first rank."""
    frame, goal = part.task.source_boxes[part.me], part.task.target_boxes[part.me]
    keeps = frame != goal or part.me == 0
    shared = intersect(frame, goal)
    part.target.put([_cut(part.source, shared)] if keeps and shared is not None else [])
    return iter(())


def _copy(part: _Part) -> Requests:
    """From one memory of the rank to its other."""
    part.target.put([_whole(part.source)])
    return iter(())


def _all_gather(part: _Part) -> Requests:
    own = _whole(part.source)
    came = yield from part.swap([own] * len(part.task.group), [box[-1] for box in part.task.source_boxes])
    part.target.put(came)


def _all_to_all(part: _Part) -> Requests:
    given = [None if box is None else _cut(part.source, box) for box in outgoing(part.task, part.me)]
    widths = [None if box is None else box[-1] for box in incoming(part.task, part.me)]
    kept = intersect(part.task.source_boxes[part.me], part.task.target_boxes[part.me])
    given[part.me] = None if kept is None else _cut(part.source, kept)
    came = yield from part.swap(given, widths)
    part.target.put(came)


def _reduce_scatter(part: _Part) -> Requests:
    boxes = part.task.target_boxes
    came = yield from part.swap([_cut(part.source, box) for box in boxes], [boxes[part.me][-1]] * len(boxes))
    part.target.put(came)


def _all_reduce(part: _Part) -> Requests:
    """Every rank adds up an equal share of all cells, and gives the sums to all."""
    ranks, width = len(part.task.group), part.source.box[-1]
    cells, rows, _ = _whole(part.source)
    bounds = [end for _, end in balanced_split(0, int(np.prod(part.source.logical)), ranks)]
    cuts = [0, *np.searchsorted(cells, bounds).tolist()]
    shares = [(cells[begin:end], rows[begin:end], width) for begin, end in itertools.pairwise(cuts)]
    terms = yield from part.swap(shares, [width] * ranks)
    part.target.put(terms)
    sums = part.target.cells.copy(), part.target.rows.copy(), width
    came = yield from part.swap([sums] * ranks, [width] * ranks)
    part.target.put(came)


_STEPS: dict[ActKind, Callable[[_Part], Requests]] = {
    ActKind.COPY: _copy,
    ActKind.SLICE: _slice,
    ActKind.ALL_GATHER: _all_gather,
    ActKind.ALL_TO_ALL: _all_to_all,
    ActKind.ROTATE: _all_to_all,
    ActKind.REDUCE_SCATTER: _reduce_scatter,
    ActKind.ALL_REDUCE: _all_reduce,
}


def _transfer(
    task: TransferTask, rank: int, number: int, transport: Transport, source: Rows | None, target: Rows | None
) -> Requests:
    """Messages that leave or reach this rank, in the task's order."""
    leaving = [m for m in task.messages if m.source == rank != m.target]
    coming = [m for m in task.messages if m.target == rank != m.source]
    given: list[Chunk | None] = [*(_cut(_full(source), m.box) for m in leaving), *(None for _ in coming)]
    widths: list[Width | None] = [*(None for _ in leaving), *(m.box[-1] for m in coming)]

    def move(send: Sequence[HostArray | None], receive: Sequence[HostArray | None]) -> Sequence[PendingTransfer]:
        messages = [*leaving, *coming]
        into = [(m.source, a) for m, a in zip(messages, receive, strict=True) if a is not None]
        out = [(m.target, a) for m, a in zip(messages, send, strict=True) if a is not None]
        arriving = [transport.receive(peer, number, array) for peer, array in into]
        return [*arriving, *(transport.send(peer, number, array) for peer, array in out)]

    came = yield from _swap(move, given, widths, target)
    if target is not None:
        kept = [_cut(_full(source), m.box) for m in task.messages if m.source == m.target == rank]
        target.put([*kept, *(part for part in came if part is not None)])


def _swap(
    move: Move, given: Sequence[Chunk | None], widths: Sequence[Width | None], target: Rows | None
) -> Generator[PendingTransfer, None, list[Chunk | None]]:
    """Send parts, and receive some of these widths; None is none. Counts go first. Returns what came."""
    counts = [None if part is None else np.array([len(part[0])], np.int64) for part in given]
    told = [None if width is None else np.zeros(1, np.int64) for width in widths]
    yield from move(counts, told)
    packed = [None if part is None or not len(part[0]) else _pack(part) for part in given]
    rooms = [_room(count, width, target) for count, width in zip(told, widths, strict=True)]
    yield from move(packed, [None if room is None else room[0] for room in rooms])
    return [None if room is None else room[1] for room in rooms]


def _room(count: HostArray | None, width: Width | None, target: Rows | None) -> tuple[HostArray, Chunk] | None:
    """Memory for a message of so many rows, and the part that it will hold; none where no message comes."""
    if count is None or width is None or not count[0]:
        return None
    target = _full(target)
    rows, cells = int(count[0]), int(count[0]) * INDEX_NBYTES
    check_room(rows, target.spec)
    memory = np.empty(cells + rows * (width[1] - width[0]) * target.dtype.itemsize, np.uint8)
    return memory, (memory[:cells].view(np.int64), memory[cells:].view(target.dtype).reshape(rows, -1), width)


def _whole(rows: Rows) -> Chunk:
    return rows.cells, rows.rows, rows.box[-1]


def _cut(rows: Rows, box: Box) -> Chunk:
    """The rows of a box, and of each the part that lies in its width."""
    chosen, (begin, end), origin = rows.inside(box), box[-1], rows.box[-1][0]
    return rows.cells[chosen], rows.rows[chosen, begin - origin : end - origin], (begin, end)


def _pack(part: Chunk) -> HostArray:
    cells, rows, _ = part
    return np.concatenate([cells.view(np.uint8), np.ascontiguousarray(rows).reshape(-1).view(np.uint8)])


def _full(rows: Rows | None) -> Rows:
    return present(rows, "the rows of a rank that takes part")
