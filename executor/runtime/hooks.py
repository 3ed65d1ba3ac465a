"""Hooks: what a worker calls on its way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from executor.runtime.step_reports import Reports


@dataclass(frozen=True, slots=True)
class Hooks:
    """What a worker calls, one at a time; each must be cheap.

    Attributes:
        on_act: before each act, with (actor, number since the start of the training): a heartbeat.
        on_step: after the last act of a step on this rank, with (step, reports).
        on_wait: when nothing has happened on this rank for a second, with what it waits for.
        delay: seconds to sleep before an act; tests shuffle timing with it.
    """

    on_act: Callable[[int, int], None] | None = None
    on_step: Callable[[int, Reports], None] | None = None
    on_wait: Callable[[str], None] | None = None
    delay: Callable[[int, int], float] | None = None
