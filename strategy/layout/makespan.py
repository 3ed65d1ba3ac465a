"""Makespan: the time of one step of a pipeline, by the schedule's own recurrence over its stages.

Every stage runs its chunks in the order of the schedule, each as soon as the message that it waits for has arrived and
the stage is free:

    begin(chunk) = max(end of the chunk before it on the stage, end of the chunk that sends to it + message)

What slows down the last backward pass of a lap delays, besides what comes after it there, the message that it sends.

Beside chunks a stage gathers parameters, without which the first chunk of a lap does not end, and exchanges gradients:
those of a lap from the last chunk of that lap on, one after the other. What goes on beside later chunks goes behind
that, and each of them ends when what went on beside the one before it is over.

The vector of all ends after one turn of what repeats is a max-plus linear function of that after the turn before. So
from some turn on it advances by the same amount every few turns (Baccelli et al. 1992, Synchronization and Linearity,
section 3.7). A turn after which everything that later chunks can see is as it was after an earlier one, but for one
shift of time, proves it, and what is left is added up instead of run: exact, in integers.

Under GPipe stages do not wait for those after them, so each advances at its own pace. There the longest path is known:
to micro-batch k of stage s from the first one of stage a <= s it passes every stage between them once and the slowest
of them k times more.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strategy.base.compiled import compiled
from strategy.base.errors import InputError
from strategy.layout.merged_order import MergedOrder, merged_order
from strategy.layout.schedule import Schedule, schedule_problem

IntArray = npt.NDArray[np.int64]
INT = np.dtype(np.int64)
LONGEST_NS = 2**62
"""A step of more could not be counted: some 146 years."""

BUSY = {"forward_ns": "forward_busy_ns", "backward_ns": "backward_busy_ns", "weight_ns": "weight_busy_ns"}
"""Passes -> what goes on beside them."""
TIMES = (
    *("forward_ns", "backward_ns", "weight_ns"),
    *("forward_message_ns", "backward_message_ns"),
    *("before_ns", "after_ns", "late_ns"),
    *BUSY.values(),
    *("gathered_ns", "exchange_ns", "update_ns"),
)
"""The arrays of `PipelineTimes`."""


@dataclass(frozen=True, slots=True, eq=False)
class PipelineTimes:
    """Integer nanoseconds of what the stages of a pipeline do; many cases at once have one more axis, in front.

    The places along the pipeline are those of `position_of`, stages x laps of them.

    Attributes:
        forward_ns: (stages, laps), of one micro-batch.
        backward_ns: (stages, laps), without the gradients of weights.
        weight_ns: (stages, laps), of the gradients of weights; they follow at once, in the same chunk, where the
            schedule does not set them apart.
        forward_message_ns: (places - 1,), from a place to the next. Between places on one stage there is none.
        backward_message_ns: (places - 1,), back from the next place.
        before_ns: (stages,), before the first chunk of a step.
        after_ns: (stages,), after the last chunk: parameters are updated.
        late_ns: (stages,), so much later the last backward pass of a step sends its message, on every lap.
        forward_busy_ns, backward_busy_ns, weight_busy_ns: (stages, laps), of one micro-batch, what goes on beside.
        gathered_ns: (stages, laps), before that of a step the first chunk of a lap does not end.
        exchange_ns: (stages, laps), what goes behind that beside the last chunk of a lap.
        update_ns: (stages,), after the last exchange.
        overlaps: whether messages travel beside computation; else they keep the sender busy, too.
    """

    forward_ns: IntArray
    backward_ns: IntArray
    weight_ns: IntArray
    forward_message_ns: IntArray
    backward_message_ns: IntArray
    before_ns: IntArray
    after_ns: IntArray
    late_ns: IntArray
    forward_busy_ns: IntArray
    backward_busy_ns: IntArray
    weight_busy_ns: IntArray
    gathered_ns: IntArray
    exchange_ns: IntArray
    update_ns: IntArray
    overlaps: bool = True

    def __post_init__(self) -> None:
        shape = np.shape(self.forward_ns)
        if len(shape) not in (2, 3) or 0 in shape[-2:]:
            raise InputError("no times of stages and laps", where="forward_ns", got=shape, expected="(stages, laps)")
        *cases, stages, laps = shape
        places, once = (*cases, stages * laps - 1), (*cases, stages)
        passes = (shape, shape, shape)
        shapes = (*passes, places, places, once, once, once, *passes, shape, shape, once)
        every = [getattr(self, name) for name in TIMES]
        for name, given, wanted in zip(TIMES, every, shapes, strict=True):
            if given.shape != wanted or given.dtype != INT:
                got = f"{given.dtype} of {given.shape}"
                raise InputError("wrong shape or type", where=name, got=got, expected=f"int64 of {wanted}")
        if np.concatenate([given.ravel() for given in every]).min() < 0:  # at once: many are made, of few numbers
            name, given = next((name, one) for name, one in zip(TIMES, every, strict=True) if (one < 0).any())
            raise InputError("a negative time", where=name, got=int(given.min()), expected="nanoseconds >= 0")

    @staticmethod
    def of_passes(
        forward_ns: IntArray, backward_ns: IntArray, weight_ns: IntArray, *, overlaps: bool = True
    ) -> PipelineTimes:
        """Those of passes alone, (stages, laps) each: all else takes no time."""
        stages, laps = forward_ns.shape
        chunks, messages, once = (np.zeros(shape, np.int64) for shape in ((stages, laps), stages * laps - 1, stages))
        return PipelineTimes(
            *(forward_ns, backward_ns, weight_ns, messages, messages),
            *(once, once, once, chunks, chunks, chunks, chunks, chunks, once),
            overlaps,
        )

    @property
    def stages(self) -> int:
        """Of the pipeline."""
        return int(self.forward_ns.shape[-2])

    @property
    def laps(self) -> int:
        """Runs of layers on each stage."""
        return int(self.forward_ns.shape[-1])


def makespan_ns(schedule: Schedule, num_micro_batches: int, times: PipelineTimes) -> int:
    """When the last stage has done what it does after its last chunk.

    Raises:
        InputError: there is no such schedule, or the step takes too long to be counted.
    """
    if times.forward_ns.ndim != 2:
        raise InputError("times of many cases", where="forward_ns", got=times.forward_ns.shape, expected="two axes")
    return int(_makespans_ns(schedule, num_micro_batches, times)[0])


def makespans_ns(schedule: Schedule, num_micro_batches: int, times: PipelineTimes) -> IntArray:
    """The same of many cases: (cases,).

    Raises:
        InputError: there is no such schedule, or a step takes too long to be counted.
    """
    if times.forward_ns.ndim != 3:
        raise InputError("times of one case", where="forward_ns", got=times.forward_ns.shape, expected="three axes")
    return _makespans_ns(schedule, num_micro_batches, times)


def _makespans_ns(schedule: Schedule, m: int, times: PipelineTimes) -> IntArray:
    problem = schedule_problem(schedule, times.stages, times.laps, m)
    if problem or m < 1:
        raise InputError(problem or "a step has a micro-batch", where="schedule", got=m)
    _check_length(m, times)
    if schedule is Schedule.GPIPE:
        return _gpipe(m, times)
    order = merged_order(schedule, times.stages, m, times.laps)
    lasts, messages = by_leg(order, schedule, times)
    before, after = (np.array(each, order="C").reshape(-1, times.stages) for each in (times.before_ns, times.after_ns))
    found = np.empty(len(before), np.int64)
    entries = int(np.diff(order.section_at) @ order.turns)
    late, update = late_by_leg(order, times), np.array(times.update_ns, order="C").reshape(before.shape)
    beside = (*beside_by_leg(order, schedule, times), update)
    _run.worth(len(found) * entries)(order, lasts, messages, late, *beside, times.overlaps, before, after, found)
    return found


def _gpipe(m: int, times: PipelineTimes) -> IntArray:
    """The longest path."""
    cases = times.before_ns.size // times.stages
    passes, (begins, ends) = (times.forward_ns, times.backward_ns + times.weight_ns), at_both_ends(times)
    given = *passes, begins, ends, times.late_ns
    forward, backward, before, after, late = (np.array(each, order="C").reshape(cases, times.stages) for each in given)
    ahead, back = np.zeros_like(forward), np.zeros_like(forward)
    ahead[:, :-1] = times.forward_message_ns
    back[:, 1:] = times.backward_message_ns
    found = np.empty(len(before), np.int64)
    steps = len(found) * times.stages**2
    _longest.worth(steps)(m, forward, backward, ahead, back, late, times.overlaps, before, after, found)
    return found


def at_both_ends(times: PipelineTimes) -> tuple[IntArray, IntArray]:
    """(stages,) of one lap: what is before its first chunk and after its last, with what is beside these two."""
    first, last = times.forward_ns[..., 0], (times.backward_ns + times.weight_ns)[..., 0]
    if not times.overlaps:
        last[..., 1:] += times.backward_message_ns
    busy = (times.backward_busy_ns + times.weight_busy_ns)[..., 0]
    sent = busy + times.exchange_ns[..., 0] + times.update_ns
    return np.maximum(times.before_ns, times.gathered_ns[..., 0] - first), np.maximum(times.after_ns, sent - last)


def most_ns(m: int, times: PipelineTimes) -> int:
    """No chunk ends later than all of them, one by one, would."""
    stages, laps = times.stages, times.laps
    groups = {
        ("forward_ns", "backward_ns", "weight_ns", "forward_message_ns", "backward_message_ns"): m * stages * laps,
        ("forward_busy_ns", "backward_busy_ns", "weight_busy_ns"): m * laps,
        ("exchange_ns",): laps,
        ("late_ns",): stages * laps,
        ("before_ns", "after_ns", "gathered_ns", "update_ns"): 1,
    }
    return sum(often * int(getattr(times, name).max(initial=0)) for names, often in groups.items() for name in names)


def _check_length(m: int, times: PipelineTimes) -> None:
    most = most_ns(m, times)
    if most >= LONGEST_NS:
        raise InputError("a step is too long to be counted", where="times", got=most, expected=f"< {LONGEST_NS} ns")


def by_leg(order: MergedOrder, schedule: Schedule, times: PipelineTimes) -> tuple[IntArray, IntArray]:
    """(cases, legs): how long a chunk of each leg lasts, and the message that it sends."""
    places = times.stages * times.laps
    at = order.stage[:places], order.lap[:places]
    cases = times.before_ns.size // times.stages
    forward, backward, weight = (
        each.reshape(cases, times.stages, times.laps)[:, *at]
        for each in (times.forward_ns, times.backward_ns, times.weight_ns)
    )
    parts = (forward, backward, weight) if schedule.splits_backward else (forward, backward + weight)
    messages = np.zeros((cases, len(parts) * places), np.int64)
    messages[:, : places - 1] = times.forward_message_ns
    messages[:, places + 1 : 2 * places] = times.backward_message_ns
    heard = np.zeros(order.source.size + 1, np.bool_)
    heard[order.source] = True
    return np.ascontiguousarray(np.hstack(parts)), messages * heard[:-1]


def late_by_leg(order: MergedOrder, times: PipelineTimes) -> IntArray:
    """(cases, legs): how much later the last chunk of a leg sends its message."""
    late, places = times.late_ns.reshape(-1, times.stages), times.stages * times.laps
    found = np.zeros((len(late), order.stage.size), np.int64)
    stage = order.stage[:places]
    found[:, places : 2 * places] = late[:, stage] * crosses_back(stage)
    return found


def beside_by_leg(order: MergedOrder, schedule: Schedule, times: PipelineTimes) -> tuple[IntArray, IntArray, IntArray]:
    """(cases, legs): when the first chunk is gathered for, 0 of others than forward passes; what goes on beside each.

    And what the last one exchanges, -1 of legs that exchange nothing.
    """
    cases, places = times.before_ns.size // times.stages, times.stages * times.laps
    at = order.stage[:places], order.lap[:places]
    forward, backward, weight, gathers, exchanges = (
        each.reshape(cases, times.stages, times.laps)[:, *at]
        for each in (
            *(times.forward_busy_ns, times.backward_busy_ns, times.weight_busy_ns),
            *(times.gathered_ns, times.exchange_ns),
        )
    )
    parts = (forward, backward, weight) if schedule.splits_backward else (forward, backward + weight)
    gathered, exchange = np.zeros((cases, order.stage.size), np.int64), np.full((cases, order.stage.size), -1)
    gathered[:, :places], exchange[:, -places:] = gathers, exchanges
    return gathered, np.ascontiguousarray(np.hstack(parts)), exchange


def crosses_back(stage: IntArray) -> IntArray:
    """(places,): whether a backward pass is handed on to another stage; of the stage of every place."""
    return np.append(0, stage[1:] != stage[:-1]).astype(np.int64)


@compiled
def _run(
    order: MergedOrder,
    lasts: IntArray,
    messages: IntArray,
    late: IntArray,
    gathered: IntArray,
    beside: IntArray,
    exchange: IntArray,
    update: IntArray,
    overlaps: bool,
    before: IntArray,
    after: IntArray,
    found: IntArray,
) -> None:
    """Writes the makespan of every case."""
    # without a sign: numba need not ask whether an index counts from the end
    legs, stage, source = order.legs.view(np.uint64), order.stage.view(np.uint64), order.source.view(np.uint64)
    num_legs, mask = stage.size, np.uint64(order.width - 1)
    free = np.empty(before.shape[1], np.int64)
    sent = np.empty(before.shape[1], np.int64)
    taken = np.empty(before.shape[1], np.int64)
    arrives = np.zeros((num_legs + 1, order.width), np.int64)  # the last row is that of no message
    counts = np.empty(num_legs, np.uint64)
    left = np.empty(num_legs, np.int64)
    number = np.int64(0)
    for section in range(order.turns.size):
        number += (order.section_at[section + 1] - order.section_at[section]) * order.turns[section]
    number //= num_legs
    one = np.uint64(1)
    busy = np.empty(num_legs, np.int64)
    states = np.empty((2, free.size + num_legs * order.width), np.int64)
    for case in range(before.shape[0]):
        last, message = lasts[case], messages[case]
        busy[:] = 0
        if not overlaps:
            busy[:] = message
        free[:] = before[case]
        sent[:] = 0
        taken[:] = 0
        counts[:] = 0
        left[:] = number
        for section in range(order.turns.size):
            begin, end = np.uint64(order.section_at[section]), np.uint64(order.section_at[section + 1])
            turns = order.turns[section]
            turn = 0
            keep_at = 1
            kept = 0
            while turn < turns:
                for entry in range(begin, end):
                    leg = legs[entry]
                    slot = counts[leg] & mask
                    here = stage[leg]
                    begun_at = max(free[here], arrives[source[leg], slot])
                    ended, moves = begun_at + last[leg], beside[case, leg]
                    if counts[leg] == 0:
                        ended = max(ended, gathered[case, leg])
                    counts[leg] += one
                    left[leg] -= 1
                    ended = max(ended, taken[here])
                    if moves and sent[here] > begun_at:
                        sent[here] += moves
                        taken[here] = sent[here]
                    elif left[leg] == 0 and exchange[case, leg] >= 0:
                        sent[here] = max(sent[here], begun_at + moves)
                    if left[leg] == 0 and exchange[case, leg] >= 0:
                        sent[here] += exchange[case, leg]
                    arrives[leg, slot] = ended + message[leg] + (0 if left[leg] else late[case, leg])
                    free[here] = ended + busy[leg]
                turn += 1
                if turns - turn < 2 or keep_at < 0:
                    continue
                if kept and _shifted(states[0], free, free.size):
                    size = _state(order, free, counts, arrives, states[1])
                    if _shifted(states[0], states[1], size):
                        # from here on every `period` turns add `shift`
                        period, shift = turn - kept, free[0] - states[0, 0]
                        skipped = (turns - turn - 1) // period  # the last turn may have the last chunk of a leg
                        for s in range(free.size):
                            free[s] += skipped * shift
                        for leg in range(num_legs):
                            left[leg] -= skipped * period * np.int64(end - begin) // num_legs
                            for slot in range(order.width):
                                arrives[leg, slot] += skipped * shift
                        turn += skipped * period
                        keep_at = -1
                        continue
                if turn == keep_at:
                    _state(order, free, counts, arrives, states[0])
                    kept = turn
                    keep_at *= 2
        found[case] = 0
        for s in range(free.size):
            found[case] = max(found[case], free[s] + after[case, s], sent[s] + update[case, s])


@compiled
def _longest(
    m: int,
    forward: IntArray,
    backward: IntArray,
    ahead: IntArray,
    back: IntArray,
    late: IntArray,
    overlaps: bool,
    before: IntArray,
    after: IntArray,
    found: IntArray,
) -> None:
    """Writes the makespan of every case under GPipe."""
    stages = before.shape[1]
    begins, ends = np.empty(stages, np.int64), np.empty(stages, np.int64)
    in_time = np.zeros(stages, np.int64)
    for case in range(before.shape[0]):
        begins[:] = before[case]
        _tandem(m, begins, forward[case], ahead[case], in_time, overlaps, ends)
        # backwards, the last stage is the first one
        begins[:] = ends[::-1]
        _tandem(m, begins, backward[case, ::-1], back[case, ::-1], late[case, ::-1], overlaps, ends)
        found[case] = 0
        for s in range(stages):
            found[case] = max(found[case], ends[stages - 1 - s] + after[case, s])


@compiled
def _tandem(
    m: int, begins: IntArray, lasts: IntArray, messages: IntArray, late: IntArray, overlaps: bool, ends: IntArray
) -> None:
    """Writes when every stage has done m chunks and, where it sends itself, has sent their messages.

    From the stage on where a path takes its m - 1 turns it follows the last micro-batch, whose messages are late.
    """
    for s in range(begins.size):
        ends[s] = 0
    for first in range(begins.size):
        passed = begins[first]
        turns = later = 0
        for s in range(first, begins.size):
            busy = lasts[s] if overlaps else lasts[s] + messages[s]
            turns = max(turns, (m - 1) * busy - later)
            ends[s] = max(ends[s], passed + busy + turns + later)
            passed += lasts[s] + messages[s]
            later += late[s]


@compiled
def _state(
    order: MergedOrder, free: IntArray, counts: npt.NDArray[np.uint64], arrives: IntArray, state: IntArray
) -> int:
    """Writes all that later chunks can see into `state`: when stages are free, messages under way; says how much."""
    size = free.size
    state[:size] = free
    for leg in range(order.source.size):
        sender = order.source[leg]
        if sender < order.source.size:
            for number in range(np.int64(counts[leg]), np.int64(counts[sender])):
                state[size] = arrives[sender, number & (order.width - 1)]
                size += 1
    return size


@compiled
def _shifted(before: IntArray, after: IntArray, size: int) -> bool:
    """Whether the second state is the first one, some time later."""
    shift = after[0] - before[0]
    same = 1
    while same < size and after[same] - before[same] == shift:
        same += 1
    return same == size
