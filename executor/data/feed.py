"""Feed: micro-batches are read and decoded while a step computes.

What is done when is the actor protocol's business (`strategy.program.feed`): every reader and every decoder has a
thread, which does their acts, and whoever takes a batch is the loader. So a feed is ahead by its blocks, no further.
Batches are functions of their number, so they are the same read ahead or not, and after any pause.

A fault of reading or decoding waits its turn: all batches before it are handed over, and then it is raised.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Condition
from typing import Any, Generic, Protocol, TypeVar, cast, final

import numpy as np
from numpy.typing import NDArray

from strategy.base.errors import InternalError
from strategy.program.feed import BLOCKS, feed_of
from strategy.program.program import ActKind, Actor, LoadTask, Program, Stream
from strategy.program.protocol import Act
from strategy.program.protocol import Protocol as ActorProtocol

Raw = TypeVar("Raw")
Batch = TypeVar("Batch")
RawOfSource = TypeVar("RawOfSource")

_FOREVER = 2**40
"""Steps of a feed; it ends with the training."""


@final
class BatchFeed(Generic[Raw, Batch]):
    """The feed of some loaders of one rank.

    Args:
        program: what `feed_of` gives.
        read: gives what is read for the `number`-th act of a loader, counted since the start of the training.
        decode: makes a batch of that; its last argument is the batch that lay in the block before, to be used again.
        first_step: the step that the first batches are of.
        wake: called, from any thread, whenever a batch is ready or none will be.
    """

    def __init__(
        self,
        program: Program,
        read: Callable[[int, int], Raw],
        decode: Callable[[int, int, Raw, Batch | None], Batch],
        *,
        first_step: int = 0,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        self._program = program
        self._read, self._decode, self._wake = read, decode, wake
        self._loaders = len(program.actors) // 3
        blocks = max((register.blocks for register in program.registers), default=0)
        self._raw: list[list[Raw | None]] = [[None] * blocks for _ in range(self._loaders)]
        self._batches: list[list[Batch | None]] = [[None] * blocks for _ in range(self._loaders)]
        self._threads = [ThreadPoolExecutor(1, thread_name_prefix=stream.name) for stream in program.streams[1:]]
        self._changed = Condition()
        self._running = 0
        with self._changed:
            self._start(first_step)

    def begin(self, loader: int, number: int, receive: Callable[[Batch], None]) -> PendingBatch[Batch]:
        """Ask for a batch; numbers of a loader follow each other, or begin anew at a step.

        `receive` is called with the batch, which is its own until it returns.
        """
        with self._changed:
            if number != self._number(loader, self._credits.acts_issued[loader]):
                step, within = divmod(number, self._program.actors[loader].acts_per_step)
                if within:
                    raise InternalError(f"a feed cannot begin within a step (act {number} of loader {loader})")
                self._changed.wait_for(lambda: not self._running)
                self._start(step)
        return PendingBatch(self, loader, number, receive)

    def take(self, loader: int, receive: Callable[[Batch], None]) -> bool:
        """Hand over the next batch of a loader if it is there.

        Raises:
            Exception: it could not be read or decoded; what that raised.
        """
        with self._changed:
            if self._credits.may_act(loader):
                act = self._credits.issue(0, loader)
                (block,) = act.read_blocks
                receive(cast("Batch", self._batches[loader][block]))
                self._credits.done(act)
                self._advance()
                return True
            if self._fault is not None and not self._running:
                raise self._fault
            return False

    def wait(self, pending: PendingBatch[Batch]) -> None:
        """Wait until a batch is handed over."""
        with self._changed:
            self._changed.wait_for(pending.test)

    def _start(self, step: int) -> None:
        """Begin at a step; under the lock, while nothing is under way."""
        self._first_step = step
        self._fault: Exception | None = None
        self._credits = ActorProtocol(self._program, steps=_FOREVER, ranks=self._ranks)
        self._advance()

    @property
    def _ranks(self) -> tuple[int, ...]:
        return tuple({stream.rank for stream in self._program.streams})

    def _number(self, actor: int, act_number: int) -> int:
        return self._first_step * self._program.actors[actor].acts_per_step + act_number

    def _advance(self) -> None:
        """Let the threads do what credits allow; under the lock."""
        for place, thread in enumerate(self._threads):
            if (actor := self._credits.head(place + 1)) is not None:
                act = self._credits.issue(place + 1, actor)
                self._running += 1
                thread.submit(self._perform, *divmod(place, 2), act)

    def _perform(self, loader: int, half: int, act: Act) -> None:
        """An act of a reader or a decoder. One that failed does no other."""
        number = self._number(act.actor, act.number)
        fault: Exception | None = None
        try:
            (into,) = act.write_blocks
            if half == 0:
                self._raw[loader][into] = self._read(loader, number)
            else:
                (block,) = act.read_blocks
                raw, before = cast("Raw", self._raw[loader][block]), self._batches[loader][into]
                self._batches[loader][into] = self._decode(loader, number, raw, before)
        except Exception as error:  # noqa: BLE001 - raised again where the batch is asked for
            fault = error
        with self._changed:
            self._running -= 1
            if fault is None:
                self._credits.done(act)
                self._advance()
            else:
                self._fault = self._fault or fault
            self._changed.notify_all()
        self._wake()


@final
@dataclass(slots=True, eq=False)
class PendingBatch(Generic[Batch]):
    """A batch that was asked for: what the runtime waits for like for any transfer."""

    feed: BatchFeed[Any, Batch]
    loader: int
    number: int
    receive: Callable[[Batch], None]
    over: bool = False

    def test(self) -> bool:
        """Whether it was handed over; does so as soon as it is there.

        Raises:
            Exception: it could not be read or decoded; what that raised.
        """
        self.over = self.over or self.feed.take(self.loader, self.receive)
        return self.over

    def wait(self) -> None:
        """Wait until it is handed over."""
        self.feed.wait(self)

    def describe(self) -> str:
        """What is still waited for, for people."""
        return f"micro-batch {self.number + 1} to be read and decoded"


class Source(Protocol[RawOfSource]):
    """What micro-batches are made of, in two halves: what waits for files, and what computes."""

    def read(self, task: LoadTask, act_number: int) -> RawOfSource:
        """What the micro-batch of an act, counted since the start of the training, is made of."""
        ...

    def decode(self, task: LoadTask, act_number: int, raw: RawOfSource, arrays: Sequence[NDArray[Any]]) -> None:
        """Write the boxes of `task` of that micro-batch."""
        ...


@final
class BatchesAhead:
    """Fills the registers of a rank's loaders with what was read and decoded ahead.

    Args:
        program: all of it; the loaders of `rank` are fed.
        rank: this rank.
        source: of the batches; their arrays are made once per block.
        blocks: how far ahead.
        first_step: see `BatchFeed`.
        wake: see `BatchFeed`.
    """

    def __init__(
        self,
        program: Program,
        rank: int,
        source: Source[Any],
        *,
        blocks: int = BLOCKS,
        first_step: int = 0,
        wake: Callable[[], None] = lambda: None,
    ) -> None:
        found = [a for a in program.actors if a.rank == rank and a.kind is ActKind.LOAD]
        tasks = [_task_of(actor) for actor in found]
        self._loader_of = {_key(task): loader for loader, task in enumerate(tasks)}
        registers = [[program.registers[port.register] for port in actor.writes] for actor in found]

        def read(loader: int, number: int) -> Any:
            return source.read(tasks[loader], number)

        def decode(loader: int, number: int, raw: Any, before: list[NDArray[Any]] | None) -> list[NDArray[Any]]:
            arrays = before or [np.empty(register.shape, register.dtype.numpy) for register in registers[loader]]
            source.decode(tasks[loader], number, raw, arrays)
            return arrays

        self._feed = BatchFeed(feed_of(program, rank, blocks=blocks), read, decode, first_step=first_step, wake=wake)

    def __call__(
        self, task: LoadTask, act_number: int, arrays: Sequence[NDArray[Any]]
    ) -> PendingBatch[list[NDArray[Any]]]:
        """Begin to fill `arrays` with the boxes of `task` of a micro-batch."""

        def receive(batch: list[NDArray[Any]]) -> None:
            for array, made in zip(arrays, batch, strict=True):
                np.copyto(array, made)

        return self._feed.begin(self._loader_of[_key(task)], act_number, receive)


def _task_of(actor: Actor) -> LoadTask:
    if not isinstance(actor.task, LoadTask):
        raise InternalError(f"{actor.name} loads nothing")
    return actor.task


def _key(task: LoadTask) -> tuple[object, ...]:
    """What tells the loaders of a rank apart."""
    return task.inputs, task.boxes, tuple(sorted(task.absent)), task.number


_END = object()


def ahead(
    batches: Iterable[Any], *, decode: Callable[[Any], Any] = lambda batch: batch, blocks: int = BLOCKS
) -> Iterator[Any]:
    """The same batches, of which the next ones are made while the caller is at work on one.

        for rows, labels in ahead(batches()):
            loss = train(rows, labels).result()

    Args:
        batches: made one after the other, in a thread of their own; arrays in a tuple are copied, so that they may be
            filled anew.
        decode: what is done to each, in another thread.
        blocks: how many may wait undecoded, and how many decoded.

    Raises:
        Exception: what making or decoding a batch raised, in the place of that batch, with a note of its number.
    """
    source = iter(batches)
    loader = Actor("batches", 0, ActKind.LOAD)
    program = Program(1, (), (loader,), (Stream(0, "load", (0,), dynamic=True),))

    def read(_: int, number: int) -> Any:
        return _noted(number, lambda: _copied(next(source, _END)))

    def decoded(_: int, number: int, raw: Any, before: Any) -> Any:
        return raw if raw is _END else _noted(number, lambda: decode(raw))

    feed = BatchFeed[Any, Any](feed_of(program, 0, blocks=blocks), read, decoded)
    number = 0
    while True:
        taken: list[Any] = []
        feed.begin(0, number, taken.append).wait()
        if taken[0] is _END:
            return
        yield taken.pop()
        number += 1


def _noted(number: int, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except Exception as error:
        error.add_note(f"in batch {number + 1}, which was made ahead")
        raise


def _copied(batch: Any) -> Any:
    if isinstance(batch, tuple):
        return tuple(np.array(part) if isinstance(part, np.ndarray) else part for part in batch)
    return np.array(batch) if isinstance(batch, np.ndarray) else batch
