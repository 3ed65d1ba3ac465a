"""Step times: what the stages of a pipeline do themselves, and what goes on beside it; how long chunks last by both.

Collectives that no layer waits for (`overlapped`) go on while a stage computes, and slow it down; where they take
longer than that, the chunk lasts as long as they do. What is done once per step hides behind one chunk: parameters are
gathered while the first one runs, gradients are exchanged while the last one does.

    chunk   = max(own + slowed x (overlapped + messages to it and from it),  overlapped)
    before  = own + max(slowed x overlapped,  overlapped / laps - room of the first chunk)
    after   = own + max(slowed x overlapped / laps,  overlapped / laps - room of the last chunk)
    room    = chunk - overlapped
    message = message - slowed x message;  of the last backward pass of a lap + slowed x overlapped / laps / 2

A chunk that waits for a message does not run beside it, so that this one does not slow it down. What gradients are
exchanged beside a last backward pass delays what that one hands on: the exchanges of all stages add up as the pipeline
drains, all of each on one lap. On several, those of a lap go on beside the one that follows, whose first chunks they
slow down and whose others wait for these: on every stage that a micro-batch passes, not once. How much of it falls
on one chunk lies between all, where it takes as long as the exchange, and none; half is counted. Where gradients of
weights are chunks of their own, a stage ends with these, which hand on nothing.

A step is the makespan of these under the schedule: the longest of all paths, each of which is a linear function of all
times, for every maximum is that of two linear functions (`mean_path`). The parameters of the first lap, which alone are
waited for, are taken to be a mean share of all.

Chunks are counted in whole `TICKS` of a nanosecond, so that sums are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from strategy.hardware.cluster import Cluster
from strategy.layout.schedule import Schedule, at_position

if TYPE_CHECKING:  # what runs a plan needs no compiler
    from strategy.layout.critical_path import Paths
    from strategy.layout.makespan import PipelineTimes

IntArray = npt.NDArray[np.int64]
TICKS = 1024
"""Of a nanosecond."""
OVERLAPPED = {
    "forward_ns": "forward_overlapped_ns",
    "backward_ns": "backward_overlapped_ns",
    "weight_ns": "weight_overlapped_ns",
    "before_ns": "before_overlapped_ns",
    "after_ns": "after_overlapped_ns",
}
"""What a stage does itself -> what goes on beside it."""
MESSAGES = {"forward_ns": "forward_message_ns", "backward_ns": "backward_message_ns"}
"""Passes -> their messages."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """How communication runs beside computation.

    Attributes:
        allowed: whether it does.
        slowed_ticks: that a nanosecond of it takes from computation beside it.
    """

    allowed: bool
    slowed_ticks: int = 0

    @staticmethod
    def of(cluster: Cluster) -> Overlap:
        """That of a cluster's devices; of several types, of those that are slowed down most."""
        slowdown = max(one.device.slowdown for one in cluster.types)
        return Overlap(cluster.overlaps, round(TICKS * slowdown))


@dataclass(frozen=True, slots=True, eq=False)
class StepTimes:
    """Integer nanoseconds of what the stages of a pipeline do; many cases at once have one more axis, in front.

    Attributes:
        forward_ns, backward_ns, weight_ns: (stages, laps), of a micro-batch, what a stage does itself or waits for.
        forward_message_ns, backward_message_ns: (places - 1,), from a place to the next, and back.
        before_ns, after_ns: (stages,), once per step.
        forward_overlapped_ns, backward_overlapped_ns, weight_overlapped_ns: (stages, laps), of a micro-batch, what goes
            on beside that.
        before_overlapped_ns, after_overlapped_ns: (stages,), once per step, beside that.
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
        **dict.fromkeys(("before_ns", "after_ns", "before_overlapped_ns", "after_overlapped_ns"), (stages,)),
    }
    return {name: np.zeros(shape, np.int64) for name, shape in shapes.items()}


def step_ns(schedule: Schedule, num_micro_batches: int, times: StepTimes) -> int:
    """The makespan of a step, rounded up.

    Raises:
        InputError: there is no such schedule, or the step takes too long to be counted.
    """
    from strategy.layout.makespan import makespan_ns

    return -(-makespan_ns(schedule, num_micro_batches, in_ticks(schedule, times)) // TICKS)


def steps_ns(schedule: Schedule, num_micro_batches: int, times: StepTimes) -> IntArray:
    """The same of many cases: (cases,).

    Raises:
        InputError: there is no such schedule, or a step takes too long to be counted.
    """
    from strategy.layout.makespan import makespans_ns

    return -(-makespans_ns(schedule, num_micro_batches, in_ticks(schedule, times)) // TICKS)


def in_ticks(schedule: Schedule, times: StepTimes) -> PipelineTimes:
    """How long chunks last, and what is left before the first and after the last one; in ticks.

    Gradients of weights that the schedule does not set apart are counted with the backward pass.
    """
    return _in_ticks(schedule, times, _Exposed(schedule, times))


def _in_ticks(schedule: Schedule, times: StepTimes, found: _Exposed) -> PipelineTimes:
    from strategy.layout.makespan import PipelineTimes

    return PipelineTimes(
        found.forward,
        found.backward,
        found.weight,
        waited_ticks(times) * times.forward_message_ns,
        waited_ticks(times) * times.backward_message_ns,
        found.before,
        found.after,
        late_ticks(schedule, times) * times.after_overlapped_ns,
        times.overlap.allowed,
    )


def waited_ticks(times: StepTimes) -> int:
    """Of a nanosecond of a message, for the chunk that waits for it."""
    return TICKS - times.overlap.slowed_ticks


def late_ticks(schedule: Schedule, times: StepTimes) -> int:
    """Of a nanosecond of what is done beside the last chunks of a stage, for the message of that of each lap."""
    share = times.laps if times.laps == 1 else 2 * times.laps
    return 0 if schedule.splits_backward else times.overlap.slowed_ticks // share


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


def mean_path(schedule: Schedule, times: StepTimes, paths: Paths) -> MeanPath:
    """What paths through the chunks pass of everything, each maximum being what it is under these times."""
    return _mean_path(schedule, times, paths, _Exposed(schedule, times))


def path_found(schedule: Schedule, times: StepTimes, find: Callable[[PipelineTimes], Paths]) -> MeanPath:
    """The same of the paths that are found where chunks last as long as they do `in_ticks`."""
    exposed = _Exposed(schedule, times)
    return _mean_path(schedule, times, find(_in_ticks(schedule, times, exposed)), exposed)


def _mean_path(schedule: Schedule, times: StepTimes, paths: Paths, exposed: _Exposed) -> MeanPath:
    counts = paths.counts
    slowed, laps, hidden = times.overlap.slowed_ticks, times.laps, hidden_ticks(schedule, times)
    found = no_times(times.stages, laps)
    forward, backward, weight = (np.array(each) for each in (counts.forward_ns, counts.backward_ns, counts.weight_ns))
    last = weight if schedule.splits_backward else backward
    lasts = ("weight_ns",) if schedule.splits_backward else ("backward_ns", "weight_ns")
    for name, ends, chunk, hides, hidden_behind in (
        ("before_ns", counts.before_ns, forward, exposed.hides_before, ("forward_ns",)),
        ("after_ns", counts.after_ns, last, exposed.hides_after, lasts),
    ):
        late = np.where(hides, 0, ends)
        found[name] += TICKS * ends
        found[OVERLAPPED[name]] += TICKS // laps * late + hidden[name] * (ends - late)
        chunk[:, 0] -= late
        for each in hidden_behind:
            found[OVERLAPPED[each]][:, 0] += TICKS * late
    found["after_overlapped_ns"] += late_ticks(schedule, times) * counts.late_ns
    passes = {"forward_ns": forward, "backward_ns": backward, "weight_ns": weight}
    if not schedule.splits_backward:
        passes["weight_ns"] = backward
    for name, often in passes.items():
        own = exposed.is_own[name] * often
        found[name] += TICKS * own
        found[OVERLAPPED[name]] += TICKS * (often - own) + slowed * own
        if name in MESSAGES:
            found[MESSAGES[name]] += slowed * exposed.ends_of_messages(own)
    found["forward_message_ns"] += waited_ticks(times) * counts.forward_message_ns
    found["backward_message_ns"] += waited_ticks(times) * counts.backward_message_ns
    return MeanPath(StepTimes(**found, overlap=times.overlap), TICKS * paths.number)


class _Exposed:
    """Chunks and ends of a step in ticks, and which side of each maximum is larger."""

    def __init__(self, schedule: Schedule, times: StepTimes) -> None:
        self.places = _places(schedule, times.stages, times.laps)
        slowed = times.overlap.slowed_ticks
        sent = [self._at_ends(each) for each in (times.forward_message_ns, times.backward_message_ns)]
        own = [times.forward_ns, times.backward_ns, times.weight_ns]
        overlapped = [times.forward_overlapped_ns, times.backward_overlapped_ns, times.weight_overlapped_ns]
        if not schedule.splits_backward:
            own[1], own[2] = own[1] + own[2], np.zeros_like(own[2])
            overlapped[1], overlapped[2] = overlapped[1] + overlapped[2], np.zeros_like(overlapped[2])
        moved = [sent[0], sent[1], np.zeros_like(sent[0])]
        slow = [TICKS * each + slowed * (b + m) for each, b, m in zip(own, overlapped, moved, strict=True)]
        self.forward, self.backward, self.weight = (
            np.maximum(each, TICKS * b) for each, b in zip(slow, overlapped, strict=True)
        )
        is_own = [each >= TICKS * b for each, b in zip(slow, overlapped, strict=True)]
        if not schedule.splits_backward:
            is_own[2] = is_own[1]
        self.is_own = dict(zip(("forward_ns", "backward_ns", "weight_ns"), is_own, strict=True))
        at = 2 if schedule.splits_backward else 1
        first = self.forward[..., 0] - TICKS * overlapped[0][..., 0]
        last = (self.forward, self.backward, self.weight)[at][..., 0] - TICKS * overlapped[at][..., 0]
        hidden, late = hidden_ticks(schedule, times), TICKS // times.laps
        self.before, self.hides_before = _end(
            times.before_ns, hidden["before_ns"] * times.before_overlapped_ns, late * times.before_overlapped_ns - first
        )
        self.after, self.hides_after = _end(
            times.after_ns, hidden["after_ns"] * times.after_overlapped_ns, late * times.after_overlapped_ns - last
        )

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


def _end(own_ns: IntArray, hidden: IntArray, late: IntArray) -> tuple[IntArray, npt.NDArray[np.bool_]]:
    """What is done once, in ticks, and where what is beside it hides behind a chunk: slows it down, or ends later."""
    return TICKS * own_ns + np.maximum(hidden, late), hidden >= late


@lru_cache(maxsize=256)
def _places(schedule: Schedule, stages: int, laps: int) -> tuple[IntArray, IntArray, IntArray]:
    """Stage and lap of every place, and (places - 1,) whether the next place is on another stage."""
    stage, lap = np.array([at_position(schedule, stages, place) for place in range(stages * laps)], np.int64).T
    return stage, lap, (stage[:-1] != stage[1:]).astype(np.int64)
