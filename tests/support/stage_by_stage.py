"""The recurrence of a pipeline in plain Python: every stage runs its chunks in order, each as soon as it can."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from strategy.graph.graph import Phase
from strategy.layout.makespan import PipelineTimes
from strategy.layout.schedule import Chunk, Schedule, at_position, chunk_order, position_of


def makespan_by_chunks(schedule: Schedule, m: int, times: PipelineTimes) -> int:
    """When the last stage is done, chunk by chunk."""
    p, laps = times.stages, times.laps
    waiting = [list(chunk_order(schedule, p, stage, m, laps))[::-1] for stage in range(p)]
    free = [int(time) for time in times.before_ns]
    arrived: dict[tuple[Phase, int, int], int] = {}  # (phase, place, micro-batch) -> when its input is there

    def last_ns(chunk: Chunk, stage: int) -> int:
        at = stage, chunk.lap
        if chunk.phase is Phase.FORWARD:
            return int(times.forward_ns[at])
        if chunk.phase is Phase.WEIGHT:
            return int(times.weight_ns[at])
        return int(times.backward_ns[at]) + (0 if schedule.splits_backward else int(times.weight_ns[at]))

    def busy_ns(chunk: Chunk, stage: int) -> int:
        at, splits = (stage, chunk.lap), schedule.splits_backward
        each = {Phase.FORWARD: times.forward_busy_ns, Phase.WEIGHT: times.weight_busy_ns}
        if chunk.phase in each:
            return int(each[chunk.phase][at])
        return int(times.backward_busy_ns[at]) + (0 if splits else int(times.weight_busy_ns[at]))

    last_phase = Phase.WEIGHT if schedule.splits_backward else Phase.BACKWARD
    exchanged, taken = [0] * p, [0] * p
    first_comes = {(stage, lap) for stage in range(p) for lap in range(laps)}
    while any(waiting):
        before = sum(map(len, waiting))
        for stage, chunks in enumerate(waiting):
            while chunks:
                chunk = chunks[-1]
                place, ahead = position_of(schedule, p, stage, chunk.lap), chunk.phase is Phase.FORWARD
                first = place == (0 if ahead else p * laps - 1) or chunk.phase is Phase.WEIGHT
                input_ns = 0 if first else arrived.get((chunk.phase, place, chunk.micro_batch))
                if input_ns is None:
                    break
                chunks.pop()
                begin, at = max(free[stage], input_ns), (stage, chunk.lap)
                free[stage] = begin + last_ns(chunk, stage)
                if ahead and at in first_comes:
                    first_comes.remove(at)
                    free[stage] = max(free[stage], int(times.gathered_ns[at]))
                busy, exchanges = busy_ns(chunk, stage), chunk.phase is last_phase and chunk.micro_batch == m - 1
                free[stage] = max(free[stage], taken[stage])
                if busy and exchanged[stage] > begin:
                    exchanged[stage] += busy
                    taken[stage] = exchanged[stage]
                elif exchanges:
                    exchanged[stage] = max(exchanged[stage], begin + busy)
                exchanged[stage] += int(times.exchange_ns[at]) if exchanges else 0
                target = place + (1 if ahead else -1)
                if chunk.phase is Phase.WEIGHT or not 0 <= target < p * laps:
                    continue
                messages = times.forward_message_ns if ahead else times.backward_message_ns
                crosses = at_position(schedule, p, target)[0] != stage
                message = int(messages[min(place, target)]) if crosses else 0
                is_last = chunk.phase is Phase.BACKWARD and chunk.micro_batch == m - 1 and crosses
                late = int(times.late_ns[stage]) if is_last else 0
                arrived[chunk.phase, target, chunk.micro_batch] = free[stage] + message + late
                free[stage] += 0 if times.overlaps else message
        assert sum(map(len, waiting)) < before, "the stages wait for one another"
    ends = [time + int(after) for time, after in zip(free, times.after_ns, strict=True)]
    ends += [time + int(update) for time, update in zip(exchanged, times.update_ns, strict=True)]
    return max(ends)


def random_pipeline(
    rng: random.Random, schedule: Schedule, *, most_stages: int = 6, most: int = 60
) -> tuple[int, int, int]:
    """(stages, laps, micro-batches): fewer than stages, as many, more, not a multiple, and many more."""
    p = rng.randint(1, most_stages)
    laps = rng.randint(1, 3) if schedule is Schedule.INTERLEAVED else schedule.default_laps
    if schedule is Schedule.INTERLEAVED:
        return p, laps, p * rng.choice((1, 2, 3, rng.randint(1, max(1, most // p))))
    return p, laps, rng.choice((rng.randint(1, p), p, p + 1, 2 * p, 3 * p + 1, rng.randint(1, most)))


def random_times(
    rng: random.Random, p: int, laps: int, *, longest: int, cases: tuple[int, ...] = (), messages: bool = True
) -> PipelineTimes:
    """Times of which some are zero; messages and what is done once per step are often longer than chunks."""
    draw = np.random.default_rng(rng.randrange(2**32))

    def some(*shape: int, longest: int = longest) -> Any:
        return draw.integers(0, longest + 1, (*cases, *shape)) * (draw.random((*cases, *shape)) < 0.9)

    message = longest * rng.choice((0, 1, 3)) * messages
    step = longest * rng.choice((0, 1, 20))
    return PipelineTimes(
        *(some(p, laps) for _ in range(3)),
        *(some(p * laps - 1, longest=message) for _ in range(2)),
        *(some(p, longest=step) for _ in range(3)),
        *(some(p, laps) for _ in range(3)),
        *(some(p, laps, longest=step) for _ in range(2)),
        some(p, longest=step),
        overlaps=rng.random() < 0.5,
    )
