"""Cycles: the background thread that negotiates what is ready, at most once per cycle."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from simulator.exchange.negotiation import Negotiation, negotiate
from simulator.exchange.training import Task
from strategy.base.units import to_ns


@dataclass(slots=True)
class Cycles:
    """Gradients that are ready wait for the next cycle's begin; `agreed` gets them when the last rank knows of them.

    Cycles without gradients are not simulated, but they keep the pace: the next one begins a whole number of cycles, or
    of negotiations where those take longer, after the last.
    """

    task: Task
    cycle_s: float
    kind: Negotiation
    agreed: Callable[[Sequence[int]], None]
    _ready: list[int] = field(default_factory=list)
    _planned: bool = False
    _last_ns: int = 0
    _free_ns: int = 0

    def ready(self, gradient: int) -> None:
        """The slowest rank has it."""
        self._ready.append(gradient)
        if not self._planned:
            self._planned = True
            self._plan()

    def _plan(self) -> None:
        task = self.task
        idle_ns = negotiate(self.kind, task.fabric, 0, len(task.nbytes)).time_ns
        pace_ns = max(to_ns(self.cycle_s), idle_ns, 1)
        since_ns = max(self._free_ns, task.loop.now_ns) - self._last_ns
        task.loop.at(self._last_ns + -(-since_ns // pace_ns) * pace_ns, self._negotiate)

    def _negotiate(self) -> None:
        task, ready = self.task, tuple(self._ready)
        self._ready.clear()
        found = negotiate(self.kind, task.fabric, len(ready), len(task.nbytes))
        tally = task.tally
        tally.negotiations += 1
        tally.root_messages = max(tally.root_messages, found.root_messages)
        tally.most_messages = max(tally.most_messages, found.most_messages)
        tally.control_messages += found.total_messages
        tally.control_bytes += found.nbytes
        self._last_ns = task.loop.now_ns
        self._free_ns = task.loop.now_ns + found.time_ns

        def known() -> None:
            self.agreed(ready)
            self._planned = bool(self._ready)
            if self._planned:
                self._plan()

        task.loop.at(self._free_ns, known)
