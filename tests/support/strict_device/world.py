"""The devices of all ranks, and in which order they do what they were given: any that streams and events allow.

Ranks are threads of which one runs at a time, until it has to wait; who is next, and what devices do meanwhile, is
drawn from a seed. Some streams are slow: they go on only where little else can.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from tests.support.strict_device.arrays import DeviceArray
from tests.support.strict_device.order import Clock, OrderFault

Moved = tuple[int, DeviceArray]
"""A peer, and what goes to it or comes from it."""

_MOST_IDLE = 20_000
"""Turns of hosts without anything happening."""


@dataclass(eq=False)
class StrictEvent:
    """How often it was recorded, how often the device came by it, and what was known there."""

    recorded: int = 0
    passed: int = 0
    clock: Clock | None = None


@dataclass(eq=False)
class Job:
    """Something at a place of a stream; `may_run` beside what came before it there."""

    run: Callable[[], None]
    may_run: Callable[[], bool] | None = None


@dataclass(eq=False)
class Queue:
    """What a stream has been given and has not done."""

    rank: int
    name: str
    jobs: deque[Job] = field(default_factory=deque)
    weight: float = 1.0


@dataclass(eq=False)
class Meeting:
    """A call of the collective library by several ranks: its parts, and the jobs that wait for the others."""

    number: int
    group: tuple[int, ...]
    waiting: dict[int, tuple[Queue, Job]] = field(default_factory=dict)
    parts: dict[int, tuple[list[Moved], list[Moved]]] = field(default_factory=dict)

    def complete(self) -> bool:
        """Whether every member has come to it on its stream."""
        if len(self.waiting) < len(self.group):
            return False
        for queue, job in self.waiting.values():  # noqa: SIM110 - asked a million times, and quicker so
            if not queue.jobs or queue.jobs[0] is not job:
                return False
        return True


class World:
    """Of `ranks`.

    Args:
        ranks: how many there are.
        seed: of who is next, and of what devices do meanwhile.
        at_once: devices do all that they may whenever they can do anything.
        in_rank_order: the collective library adds up in the order of ranks, not in one of its own.
    """

    def __init__(self, ranks: int, seed: int, *, at_once: bool = False, in_rank_order: bool = False) -> None:
        self.ranks, self.at_once, self.in_rank_order = ranks, at_once, in_rank_order
        self.rng = random.Random(seed)
        self.queues: list[Queue] = []
        self.failure: BaseException | None = None
        self._calls: dict[tuple[int, int], list[tuple[int, tuple[int, ...], str]]] = {}
        """Of a rank, those in which it meets another."""
        self.meetings: dict[tuple[int, int], Meeting] = {}
        self._nth: Counter[tuple[int, int]] = Counter()
        self._alive = set(range(ranks))
        self._gates = [threading.Semaphore(0) for _ in range(ranks)]
        self._idle = 0

    def queue(self, rank: int, name: str) -> Queue:
        """A new stream of a rank's device."""
        found = Queue(rank, name, weight=self.rng.choice((1.0, 1.0, 0.1, 0.002)))
        self.queues.append(found)
        return found

    def advance(self) -> None:
        """Let the devices do some of what they may, or nothing."""
        while self.at_once and (ready := self._ready()):
            self._idle = 0
            for queue in ready:
                queue.jobs[0].run()
                queue.jobs.popleft()
        for _ in range(self.rng.choice((0, 0, 1, 4, 30))):
            ready = self._ready()
            if not ready:
                return
            self._idle = 0
            (queue,) = self.rng.choices(ready, [one.weight for one in ready])
            queue.jobs[0].run()
            queue.jobs.popleft()

    @property
    def rests(self) -> bool:
        """Whether no device can go on before a host does."""
        return not self._ready()

    def _ready(self) -> list[Queue]:
        """Those that may do what is next on them."""
        return [
            queue
            for queue in self.queues
            if (jobs := queue.jobs) and ((may_run := jobs[0].may_run) is None or may_run())
        ]

    def call(self, rank: int, number: int, group: tuple[int, ...], kind: str) -> Meeting:
        """A rank calls the collective library: in the order in which all ranks that it meets call it, too.

        Raises:
            OrderFault: two ranks that meet call it in different orders.
        """
        for peer in group:
            mine = self._calls.setdefault((rank, peer), [])
            mine.append((number, group, kind))
            theirs = self._calls.get((peer, rank), [])
            if len(mine) <= len(theirs) and theirs[len(mine) - 1] != mine[-1]:
                raise OrderFault(
                    f"ranks {rank} and {peer} call collectives in different orders: call {len(mine)} is "
                    f"{mine[-1]} of one and {theirs[len(mine) - 1]} of the other"
                )
        nth = self._nth[rank, number]
        self._nth[rank, number] += 1
        return self.meetings.setdefault((number, nth), Meeting(number, group))

    def play(self, bodies: Sequence[Callable[[], None]]) -> None:
        """Run the ranks' hosts to their ends.

        Raises:
            BaseException: the first that any of them raised.
        """
        threads = [threading.Thread(target=self._play, args=(rank, body)) for rank, body in enumerate(bodies)]
        for thread in threads:
            thread.start()
        self._next()
        for thread in threads:
            thread.join()
        if self.failure is not None:
            raise self.failure

    def _play(self, rank: int, body: Callable[[], None]) -> None:
        self._gates[rank].acquire()
        try:
            if self.failure is None:
                body()
        except BaseException as failure:  # noqa: BLE001 - whatever ends one rank ends all
            self.failure = self.failure or failure
        self._alive.discard(rank)
        self._next()

    def hand_over(self, rank: int) -> None:
        """Let another rank's host go on; returns when it is this one's turn again.

        Raises:
            OrderFault: nothing can go on any more.
        """
        self.advance()
        self._idle += 1
        if self._idle > _MOST_IDLE:
            raise OrderFault(f"nothing goes on: {'; '.join(self._stuck())}")
        self._next()
        self._gates[rank].acquire()
        if self.failure is not None:
            raise OrderFault("another rank has failed")

    def _next(self) -> None:
        if self._alive:
            self._gates[self.rng.choice(sorted(self._alive))].release()

    def _stuck(self) -> Iterator[str]:
        return (f"{queue.name} of rank {queue.rank}" for queue in self.queues if queue.jobs)
