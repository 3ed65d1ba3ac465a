"""Agreement: what all ranks know alike after each round, and the lists that follow from it.

Whatever is decided here follows from what all ranks said, so that all decide the same without being told: which tensors
have numbers, which are listed and in which order, where a step ends, who has joined, what is an error.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Generator, Mapping, Sequence

import numpy as np

from executor.exchange.announcements import Announcements, Said
from executor.exchange.buckets import Fuser, ListedTensor
from executor.exchange.negotiation import Asking, ReadyBits, RecursiveDoubling, all_of, ranks_in
from executor.exchange.pending import MismatchedTensor, NonFiniteTensor, StalledTensor
from executor.exchange.reduction import Meeting, gather_numbers
from executor.exchange.settings import ExchangeSettings
from executor.exchange.streams import CollectiveStreams
from executor.exchange.tensors import CollectiveKind, KeyTable, TensorKey, keys_from_bytes, keys_to_bytes, mismatches
from executor.exchange.tuning import FusionTuner
from executor.runtime.pieces import Requests
from executor.runtime.transport.base import PendingTransfer
from strategy.base.errors import InternalError, RunError

_MOST_NAMED = 3
"""Tensors that a message names."""

Census = Sequence[tuple[int, int]]
"""By rank: the tensors that it has, and those of them that are not finite."""


class Agreement:
    """One rank's view of what all ranks agree on.

    Args:
        announcements: of this rank.
        meeting: of all ranks, for what does not fit into bits.
        doubling: the rounds.
        settings: equal on all ranks.
        streams: where listed tensors go.
        on_stall: told of tensors that some ranks lack, on one rank.
        on_step: called when all registered tensors of a step are through, before the program learns of it.
    """

    def __init__(
        self,
        announcements: Announcements,
        meeting: Meeting,
        doubling: RecursiveDoubling,
        settings: ExchangeSettings,
        streams: CollectiveStreams,
        on_stall: Callable[[str], None],
        on_step: Callable[[int], None],
    ) -> None:
        self.table = KeyTable()
        self.registered: set[TensorKey] = set()
        self.step = 0
        self.has_ended = False
        self.digest = 0
        self.tuner = FusionTuner(settings.candidates, settings.tune_steps) if settings.candidates else None
        self.fuser = Fuser(settings.fusion_bytes, settings.fragment_bytes)
        self.left_of_step: dict[int, int] = {}
        self._announcements = announcements
        self._meeting = meeting
        self._doubling = doubling
        self._settings = settings
        self._streams = streams
        self._on_stall = on_stall
        self._on_step = on_step
        self._listed_of_step: set[TensorKey] = set()
        self._joined = 0
        self._retunes = False
        self._step_begin_s: float | None = None
        self._try_next()

    @property
    def _rank(self) -> int:
        return self._meeting.transport.rank

    @property
    def _everyone(self) -> int:
        return all_of(self._meeting.transport.size)

    def round(self) -> Requests:
        """One round, from what this rank says to what follows for all.

        Raises:
            MismatchedTensor: ranks mean different things by one name, or register different tensors.
            StalledTensor: a tensor was not ready everywhere for too long.
            RunError: a rank has left that others wait for.
        """
        said = self._announcements.say(check_finite=self._settings.check_finite)
        mine = self._bits(said)
        agreed = yield from self._doubling.combine(mine)
        if agreed.same != agreed.seen:
            raise InternalError("the ranks have listed tensors in different orders")
        listed = agreed.everywhere & agreed.somewhere
        lacking = agreed.somewhere & ~listed
        wrong = mismatches(self.table.keys(agreed.somewhere))
        stalls = bool(agreed.asking & (Asking.CENSUS | Asking.GIVE_UP))
        census: Census = ()
        if wrong or stalls or listed & agreed.non_finite or (agreed.leaving and lacking):
            census = yield from self._take_census(mine)
        if wrong:
            raise self._mismatch(wrong, census)
        self._retunes |= bool(agreed.asking & Asking.RETUNE)
        yield from self._list(agreed, listed, census)
        self._announcements.serve(said)
        if agreed.leaving and lacking:
            self._check_leaving(agreed, lacking, census)
        if stalls:
            self._tell_stall(agreed, lacking, census)
        yield from self._learn(agreed, said)
        self._close_join(agreed)
        if agreed.leaving == self._everyone:
            self.has_ended = True
        else:
            self._doubling.listen(len(self.table))

    def _bits(self, said: Said) -> ReadyBits:
        here = 1 << self._rank
        ready = self.table.bits(said.waiting)
        unknown = any(key not in self.table for key in said.waiting)
        return ReadyBits(
            said.asking | (Asking.UNKNOWN if unknown else Asking(0)),
            here * said.joined,
            here * said.leaving,
            here * (said.registering is not None),
            all_of(len(self.table)) if said.joined else ready,
            ready,
            self.table.bits(said.non_finite),
            self.digest,
            self.digest,
        )

    def _gather(self, raw: bytes) -> Generator[PendingTransfer, None, list[bytes]]:
        """What every rank gives, by rank."""
        meeting = self._meeting
        lengths = yield from gather_numbers(meeting, len(raw))
        parts = [np.empty(length, np.uint8) if length else None for length in lengths]
        if raw:
            parts[self._rank] = np.frombuffer(raw, np.uint8).copy()
        yield meeting.transport.all_gather(meeting.group, meeting.number, parts[self._rank], parts)
        return [b"" if part is None else part.tobytes() for part in parts]

    def _take_census(self, mine: ReadyBits) -> Generator[PendingTransfer, None, Census]:
        nbytes = -(-len(self.table) // 8)
        sets = (mine.somewhere, mine.non_finite)
        told = yield from self._gather(b"".join(bits.to_bytes(nbytes, "little") for bits in sets))
        return [(int.from_bytes(raw[:nbytes], "little"), int.from_bytes(raw[nbytes:], "little")) for raw in told]

    def _list(self, agreed: ReadyBits, bits: int, census: Census) -> Requests:
        """Send what all ranks have on its way."""
        contributors = self._everyone & ~agreed.joined
        for key in self.table.keys(bits):
            self.digest = _digest_with(self.digest, key)
            counts = key in self.registered
            listed = ListedTensor(key, self._announcements.take(key), self.step if counts else None)
            if counts:
                self._listed_of_step.add(key)
                self.left_of_step[self.step] = self.left_of_step.get(self.step, 0) + 1
            number = self.table.bits([key])
            if agreed.non_finite & number:
                where = [rank for rank, (_, bad) in enumerate(census) if bad & number]
                error = NonFiniteTensor(f"tensor {key.name!r} is not finite on {_ranks(where)}; no rank changed it")
                self.close(listed, error)
            elif key.collective is CollectiveKind.ALL_REDUCE:
                for bucket in self.fuser.add(listed, contributors):
                    self._streams.start_bucket(bucket)
            elif key.collective is CollectiveKind.BROADCAST and agreed.joined >> key.root & 1:
                raise RunError(f"tensor {key.name!r}: rank {key.root}, whose values all wait for, has joined")
            else:
                self._streams.start(listed, contributors)
            if not counts:
                self.table.drop(key)
        is_over = bool(self.registered) and self._listed_of_step == self.registered
        if is_over or agreed.asking & Asking.URGENT or agreed.joined:
            for bucket in self.fuser.flush():
                self._streams.start_bucket(bucket)
        if is_over:
            yield from self._end_step()

    def _end_step(self) -> Requests:
        self._listed_of_step = set()
        now_s = time.monotonic()
        begin_s, self._step_begin_s = self._step_begin_s, now_s
        if self.tuner is not None and begin_s is not None:
            self.tuner.note(now_s - begin_s)
            if self.tuner.is_through:
                told = yield from self._gather(self.tuner.medians_s().tobytes())
                choice = self.tuner.choose([np.frombuffer(raw, np.float64) for raw in told])
                self.fuser.fusion_bytes, self._streams.streams = choice
                self.tuner = None
        if self._retunes and self._settings.candidates:
            self.tuner = FusionTuner(self._settings.candidates, self._settings.tune_steps)
        self._retunes = False
        self._try_next()
        self.step += 1  # from now on the step counts as over, and whoever goes on must see the choice
        self.close_steps()

    def _try_next(self) -> None:
        if self.tuner is not None:
            self.fuser.fusion_bytes, self._streams.streams = self.tuner.tried

    def close(self, listed: ListedTensor, error: Exception | None = None) -> None:
        """A listed tensor is through on this rank."""
        if listed.step is not None and error is not None:
            self._announcements.note_step_error(listed.step, error)
        if listed.tensor is not None:
            self._announcements.close(listed.tensor, error)
        if listed.step is not None:
            self.left_of_step[listed.step] -= 1
            self.close_steps()

    def close_steps(self) -> None:
        """Tell of the steps that are through, in their order."""
        while (done := self._announcements.steps_done) < self.step and not self.left_of_step[done]:
            del self.left_of_step[done]
            self._on_step(done)
            self._announcements.close_step()

    def _learn(self, agreed: ReadyBits, said: Said) -> Requests:
        """Give numbers to what is new."""
        if agreed.asking & Asking.UNKNOWN:
            unknown = [key for key in said.waiting if key not in self.table]
            told = yield from self._gather(keys_to_bytes(unknown))
            self.table.add(key for raw in told for key in keys_from_bytes(raw))
            if unknown:
                self._announcements.ask(Asking(0))
        if agreed.registering == self._everyone:
            told = yield from self._gather(keys_to_bytes(said.registering or ()))
            of_ranks = [keys_from_bytes(raw) for raw in told]
            _check_registered(of_ranks)
            self.table.add(of_ranks[0])
            self.registered.update(of_ranks[0])
            self._announcements.close_registration()

    def _close_join(self, agreed: ReadyBits) -> None:
        if agreed.joined == self._everyone:
            self._announcements.close_join(max(ranks_in(agreed.joined & ~self._joined)))
            self._joined = 0
        else:
            self._joined = agreed.joined

    def _mismatch(self, wrong: Mapping[str, Sequence[TensorKey]], census: Census) -> MismatchedTensor:
        lines = []
        for name, keys in sorted(wrong.items()):
            held = []
            for key in sorted(keys):
                number = self.table.bits([key])
                held.append(f"{key} on {_ranks([rank for rank, (has, _) in enumerate(census) if has & number])}")
            lines.append(f"tensor {name!r} is not the same on all ranks: {'; '.join(held)}")
        return MismatchedTensor("\n".join(lines))

    def _check_leaving(self, agreed: ReadyBits, lacking: int, census: Census) -> None:
        for key in self.table.keys(lacking):
            number = self.table.bits([key])
            gone = [r for r in ranks_in(agreed.leaving & ~agreed.joined) if not census[r][0] & number]
            if gone:
                who = [rank for rank, (has, _) in enumerate(census) if has & number]
                raise RunError(
                    f"tensor {key.name!r} is waited for by {_ranks(who)}, and {_ranks(gone)} shut down without it; "
                    "where data is uneven, call join() before"
                )

    def _tell_stall(self, agreed: ReadyBits, lacking: int, census: Census) -> None:
        waiting = set(self.table.keys(lacking)) | (self.registered - self._listed_of_step)
        told = []
        for key in sorted(waiting):
            number = self.table.bits([key])
            lacks = [r for r, (has, _) in enumerate(census) if not (has & number or agreed.joined >> r & 1)]
            if lacks and len(lacks) < len(census):
                told.append((key.name, f"tensor {key.name!r} is not ready on {_ranks(lacks)}"))
        if not told:
            told = [
                (key.name, f"tensor {key.name!r} was announced by no rank")
                for key in sorted(waiting)
                if self._listed_of_step or agreed.asking & Asking.GIVE_UP
            ]
        if agreed.registering and agreed.registering != self._everyone:
            told.insert(0, ("", f"{_ranks(ranks_in(self._everyone & ~agreed.registering))} did not come to register"))
        if not told:
            return
        more = f"; and {len(told) - _MOST_NAMED} more" if len(told) > _MOST_NAMED else ""
        lines = "; ".join(line for _, line in told[:_MOST_NAMED]) + more
        if agreed.asking & Asking.GIVE_UP:
            raise StalledTensor(f"after {self._settings.stall_limit_s:g} s: {lines}")
        waits = [rank for rank, (has, _) in enumerate(census) if has & lacking]
        if self._rank == min(waits, default=0):
            self._on_stall(f"after {self._settings.stall_s:g} s: {lines}")


def _check_registered(of_ranks: Sequence[Sequence[TensorKey]]) -> None:
    """See that all ranks register the same.

    Raises:
        MismatchedTensor: they do not; names each tensor that differs, and what it is where.
    """
    by_name: dict[str, dict[str, list[int]]] = {}
    for rank, keys in enumerate(of_ranks):
        for key in keys:
            by_name.setdefault(key.name, {}).setdefault(str(key), []).append(rank)
    lines = []
    for name, held in sorted(by_name.items()):
        having = [rank for ranks in held.values() for rank in ranks]
        lacking = [rank for rank in range(len(of_ranks)) if rank not in having]
        if len(held) > 1 or lacking:
            what = [f"{text} on {_ranks(ranks)}" for text, ranks in held.items()]
            what += [f"not registered on {_ranks(lacking)}"] if lacking else []
            lines.append(f"tensor {name!r} is not the same on all ranks: {'; '.join(what)}")
    if lines:
        more = f"\nand {len(lines) - _MOST_NAMED} more" if len(lines) > _MOST_NAMED else ""
        raise MismatchedTensor("\n".join(lines[:_MOST_NAMED]) + more)


def _digest_with(digest: int, key: TensorKey) -> int:
    text = f"{digest} {key.name} {key}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) != 1 else ''} {', '.join(map(str, ranks))}"
