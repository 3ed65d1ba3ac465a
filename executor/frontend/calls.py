"""Calls: computations that run behind the code that asks for them, one after the other in the order of asking.

    one = train(rows, labels)                returns at once
    two = train(more, labels)                begins on this rank when `one` is through here, wherever other ranks are
    one.result()                             waits, and gives what it computed

One thread of a rank runs all its calls, so what one writes the next one reads whole. Ranks do not wait for one another
between calls: the first stage of a pipeline is in the second call while the last stage is in the first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, final

from strategy.base.errors import RunError


@final
@dataclass(frozen=True, slots=True, eq=False)
class DeferredCall:
    """A computation that was asked for, and what it will give."""

    name: str
    _future: Future[Any]

    def done(self) -> bool:
        """Whether this rank is through with it, well or not."""
        return self._future.done()

    def result(self) -> Any:
        """What it gave, waiting until then.

        Raises:
            RunError: it failed on this rank, or was not run because an earlier call failed; names the call.
        """
        return self._future.result()

    def wait(self) -> None:
        """Wait until this rank is through with it, well or not."""
        self._future.exception()


@dataclass(slots=True)
class Calls:
    """The calls of one rank."""

    _under_way: deque[DeferredCall] = field(default_factory=deque)
    _failed: RunError | None = None
    _thread: ThreadPoolExecutor | None = None

    def begin(self, name: str, code: Callable[[], Any]) -> DeferredCall:
        """Run `code` after all calls so far."""
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="calls")
        while self._under_way and self._under_way[0].done():
            self._under_way.popleft()
        call = DeferredCall(name, self._thread.submit(self._run, name, code))
        self._under_way.append(call)
        return call

    def settle(self) -> None:
        """Wait until no call is under way on this rank.

        Raises:
            RunError: a call failed, now or before: what it shares with others may be half written.
        """
        while self._under_way:
            self._under_way.popleft().wait()
        if self._failed is not None:
            raise self._failed

    def _run(self, name: str, code: Callable[[], Any]) -> Any:
        if self._failed is not None:
            raise RunError(f"{name} was not run: {self._failed}") from self._failed
        try:
            return code()
        except Exception as error:
            self._failed = RunError(f"{name}: {error}")
            raise self._failed from error
