"""Announcements: what the program of this rank tells its exchange, and waits for; two threads meet here alone."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from executor.exchange.negotiation import Asking
from executor.exchange.pending import PendingTensor
from executor.exchange.tensors import TensorKey
from strategy.base.errors import InputError


@dataclass(frozen=True, slots=True)
class Said:
    """What this rank brings into one round."""

    asking: Asking
    waiting: tuple[TensorKey, ...]
    non_finite: tuple[TensorKey, ...]
    joined: bool
    leaving: bool
    registering: tuple[TensorKey, ...] | None
    waits: int


class Announcements:
    """Shared between the program and the exchange's own thread. `wake` ends that one's nap."""

    def __init__(self) -> None:
        self.wake = threading.Event()
        self.changed = threading.Condition()
        self.failure: Exception | None = None
        self.has_ended = False
        self.steps_done = 0
        self._news = False
        self._waiting: dict[TensorKey, PendingTensor] = {}
        self._listed: set[PendingTensor] = set()
        self._names: set[str] = set()
        self._asking = Asking(0)
        self._waits = self._waits_served = 0
        self._joined = self._leaving = False
        self._last_joined = -1
        self._blocked = 0
        self._registering: tuple[TensorKey, ...] | None = None
        self._step_since_s: float | None = None
        self._since_s = 0.0
        self._step_errors: dict[int, list[Exception]] = {}

    # Called by the program.

    def announce(self, tensor: PendingTensor) -> None:
        """This rank has a tensor.

        Raises:
            InputError: one of its name is under way.
            RunError: the exchange has failed.
        """
        with self.changed:
            self._check()
            if tensor.key.name in self._names:
                raise InputError(
                    "is announced a second time while it is under way",
                    where=f"tensor {tensor.key.name!r}",
                    hint="wait for it first, or give this one another name",
                )
            self._names.add(tensor.key.name)
            self._waiting[tensor.key] = tensor
            self._tell()

    def wait_for(self, over: threading.Event) -> None:
        """Wait until a tensor is through: what is listed must not wait for fuller buckets."""
        with self.changed:
            self._waits += 1
            self._tell()
        with self._blocking():
            over.wait()

    def register(self, keys: Sequence[TensorKey]) -> None:
        """Wait until all ranks register the same."""
        with self.changed:
            self._check()
            self._registering, self._since_s = tuple(keys), time.monotonic()
            self._tell()
            self._wait_until(lambda: self._registering is None)

    def wait_for_step(self, step: int) -> list[Exception]:
        """Wait until a step is through; what was wrong with its tensors."""
        with self.changed:
            self._waits += 1
            self._step_since_s = time.monotonic()
            self._tell()
            self._wait_until(lambda: self.steps_done > step)
            self._step_since_s = None
            return self._step_errors.pop(step, [])

    def join(self) -> int:
        """Wait until all ranks have joined; the last one that did."""
        with self.changed:
            self._waits += 1
            self._tell()
            self._wait_until(lambda: not self._names)
            self._joined, self._last_joined = True, -1
            self._tell()
            self._wait_until(lambda: not self._joined)
            return self._last_joined

    def retune(self) -> None:
        """Have all ranks look for the best fusion size again."""
        with self.changed:
            self._asking |= Asking.RETUNE
            self._tell()

    def leave(self) -> None:
        """Wait until all ranks shut down."""
        with self.changed:
            if self.failure is not None or self.has_ended:
                return
            self._leaving = True
            self._waits += 1
            self._tell()
            self.changed.wait_for(lambda: self.has_ended or self.failure is not None)

    # Called by the exchange's own thread.

    def has_news(self) -> bool:
        """Whether something was announced since the last round."""
        return self._news

    def is_waiting(self) -> bool:
        """Whether this rank has what others lack."""
        return bool(self._waiting)

    def is_waited_for(self) -> bool:
        """Whether the program of this rank waits for anything."""
        return self._blocked > 0

    def say(self, *, check_finite: bool) -> Said:
        """What to bring into a round that begins now."""
        with self.changed:
            self._news = False
            self.wake.clear()
            asking = self._asking | (Asking.URGENT if self._waits > self._waits_served else Asking(0))
            self._asking = Asking(0)
            bad = [key for key, tensor in self._waiting.items() if check_finite and not tensor.finite]
            return Said(
                asking, tuple(self._waiting), tuple(bad), self._joined, self._leaving, self._registering, self._waits
            )

    def oldest_s(self) -> float | None:
        """How long something has waited for other ranks; None where nothing does."""
        with self.changed:
            since = [tensor.since_s for tensor in self._waiting.values()]
            since += [self._since_s] if self._registering is not None else []
            since += [self._step_since_s] if self._step_since_s is not None and not self._listed else []
            return time.monotonic() - min(since) if since else None

    def ask(self, asking: Asking) -> None:
        """Ask this in a round that begins soon."""
        with self.changed:
            self._asking |= asking
            self._tell()

    def take(self, key: TensorKey) -> PendingTensor | None:
        """The tensor of a key that is listed; None where this rank has joined."""
        with self.changed:
            tensor = self._waiting.pop(key, None)
            if tensor is not None:
                self._listed.add(tensor)
            return tensor

    def serve(self, said: Said) -> None:
        """What was urgent in a round is sent, where nothing of it is left."""
        with self.changed:
            if not self._waiting:
                self._waits_served = max(self._waits_served, said.waits)

    def close(self, tensor: PendingTensor, error: Exception | None = None) -> None:
        """A tensor is through."""
        with self.changed:
            self._listed.discard(tensor)
            self._names.discard(tensor.key.name)
        if error is None:
            tensor.finish()
        else:
            tensor.fail(error)
        with self.changed:
            self.changed.notify_all()

    def close_registration(self) -> None:
        """All ranks have registered."""
        with self.changed:
            self._registering = None
            self.changed.notify_all()

    def close_join(self, last: int) -> None:
        """All ranks have joined."""
        with self.changed:
            self._joined, self._last_joined = False, last
            self.changed.notify_all()

    def note_step_error(self, step: int, error: Exception) -> None:
        """A tensor of a step has no result."""
        with self.changed:
            self._step_errors.setdefault(step, []).append(error)

    def close_step(self) -> None:
        """The next step is through."""
        with self.changed:
            self.steps_done += 1
            self.changed.notify_all()

    def end(self) -> None:
        """All ranks have left."""
        with self.changed:
            self.has_ended = True
            self.changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Nothing will be exchanged any more: end all that waits."""
        with self.changed:
            self.failure = error
            tensors = [*self._waiting.values(), *self._listed]
            self._waiting, self._listed = {}, set()
            self.changed.notify_all()
        for tensor in tensors:
            tensor.fail(error)

    def _tell(self) -> None:
        self._news = True
        self.wake.set()

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure
        if self.has_ended or self._leaving:
            raise InputError("the exchange is shut down", where="exchange", hint="call init() first")

    @contextmanager
    def _blocking(self) -> Iterator[None]:
        """A thread of the program waits, until it does not, or is interrupted."""
        with self.changed:
            self._blocked += 1
        try:
            yield
        finally:
            with self.changed:
                self._blocked -= 1

    def _wait_until(self, condition: Callable[[], bool]) -> None:
        with self._blocking():
            self.changed.wait_for(lambda: condition() or self.failure is not None)
        if self.failure is not None:
            raise self.failure
