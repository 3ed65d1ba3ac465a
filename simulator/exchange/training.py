"""Training: steps of compute, and an exchange that brings each step's gradients together.

Ranks compute alike but for how much longer each takes in a step, drawn from an exponential distribution, so that the
wait for the slowest of n grows with log n. A gradient can be exchanged when the slowest rank has it; so the slowest of
every step is the one that is simulated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from simulator.exchange.fabric import Fabric
from simulator.exchange.loop import LinkGroup, Loop
from simulator.exchange.workload import Workload
from strategy.base.errors import InternalError


@dataclass(slots=True)
class Tally:
    """What a scheme counts: messages of a negotiation at rank 0 and at the busiest rank, and of a run by all ranks.

    `data_messages` carry gradients.
    """

    negotiations: int = 0
    root_messages: int = 0
    most_messages: int = 0
    control_messages: int = 0
    control_bytes: int = 0
    data_messages: int = 0


class Exchange(Protocol):
    """A scheme at work in a loop."""

    def ready(self, gradient: int) -> None:
        """The slowest rank has a gradient now."""


@dataclass(frozen=True, slots=True)
class Task:
    """What a scheme is given to work with; `exchanged` is to be called once per gradient and step."""

    fabric: Fabric
    nbytes: tuple[int, ...]
    loop: Loop
    exchanged: Callable[[int], None]
    tally: Tally


class Scheme(Protocol):
    """How a system exchanges gradients: options, the links that it needs, and its start."""

    @property
    def barrier(self) -> bool:
        """Whether a step begins only when all gradients of the one before are there."""

    def links(self, fabric: Fabric) -> Mapping[str, LinkGroup]:
        """The links that its transfers cross."""

    def start(self, task: Task) -> Exchange:
        """Be ready for gradients."""


@dataclass(frozen=True, slots=True)
class ExchangeOutcome:
    """Mean of the steps after the first; bytes and counts of the whole run.

    `alone_ns` is a step of one GPU that exchanges nothing.
    """

    step_ns: int
    alone_ns: int
    tally: Tally
    sent_bytes: int
    received_bytes: int
    busy_ns: Mapping[str, int]
    makespan_ns: int
    num_events: int

    @property
    def efficiency(self) -> float:
        """Throughput of a GPU over that of one alone."""
        return self.alone_ns / self.step_ns

    @property
    def exposed(self) -> float:
        """What the exchange adds to a step, waiting for the slowest included, over the step alone."""
        return self.step_ns / self.alone_ns - 1


def simulate(workload: Workload, fabric: Fabric, scheme: Scheme, *, steps: int = 4, seed: int = 0) -> ExchangeOutcome:
    """Train for a warm-up step and `steps` more.

    Raises:
        InternalError: a law of conservation does not hold, or an exchange left gradients behind.
    """
    loop, tally = Loop(scheme.links(fabric)), Tally()
    draws = np.random.default_rng(seed)
    slower = [1 + fabric.straggle * float(draws.exponential(size=fabric.ranks).max()) for _ in range(steps + 1)]
    run = _Run(workload, loop, slower, barrier=scheme.barrier, slowdown=fabric.slowdown)
    run.begin(scheme.start(Task(fabric, workload.nbytes, loop, run.exchanged, tally)))
    loop.run()
    if run.missing or run.step != steps + 1:
        raise InternalError(f"step {run.step} ended without gradients {sorted(run.missing)[:8]}")
    return ExchangeOutcome(
        step_ns=(run.ends_ns[-1] - run.ends_ns[0]) // steps,
        alone_ns=round(workload.compute_ns * (1 + fabric.straggle)),
        tally=tally,
        sent_bytes=loop.sent_bytes,
        received_bytes=loop.received_bytes,
        busy_ns=loop.busy_ns,
        makespan_ns=loop.now_ns,
        num_events=loop.num_events,
    )


class _Run:
    """The compute stream: spans one after another, each when the gradients that it needs are back."""

    def __init__(
        self, workload: Workload, loop: Loop, slower: Sequence[float], *, barrier: bool, slowdown: float
    ) -> None:
        self.step = 0
        self.missing: set[int] = set()
        self.ends_ns: list[int] = []
        self._workload = workload
        self._loop = loop
        self._slower = slower
        self._barrier = barrier
        self._span = 0
        self._waits = False
        self._compute = _Compute(loop, slowdown, self._over)

    def begin(self, exchange: Exchange) -> None:
        """Compute the first step."""
        self._exchange = exchange
        self._loop.at(0, self._next)

    def exchanged(self, gradient: int) -> None:
        """A gradient is back, which the next span may have waited for."""
        self.missing.remove(gradient)
        if self._waits:
            self._waits = False
            self._next()

    def _next(self) -> None:
        span = self._workload.spans[self._span]
        first = self._span == 0
        if (self._barrier and first and self.missing) or any(gradient in self.missing for gradient in span.needs):
            self._waits = True
            return
        if first and self.step:
            self.ends_ns.append(self._loop.now_ns)
        if self.step < len(self._slower):
            self._compute.begin(span.time_ns * self._slower[self.step])

    def _over(self) -> None:
        given = self._workload.spans[self._span].gives
        self._span += 1
        if self._span == len(self._workload.spans):
            self._span = 0
            self.step += 1
        self.missing.update(given)
        for gradient in given:
            self._exchange.ready(gradient)
        self._next()


class _Compute:
    """One span of compute, which goes on slower while bytes move over the network."""

    def __init__(self, loop: Loop, slowdown: float, over: Callable[[], None]) -> None:
        self._loop = loop
        self._slowdown = slowdown
        self._over = over
        self._left_ns = 0.0
        self._since_ns = 0
        self._pace = 1.0
        self._version = 0
        self._busy = False
        loop.moves = self._moves

    def begin(self, time_ns: float) -> None:
        """A span that takes so long by itself."""
        self._busy = True
        self._left_ns, self._since_ns = time_ns, self._loop.now_ns
        self._plan()

    def _moves(self, moving: bool) -> None:
        if self._busy:
            self._left_ns -= (self._loop.now_ns - self._since_ns) / self._pace
            self._since_ns = self._loop.now_ns
        self._pace = 1 + self._slowdown if moving else 1.0
        if self._busy:
            self._plan()

    def _plan(self) -> None:
        self._version += 1
        version = self._version

        def end() -> None:
            if version == self._version:
                self._busy = False
                self._over()

        self._loop.at(self._loop.now_ns + max(round(self._left_ns * self._pace), 0), end)
