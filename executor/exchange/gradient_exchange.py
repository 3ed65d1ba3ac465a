"""The gradient exchange: a program announces tensors as they come, and all ranks combine them behind its back.

This is an engine of its own over a `Transport`, not actors of a program: what is exchanged when follows from lists that
are agreed upon at run time (`agreement.py`). One thread per rank does it all; the program only announces and waits.
The method is that of Perseus (Alibaba, 2019): ready bits by recursive doubling instead of a root, fusion, and several
streams without a barrier between them.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from executor.exchange.agreement import Agreement
from executor.exchange.announcements import Announcements
from executor.exchange.buckets import ListedTensor
from executor.exchange.claims import claim, release
from executor.exchange.codecs import Values
from executor.exchange.negotiation import Asking, RecursiveDoubling
from executor.exchange.pending import PendingTensor
from executor.exchange.progress import ActProgress
from executor.exchange.reduction import AllReduce, Meeting, all_reduce
from executor.exchange.settings import ExchangeSettings
from executor.exchange.streams import CollectiveStreams
from executor.exchange.tensors import CollectiveKind, TensorKey, check_combination, checked_array
from executor.runtime.transport.base import HostArray, Lane, Transport, wait
from strategy.base.errors import InputError, RunError, did_you_mean
from strategy.sbp.sbp import Reduce

_CONTROL = 900
_FIRST_TAG = 1
_AWAKE_S = 0.02
"""How long a transfer that the program waits for is looked at without a nap in between."""
_SHORTEST_NAP_S = 1e-4
_BUSY_NAP_S = 2e-3
_MOVING_NAP_S = 5e-4
_JUST_S = 1e-3
_WAITING_NAP_S = 5e-4
_IDLE_NAP_S = 4e-3
"""Naps: the shortest; while a transfer is under way, and where one has just come through, after which another begins;
the longest while others lack what is ready here, and while nothing is ready here."""

Callback = Callable[[HostArray], None]


class GradientExchange:
    """One rank's end; all ranks make theirs together, with the same settings.

    Args:
        transport: of this rank; nobody else uses it until `close`.
        settings: how.
        on_stall: told of tensors that some ranks lack; writes to stderr by default.
        reduces: how ranks that meet reduce what no codec encodes; all give the same way.

    Raises:
        InputError: another exchange uses the transport.
        RunError: the ranks' settings differ.
    """

    def __init__(
        self,
        transport: Transport,
        settings: ExchangeSettings | None = None,
        *,
        on_stall: Callable[[str], None] | None = None,
        reduces: AllReduce = all_reduce,
    ) -> None:
        claim(transport)
        self.settings = settings or ExchangeSettings()
        self.rank, self.size = transport.rank, transport.size
        self.residuals: dict[str, Values] = {}
        self._transport = transport
        self._announcements = Announcements()
        self._registered: dict[str, TensorKey] = {}
        self._step = 0
        self._step_hooks: list[Callable[[int], None]] = []
        everyone = tuple(range(self.size))
        transport.open(_CONTROL, Lane(everyone, "exchange control"))
        meeting = Meeting(transport, everyone, _CONTROL)
        try:
            _check_settings(meeting, self.settings)
        except BaseException:
            release(transport)
            raise
        self._doubling = RecursiveDoubling(transport, _FIRST_TAG)
        self._streams = CollectiveStreams(transport, self.settings, self.residuals, self._on_done, reduces)
        self._agreement = Agreement(
            self._announcements,
            meeting,
            self._doubling,
            self.settings,
            self._streams,
            on_stall or _say_stall,
            self._tell_step,
        )
        self._asked_s = 0.0
        self._thread = threading.Thread(target=self._run, name="exchange", daemon=True)
        self._thread.start()

    def register(self, tensors: Mapping[str, HostArray], *, mean: bool = True, reduce: Reduce = Reduce.SUM) -> None:
        """Say which tensors belong to every step; waits until all ranks have said the same.

        Args:
            tensors: by unique name; shapes and dtypes count.
            mean: whether the ranks' values are averaged.
            reduce: how they are combined, where they are not.

        Raises:
            InputError: a name is registered already.
            MismatchedTensor: the ranks register different tensors.
        """
        keys = {}
        for name, array in tensors.items():
            if name in self._registered:
                raise InputError("is registered already", where=f"tensor {name!r}", hint="names are unique")
            check_combination(name, array.dtype, mean=mean)
            keys[name] = _key(name, CollectiveKind.ALL_REDUCE, array, array.shape, reduce=reduce, mean=mean)
        self._announcements.register(list(keys.values()))
        self._registered |= keys

    def announce(self, name: str, array: HostArray, callback: Callback | None = None) -> PendingTensor:
        """A registered tensor of this step is ready: it is combined in place, soon.

        Raises:
            InputError: it is not registered, or not as it was registered, or is under way already.
        """
        key = self._registered.get(name)
        if key is None:
            hint = did_you_mean(name, self._registered)
            raise InputError("was never registered", where=f"tensor {name!r}", hint=hint)
        checked_array(name, array, written=True)
        if (array.dtype.name, array.shape) != (key.dtype, key.shape):
            got = f"{array.dtype.name}{list(array.shape)}"
            expected = f"{key.dtype}{list(key.shape)}"
            raise InputError("is not as it was registered", where=f"tensor {name!r}", got=got, expected=expected)
        return self._announce(key, array, callback)

    def finish_step(self) -> None:
        """Wait until all registered tensors of this step are combined.

        Raises:
            NonFiniteTensor: on all ranks alike, where one of them was not finite on some rank; the step is over.
            RunError: the exchange has failed.
        """
        if not self._registered:
            raise InputError("no step without tensors", where="finish_step", hint="register them first")
        errors = self._announcements.wait_for_step(self._step)
        self._step += 1
        if errors:
            raise errors[0]

    def all_reduce(
        self,
        name: str,
        array: HostArray,
        *,
        mean: bool = False,
        reduce: Reduce = Reduce.SUM,
        callback: Callback | None = None,
    ) -> PendingTensor:
        """Combine any tensor in place."""
        check_combination(name, array.dtype, mean=mean)
        checked_array(name, array, written=True)
        key = _key(name, CollectiveKind.ALL_REDUCE, array, array.shape, reduce=reduce, mean=mean)
        return self._announce(key, array, callback)

    def all_gather(self, name: str, array: HostArray, callback: Callback | None = None) -> PendingTensor:
        """The ranks' rows one below the other; they may differ in number. `wait()` gives them."""
        rows = np.atleast_1d(checked_array(name, array, written=False))
        return self._announce(_key(name, CollectiveKind.ALL_GATHER, rows, rows.shape[1:]), rows, callback)

    def broadcast(self, name: str, array: HostArray, root: int, callback: Callback | None = None) -> PendingTensor:
        """Fill any tensor with the root's values."""
        if not 0 <= root < self.size:
            raise InputError("no such rank", where=f"tensor {name!r}", got=root, expected=f"below {self.size}")
        checked_array(name, array, written=True)
        return self._announce(_key(name, CollectiveKind.BROADCAST, array, array.shape, root=root), array, callback)

    def join(self) -> int:
        """This rank has no more data: take part with nothing until all have joined; the last rank that did.

        Means are over the ranks that gave something.
        """
        last = self._announcements.join()
        self._step = self._announcements.steps_done
        return last

    def on_all_reduced(self, hook: Callable[[int], None]) -> None:
        """Call `hook(step)`, from 0, in the exchange's thread when all registered tensors of a step are combined."""
        self._step_hooks.append(hook)

    def retune(self) -> None:
        """Have all ranks try the candidates of the settings again, from the next step on."""
        self._announcements.retune()

    @property
    def choice(self) -> tuple[int, int] | None:
        """Fusion size and streams in use; None while they are being tuned."""
        agreed = self._agreement
        return None if agreed.tuner is not None else (agreed.fuser.fusion_bytes, self._streams.streams)

    @property
    def order_digest(self) -> int:
        """A digest of all lists so far: equal on all ranks."""
        return self._agreement.digest

    @property
    def collectives(self) -> int:
        """Buckets, gathers and broadcasts begun so far."""
        return self._streams.started

    @property
    def rounds(self) -> tuple[int, int]:
        """Rounds so far, and messages that this rank sent and received in them."""
        return self._doubling.rounds, self._doubling.messages

    def state_dict(self) -> dict[str, Any]:
        """What a training goes on with: what codecs have lost so far, and the choice of the tuning."""
        return {"residuals": {name: kept.copy() for name, kept in self.residuals.items()}, "choice": self.choice}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there; all ranks call it, between two steps.

        Raises:
            InputError: it is no such state.
        """
        if set(state) != {"residuals", "choice"}:
            raise InputError("no state of an exchange", got=sorted(state), expected="residuals and choice")
        self.residuals.clear()
        self.residuals.update({name: np.array(kept, np.float32) for name, kept in state["residuals"].items()})
        if state["choice"] is not None:
            self._agreement.tuner = None
            self._agreement.fuser.fusion_bytes, self._streams.streams = state["choice"]

    def close(self) -> None:
        """Wait until all ranks close, and end the thread. The transport stays open.

        Raises:
            RunError: the exchange has failed.
        """
        self._announcements.leave()
        if self._announcements.failure is not None:
            raise self._announcements.failure
        self._thread.join()

    def _announce(self, key: TensorKey, array: HostArray, callback: Callback | None) -> PendingTensor:
        tensor = PendingTensor(key, array, callback, self._announcements.wait_for)
        if self.settings.check_finite and array.dtype.kind not in "iub":
            tensor.finite = bool(np.isfinite(array).all())
        self._announcements.announce(tensor)
        return tensor

    def _on_done(self, listed: ListedTensor) -> None:
        self._agreement.close(listed)

    def _run(self) -> None:
        """The thread: rounds and streams, until all ranks have left or something failed."""
        failure: Exception | None = None
        try:
            self._doubling.listen(0)
            self._work()
        except Exception as error:  # noqa: BLE001 - whatever ends this thread ends all that wait for it
            if not isinstance(error, RunError):
                error.add_note("in the thread of the gradient exchange")
            failure = error
        release(self._transport)  # before anybody learns that it is over, who may begin another one
        if failure is None:
            self._announcements.end()
        else:
            self._announcements.fail(failure)

    def _work(self) -> None:
        announcements = self._announcements
        now: ActProgress | None = None
        begun_s, moved_s = 0.0, time.monotonic()
        while True:
            before = self._doubling.messages, self._streams.moved
            all_sent = self._streams.advance()
            if now is None and not self._agreement.has_ended:
                due = announcements.has_news() and time.monotonic() - begun_s >= self.settings.cycle_s
                if due or self._doubling.has_begun():
                    begun_s = time.monotonic()
                    now = ActProgress(self._agreement.round(), self.rank, self.settings.peer_s)
            if now is not None and now.advance():
                now = None
            if self._agreement.has_ended and now is None and all_sent:
                break
            self._look_for_stalls()
            if before != (self._doubling.messages, self._streams.moved):
                moved_s = time.monotonic()
            if now is not None or not all_sent:
                self._give_way(time.monotonic() - moved_s)
            else:
                announcements.wake.wait(self._idle_nap_s(time.monotonic() - moved_s))

    def _give_way(self, waited_s: float) -> None:
        """Between two looks at transfers, which MPI moves on only while they are looked at.

        At first without a nap where the program waits; while it computes, the processor is its own: a wire goes on
        with what lies in the socket's buffers.
        """
        awake = waited_s < _AWAKE_S and self._announcements.is_waited_for()
        time.sleep(0 if awake else _MOVING_NAP_S if waited_s < _JUST_S else _BUSY_NAP_S)

    def _idle_nap_s(self, idle_s: float) -> float:
        """How long to sleep where nothing is under way; news of this rank end the nap, messages are seen after it."""
        if self._announcements.has_news():
            return self.settings.cycle_s / 4
        longest_s = _WAITING_NAP_S if self._announcements.is_waiting() else _IDLE_NAP_S
        return min(longest_s, max(_SHORTEST_NAP_S, idle_s / 8))

    def _tell_step(self, step: int) -> None:
        for hook in self._step_hooks:
            hook(step)

    def _look_for_stalls(self) -> None:
        now_s = time.monotonic()
        if now_s - self._asked_s < min(1.0, self.settings.stall_s / 2):
            return
        age_s = self._announcements.oldest_s()
        if age_s is None or age_s <= self.settings.stall_s:
            self._asked_s = now_s
            return
        gives_up = age_s > self.settings.stall_limit_s
        if gives_up or now_s - self._asked_s >= self.settings.stall_s:
            self._asked_s = now_s
            self._announcements.ask(Asking.GIVE_UP if gives_up else Asking.CENSUS)


def _key(
    name: str,
    collective: CollectiveKind,
    array: HostArray,
    shape: Sequence[int],
    *,
    reduce: Reduce = Reduce.SUM,
    mean: bool = False,
    root: int = 0,
) -> TensorKey:
    return TensorKey(name, collective, array.dtype.name, tuple(shape), reduce, mean, root)


def _check_settings(meeting: Meeting, settings: ExchangeSettings) -> None:
    raw = repr(settings).encode()
    length = np.array([len(raw)], np.int64)
    lengths: list[HostArray] = [np.zeros(1, np.int64) for _ in meeting.group]
    lengths[meeting.index] = length
    wait(meeting.transport.all_gather(meeting.group, meeting.number, length, lengths), meeting.transport)
    texts: list[HostArray] = [np.zeros(int(found[0]), np.uint8) for found in lengths]
    texts[meeting.index] = np.frombuffer(raw, np.uint8).copy()
    request = meeting.transport.all_gather(meeting.group, meeting.number, texts[meeting.index], texts)
    wait(request, meeting.transport)
    told = [text.tobytes().decode() for text in texts]
    if len(set(told)) > 1:
        lines = "".join(f"\n  rank {rank}: {text}" for rank, text in enumerate(told))
        raise RunError(f"the ranks' settings of the exchange differ{lines}")


def _say_stall(message: str) -> None:
    sys.stderr.write(f"sbplan: gradient exchange, {message}\n")
    sys.stderr.flush()
