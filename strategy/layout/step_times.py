"""Step times: what the stages of a pipeline do themselves, and what goes on beside it; how long chunks last by both.

Collectives that no layer waits for (`overlapped`) go on while a stage computes, and slow it down; where they take
longer than that, the chunk lasts as long as they do. Of what is done once per step, parameters are gathered lap by lap
ahead of the first chunk that reads them, and gradients are exchanged as soon as the last chunk of their lap begins to
leave them whole; in the order of these chunks, on one stream, on which what later chunks have beside them waits.

    own     = what it computes + what it waits for
    busy    = overlapped + shared x (what it waits for + covered + the message that it sends)
    chunk   = max(own + slowed x (overlapped + messages to it and from it) + slows x covered,  busy,  copied)
    first   = chunk,  but it ends no earlier than  own before the step + gathers of its lap and those before + busy
              + shared x the messages that the stage has sent before
    before  = own + slowed x overlapped
    after   = own + slowed x overlapped / laps,  or own behind the last exchange
    begins  = begin of the last chunk of a lap + busy,  or the end of the exchange before
    message = message - slowed x message;  of the last backward pass of a lap + slowed x overlapped / laps / 2

What moves between a device and its host (`copied`) has links of its own, and slows nothing down.

Collectives that layers wait for share their links with what goes on beside these, and so do messages
(`shared_links`). What gradients of weights are computed beside (`covered`) slows these down, by a 64th at least, so
that no step is short in which much is covered: what bounds it is proved by that (`bounds.multipliers`). Where they are
a pass of their own, it is waited for.

A chunk that waits for a message does not run beside it, so that this one does not slow it down. What gradients are
exchanged goes on beside the rest of the last backward pass, but for those of its last layer, and beside none of it
where they are exchanged together (`search.exchange_choice`): half is counted. On several laps, those of one go on
beside the one that follows, whose first chunks they slow down and whose others wait for these: on every stage that a
micro-batch passes, not once. How much of it falls on one chunk lies between all, where it takes as long as the
exchange, and none; half is counted here, too. Where gradients of weights are chunks of their own, a stage ends with
these, which hand on nothing.

A step is the makespan of these under the schedule: the longest of all paths, each of which is a linear function of all
times, for every maximum is that of linear functions (`mean_path`).

Chunks are counted in whole `TICKS` of a nanosecond, so that sums are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from strategy.graph.graph import Phase
from strategy.hardware.cluster import Cluster
from strategy.layout.schedule import Schedule, at_position, chunk_order, position_of

if TYPE_CHECKING:  # what runs a plan needs no compiler
    from strategy.layout.critical_path import Paths
    from strategy.layout.makespan import PipelineTimes

IntArray = npt.NDArray[np.int64]
TICKS = 1024
"""Of a nanosecond."""
LEAST_COVERED = TICKS // 64
"""Of a nanosecond of what is covered, at least so much counts."""
OVERLAPPED = {
    "forward_ns": "forward_overlapped_ns",
    "backward_ns": "backward_overlapped_ns",
    "weight_ns": "weight_overlapped_ns",
    "before_ns": "before_overlapped_ns",
    "after_ns": "after_overlapped_ns",
}
"""What a stage does itself -> what goes on beside it."""
WAITED = {
    "forward_ns": "forward_waited_ns",
    "backward_ns": "backward_waited_ns",
    "weight_ns": "weight_waited_ns",
}
"""What a stage does in a pass of a micro-batch -> the collectives that it waits for there."""
COVERED = {"backward_waited_ns": "backward_covered_ns"}
"""What a stage waits for -> those of these collectives that gradients of weights are computed beside, where these are
no pass of their own; else it waits for them, too."""
COPIED = {
    "forward_ns": "forward_copied_ns",
    "backward_ns": "backward_copied_ns",
    "weight_ns": "weight_copied_ns",
}
"""What a stage does in a pass of a micro-batch -> what moves between it and its host beside that."""
MESSAGES = {"forward_ns": "forward_message_ns", "backward_ns": "backward_message_ns"}
"""Passes -> their messages."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """How communication runs beside computation.

    Attributes:
        allowed: whether it does.
        slowed_ticks: that a nanosecond of it takes from computation beside it.
        shared_ticks: that a nanosecond of what is waited for takes from it.
        message_ticks: that a nanosecond of a message takes from it, of every stage to the next or back; empty: none.
    """

    allowed: bool
    slowed_ticks: int = 0
    shared_ticks: int = 0
    message_ticks: tuple[int, ...] = ()

    @staticmethod
    def of(cluster: Cluster) -> Overlap:
        """That of a cluster's devices; of several types, of those that are slowed down most."""
        slowdown = max(one.device.slowdown for one in cluster.types)
        return Overlap(cluster.overlaps, round(TICKS * slowdown))


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """Integer nanoseconds of what the stages of a pipeline do; many cases at once have one more axis, in front.

    Attributes:
        forward_ns, backward_ns, weight_ns: (stages, laps), of a micro-batch, what a stage does itself.
        forward_message_ns, backward_message_ns: (places - 1,), from a place to the next, and back.
        before_ns, after_ns: (stages,), once per step.
        forward_overlapped_ns, backward_overlapped_ns, weight_overlapped_ns: (stages, laps), of a micro-batch, what goes
            on beside that.
        before_overlapped_ns, after_overlapped_ns: (stages, laps), once per step, beside that.
        forward_waited_ns, backward_waited_ns, weight_waited_ns: (stages, laps), of a micro-batch, collectives of the
            stage that it waits for.
        backward_covered_ns: (stages, laps), of a micro-batch, those that gradients of weights are computed beside.
        forward_copied_ns, backward_copied_ns, weight_copied_ns: (stages, laps), of a micro-batch, what moves between
            devices and hosts beside that.
        overlap: how communication runs beside computation.
    """

    forward_ns: IntArray
    backward_ns: IntArray
    weight_ns: IntArray
    forward_message_ns: IntArray
    backward_message_ns: IntArray
    before_ns: IntArray
    after_ns: IntArray
    forward_overlapped_ns: IntArray
    backward_overlapped_ns: IntArray
    weight_overlapped_ns: IntArray
    before_overlapped_ns: IntArray
    after_overlapped_ns: IntArray
    forward_waited_ns: IntArray
    backward_waited_ns: IntArray
    weight_waited_ns: IntArray
    backward_covered_ns: IntArray
    forward_copied_ns: IntArray
    backward_copied_ns: IntArray
    weight_copied_ns: IntArray
    overlap: Overlap

    @property
    def stages(self) -> int:
        """Of the pipeline."""
        return int(self.forward_ns.shape[-2])

    @property
    def laps(self) -> int:
        """Runs of layers on each stage."""
        return int(self.forward_ns.shape[-1])


ARRAYS = tuple(field.name for field in fields(StepTimes) if field.name != "overlap")
"""The arrays of `StepTimes`."""


def no_times(stages: int, laps: int) -> dict[str, IntArray]:
    """The arrays of `StepTimes`, all zero."""
    shapes: Mapping[str, tuple[int, ...]] = {
        **dict.fromkeys(ARRAYS, (stages, laps)),
        **dict.fromkeys(("forward_message_ns", "backward_message_ns"), (stages * laps - 1,)),
        **dict.fromkeys(("before_ns", "after_ns"), (stages,)),
    }
    return {name: np.zeros(shape, np.int64) for name, shape in shapes.items()}


def step_ns(schedule: Schedule, num_micro_batches: int, times: StepTimes) -> int:
    """The makespan of a step, rounded up.

    Raises:
        InputError: there is no such schedule, or the step takes too long to be counted.
    """
    from strategy.layout.makespan import makespan_ns

    return -(-makespan_ns(schedule, num_micro_batches, in_ticks(schedule, num_micro_batches, times)) // TICKS)


def steps_ns(schedule: Schedule, num_micro_batches: int, times: StepTimes) -> IntArray:
    """The same of many cases: (cases,).

    Raises:
        InputError: there is no such schedule, or a step takes too long to be counted.
    """
    from strategy.layout.makespan import makespans_ns

    return -(-makespans_ns(schedule, num_micro_batches, in_ticks(schedule, num_micro_batches, times)) // TICKS)


def in_ticks(schedule: Schedule, num_micro_batches: int, times: StepTimes) -> PipelineTimes:
    """How long chunks last, and what is left before the first and after the last one; in ticks.

    Gradients of weights that the schedule does not set apart are counted with the backward pass.
    """
    return _in_ticks(schedule, times, _Exposed(schedule, num_micro_batches, times))


def _in_ticks(schedule: Schedule, times: StepTimes, found: _Exposed) -> PipelineTimes:
    from strategy.layout.makespan import PipelineTimes

    hidden = hidden_ticks(schedule, times)
    gathers = np.cumsum(times.before_overlapped_ns, -1)
    forward_busy, backward_busy, weight_busy = found.busy
    return PipelineTimes(
        found.forward,
        found.backward,
        found.weight,
        found.waited_ticks * times.forward_message_ns,
        found.waited_ticks * times.backward_message_ns,
        TICKS * times.before_ns + hidden["before_ns"] * times.before_overlapped_ns.sum(-1),
        TICKS * times.after_ns + hidden["after_ns"] * times.after_overlapped_ns.sum(-1),
        late_ticks(schedule, times) * times.after_overlapped_ns.sum(-1),
        forward_busy,
        backward_busy,
        weight_busy,
        TICKS * (times.before_ns[..., None] + gathers) + forward_busy + found.sent_before,
        TICKS * times.after_overlapped_ns,
        TICKS * times.after_ns,
        times.overlap.allowed,
    )


def late_ticks(schedule: Schedule, times: StepTimes) -> int:
    """Of a nanosecond of what is done beside the last chunks of a stage, for the message of that of each lap."""
    return 0 if schedule.splits_backward else times.overlap.slowed_ticks // (2 * times.laps)


def covered_ticks(schedule: Schedule, overlap: Overlap) -> int:
    """Of a nanosecond of what is covered, for the chunk that covers it."""
    return TICKS if schedule.splits_backward else max(overlap.slowed_ticks, LEAST_COVERED)


def hidden_ticks(schedule: Schedule, times: StepTimes) -> dict[str, int]:
    """Of a nanosecond of what is done beside the first chunk or the last one, for the stage that it slows down.

    What is done beside the last one on several laps slows down that of the first lap; the others' messages are late.
    """
    slowed = times.overlap.slowed_ticks
    return {"before_ns": slowed, "after_ns": slowed if schedule.splits_backward else slowed // times.laps}


@dataclass(frozen=True, slots=True, eq=False)
class MeanPath:
    """The mean of some paths through a step.

    Attributes:
        counts: what a nanosecond of everything counts on all together.
        number: what a nanosecond of the step counts.
    """

    counts: StepTimes
    number: int

    def length(self, times: StepTimes) -> int:
        """Of all together, under times: no more than `number` times the step."""
        return sum(int((getattr(self.counts, name) * getattr(times, name)).sum()) for name in ARRAYS)


def mean_path(schedule: Schedule, num_micro_batches: int, times: StepTimes, paths: Paths) -> MeanPath:
    """What paths through the chunks pass of everything, each maximum being what it is under these times."""
    return _mean_path(schedule, times, paths, _Exposed(schedule, num_micro_batches, times))


def path_found(
    schedule: Schedule, num_micro_batches: int, times: StepTimes, find: Callable[[PipelineTimes], Paths]
) -> MeanPath:
    """The same of the paths that are found where chunks last as long as they do `in_ticks`."""
    exposed = _Exposed(schedule, num_micro_batches, times)
    return _mean_path(schedule, times, find(_in_ticks(schedule, times, exposed)), exposed)


def _mean_path(schedule: Schedule, times: StepTimes, paths: Paths, exposed: _Exposed) -> MeanPath:
    counts = paths.counts
    slowed, shared, hidden = times.overlap.slowed_ticks, times.overlap.shared_ticks, hidden_ticks(schedule, times)
    found = no_times(times.stages, times.laps)
    found["before_ns"] += TICKS * (counts.before_ns + counts.gathered_ns.sum(1))
    found["after_ns"] += TICKS * (counts.after_ns + counts.update_ns)
    found["before_overlapped_ns"] += hidden["before_ns"] * counts.before_ns[:, None]
    found["before_overlapped_ns"] += TICKS * np.cumsum(counts.gathered_ns[:, ::-1], 1)[:, ::-1]
    found["after_overlapped_ns"] += hidden["after_ns"] * counts.after_ns[:, None] + TICKS * counts.exchange_ns
    found["after_overlapped_ns"] += late_ticks(schedule, times) * counts.late_ns[:, None]
    passes = {"forward_ns": counts.forward_ns, "backward_ns": counts.backward_ns, "weight_ns": counts.weight_ns}
    busy = {"forward_ns": counts.gathered_ns + counts.forward_busy_ns, "backward_ns": counts.backward_busy_ns}
    busy["weight_ns"] = counts.weight_busy_ns
    if not schedule.splits_backward:
        passes["weight_ns"], busy["weight_ns"] = counts.backward_ns, counts.backward_busy_ns
    for name, often in busy.items():
        found[OVERLAPPED[name]] += TICKS * often
        for sharing in _sharing(name):
            found[sharing] += shared * often
        exposed.count_messages(found, name, often)
    found["forward_message_ns"] += exposed.message_ticks * (counts.gathered_ns.ravel() @ exposed.often_before)
    for name, often in passes.items():
        own, copied = exposed.is_own[name] * often, exposed.is_copied[name] * often
        busy_often = often - own - copied
        found[name] += TICKS * own
        found[COPIED[name]] += TICKS * copied
        found[OVERLAPPED[name]] += TICKS * busy_often + slowed * own
        for sharing in _sharing(name):
            ticks = covered_ticks(schedule, times.overlap) if sharing in COVERED.values() else TICKS
            found[sharing] += shared * busy_often + ticks * own
        exposed.count_messages(found, name, busy_often)
        if name in MESSAGES:
            found[MESSAGES[name]] += exposed.slowed_by_messages * exposed.ends_of_messages(own)
    found["forward_message_ns"] += exposed.waited_ticks * counts.forward_message_ns
    found["backward_message_ns"] += exposed.waited_ticks * counts.backward_message_ns
    return MeanPath(StepTimes(**found, overlap=times.overlap), TICKS * paths.number)


def _sharing(name: str) -> tuple[str, ...]:
    """The collectives of layers in a pass, which share links with what goes on beside."""
    waited = WAITED[name]
    return (waited, COVERED[waited]) if waited in COVERED else (waited,)


class _Exposed:
    """Chunks of a step in ticks, what goes on beside them, and which of these takes longest."""

    def __init__(self, schedule: Schedule, num_micro_batches: int, times: StepTimes) -> None:
        self.places = _places(schedule, times.stages, times.laps)
        slowed, shared = times.overlap.slowed_ticks, times.overlap.shared_ticks
        self.slowed_by_messages = slowed if num_micro_batches > 1 else 0  # nothing else is there beside a single one's
        sent = [self._at_ends(each) for each in (times.forward_message_ns, times.backward_message_ns)]
        own = [times.forward_ns, times.backward_ns, times.weight_ns]
        overlapped = [times.forward_overlapped_ns, times.backward_overlapped_ns, times.weight_overlapped_ns]
        waited = [times.forward_waited_ns, times.backward_waited_ns, times.weight_waited_ns]
        copied = [TICKS * getattr(times, name) for name in COPIED.values()]
        moved = [sent[0], sent[1], np.zeros_like(sent[0])]
        if not schedule.splits_backward:
            for each in (own, overlapped, waited, copied):
                each[1], each[2] = each[1] + each[2], np.zeros_like(each[2])
        slow = [
            TICKS * (each + w) + slowed * b + self.slowed_by_messages * m
            for each, w, b, m in zip(own, waited, overlapped, moved, strict=True)
        ]
        slow[1] = slow[1] + covered_ticks(schedule, times.overlap) * times.backward_covered_ns
        waited[1] = waited[1] + times.backward_covered_ns
        self.message_ticks = _message_ticks(self.places, times.overlap.message_ticks)
        sharing = [self._of_senders(times, name) for name in COPIED]
        self.busy = tuple(TICKS * b + shared * w + m for b, w, m in zip(overlapped, waited, sharing, strict=True))
        self.often_before = _often_before(schedule, times.stages, times.laps, num_micro_batches)
        ahead = self.message_ticks * times.forward_message_ns
        self.sent_before = (ahead @ self.often_before.T).reshape(times.forward_ns.shape)
        beside = [*map(np.maximum, self.busy, copied)]
        self.forward, self.backward, self.weight = map(np.maximum, slow, beside)
        is_own = [each >= b for each, b in zip(slow, beside, strict=True)]
        is_copied = [~own & (c > b) for own, c, b in zip(is_own, copied, self.busy, strict=True)]
        if not schedule.splits_backward:
            is_own[2], is_copied[2] = is_own[1], is_copied[1]
        self.is_own, self.is_copied = (dict(zip(COPIED, each, strict=True)) for each in (is_own, is_copied))

    @property
    def waited_ticks(self) -> int:
        """Of a nanosecond of a message, for the chunk that waits for it."""
        return TICKS - self.slowed_by_messages

    def _of_senders(self, times: StepTimes, name: str) -> IntArray:
        """(..., stages, laps): of a pass, the ticks for which messages hold up what goes on beside their senders."""
        found = np.zeros_like(times.forward_ns)
        if name in MESSAGES and self.message_ticks.any():
            stage, lap = self._senders(name)
            found[..., stage, lap] = self.message_ticks * getattr(times, MESSAGES[name])
        return found

    def _senders(self, name: str) -> tuple[IntArray, IntArray]:
        """Stage and lap of who sends each message of a pass: to the next place, or back from it."""
        stage, lap, _ = self.places
        return (stage[:-1], lap[:-1]) if name == "forward_ns" else (stage[1:], lap[1:])

    def count_messages(self, counts: dict[str, IntArray], name: str, often: IntArray) -> None:
        """Count what messages take from that which goes on beside their senders, where passes are so long, so often."""
        if name in MESSAGES and self.message_ticks.any():
            counts[MESSAGES[name]] += self.message_ticks * often[self._senders(name)]

    def _at_ends(self, messages_ns: IntArray) -> IntArray:
        """(..., stages, laps): the messages to and from every place, of (..., places - 1)."""
        stage, lap, crosses = self.places
        messages = messages_ns * crosses
        total = np.zeros((*messages.shape[:-1], len(stage)), np.int64)
        total[..., :-1] += messages
        total[..., 1:] += messages
        found = np.zeros((*messages.shape[:-1], int(stage.max()) + 1, int(lap.max()) + 1), np.int64)
        found[..., stage, lap] = total
        return found

    def ends_of_messages(self, often: IntArray) -> IntArray:
        """(places - 1,): how often the chunks at both ends of every message are passed, (stages, laps)."""
        stage, lap, crosses = self.places
        at_place = often[stage, lap]
        found: IntArray = (at_place[:-1] + at_place[1:]) * crosses
        return found


def _message_ticks(places: tuple[IntArray, IntArray, IntArray], ticks: tuple[int, ...]) -> IntArray:
    """(places - 1,): what a nanosecond of each message takes, of what those of every stage to the next do."""
    stage, _, crosses = places
    if not any(ticks):
        return np.zeros_like(crosses)
    onward = (stage[:-1] + 1) % len(ticks) == stage[1:]
    return np.array(ticks, np.int64)[np.where(onward, stage[:-1], stage[1:])] * crosses


def _often_before(schedule: Schedule, stages: int, laps: int, num_micro_batches: int) -> IntArray:
    """(stages x laps, places - 1): how many of each message a stage has sent before the first chunk of each lap."""
    enough = min(num_micro_batches, 2 * stages) if laps > 1 else 1
    return _known_before(schedule, stages, laps, enough)


@lru_cache(maxsize=256)
def _known_before(schedule: Schedule, stages: int, laps: int, num_micro_batches: int) -> IntArray:
    found = np.zeros((stages, laps, stages * laps - 1), np.int64)
    for stage in range(stages) if laps > 1 else ():
        sent, begun = np.zeros(stages * laps, np.int64), set[int]()
        for chunk in chunk_order(schedule, stages, stage, num_micro_batches, laps):
            if chunk.phase is Phase.FORWARD:
                if chunk.lap not in begun:
                    found[stage, chunk.lap] = sent[:-1]
                    begun.add(chunk.lap)
                sent[position_of(schedule, stages, stage, chunk.lap)] += 1
    return found.reshape(stages * laps, -1)


@lru_cache(maxsize=256)
def _places(schedule: Schedule, stages: int, laps: int) -> tuple[IntArray, IntArray, IntArray]:
    """Stage and lap of every place, and (places - 1,) whether the next place is on another stage."""
    stage, lap = np.array([at_position(schedule, stages, place) for place in range(stages * laps)], np.int64).T
    return stage, lap, (stage[:-1] != stage[1:]).astype(np.int64)
