"""Schedule: in which order one pipeline stage runs the chunks of a step.

A chunk is one pass of one micro-batch through the layers of a stage: forward; backward; and, where a schedule splits
it, the gradients of the weights apart from the backward pass. Four stages; forward k is written k, backward (k), weight
gradients [k]; every chunk takes one unit of time.

GPipe (Huang et al. 2019, arXiv:1811.06965): all forwards first, m micro-batches in flight.

    stage 0   0  1  2  3                   (0)(1)(2)(3)
    stage 1      0  1  2  3             (0)(1)(2)(3)
    stage 2         0  1  2  3       (0)(1)(2)(3)
    stage 3            0  1  2  3 (0)(1)(2)(3)

1F1B (PipeDream-flush; Narayanan et al. 2021, arXiv:2104.04473, figure 4): stages - stage in flight.

    stage 0   0  1  2  3          (0)   (1)   (2)   (3)
    stage 1      0  1  2       (0) 3 (1)   (2)   (3)
    stage 2         0  1    (0) 2 (1) 3 (2)   (3)
    stage 3            0 (0) 1 (1) 2 (2) 3 (3)

OneFlow (Yuan et al. 2021, arXiv:2110.15032): backward before forward, as far as ample buffers (twice the stages) let
the forwards run ahead. The order here is the one that such actors take where a backward takes twice a forward.

Interleaved 1F1B (Narayanan et al. 2021, section 2.2): a stage holds several runs of layers, and a micro-batch passes
all stages once per run, a *lap*. Stage and lap together are what papers call a virtual stage. Groups of as many
micro-batches as stages take turns on the laps; the bubble is that of 1F1B over the number of laps. The second lap is
underlined:

    stage 0   0   1   0_  1_  2  (0_) 3  (1_) 2_ (0)  3_ (1)     (2_)    (3_)(2) (3)
    stage 1       0   1   0_ (0_) 1_ (1_) 2  (0)  3  (1)  2_ (2_) 3_ (3_)(2) (3)

ZB-H1 (Qi et al. 2024, arXiv:2401.10241, figure 2): 1F1B whose weight gradients wait, on stage s for s more backwards,
and fill what would be idle. No stage holds more micro-batches than the first does under 1F1B.

    stage 0   0  1  2  3          (0)[0](1)[1](2)[2](3)[3]
    stage 1      0  1  2       (0) 3 (1)[0](2)[1](3)[2][3]
    stage 2         0  1    (0) 2 (1) 3 (2)[0](3)[1][2][3]
    stage 3            0 (0) 1 (1) 2 (2) 3 (3)[0][1][2][3]

ZBV (ibid., section 6; arXiv:2405.15362): two laps, the second one backwards, so that the first stage is the last one
too, and weight gradients apart. From at least 2 p - 1 micro-batches on no stage of p waits, once it has begun, where
the three passes take equally long; and none holds more than the first does under 1F1B.

    stage 0   0   1   2   0_ (0_)[0_] 1_ (1_)[1_] 3  (0) [0]  2_ (2_)[2_](1) [1]  3_ (3_)[3_](2) [2] (3) [3]
    stage 1       0   0_  1   1_ (0_)[0_] 2  (0) [0]  2_ (1_)[1_] 3  (1) [1]  3_ (2_)[2_](2) (3_)(3) [2] [3_][3]
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from strategy.graph.graph import Phase


class Schedule(StrEnum):
    """Pipeline schedules."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    ONEFLOW = "oneflow"
    INTERLEAVED = "interleaved"
    ZB_H1 = "zb-h1"
    ZBV = "zbv"

    @property
    def splits_backward(self) -> bool:
        """Whether the gradients of weights are chunks of their own."""
        return self in (Schedule.ZB_H1, Schedule.ZBV)

    @property
    def default_laps(self) -> int:
        """Laps where nobody asks for another number."""
        return 2 if self in (Schedule.INTERLEAVED, Schedule.ZBV) else 1


@dataclass(frozen=True, slots=True)
class Chunk:
    """One pass of one micro-batch through the layers that a stage has on one lap."""

    phase: Phase
    micro_batch: int
    lap: int = 0


def schedule_problem(schedule: Schedule, stages: int, laps: int, num_micro_batches: int) -> str | None:
    """Why there is no such schedule; None if there is."""
    if schedule is Schedule.ZBV and laps != 2:
        return f"{schedule} has 2 virtual stages per device, not {laps}"
    if schedule not in (Schedule.INTERLEAVED, Schedule.ZBV) and laps != 1:
        return f"{schedule} has 1 virtual stage per device, not {laps}; interleaved has several"
    if schedule is Schedule.INTERLEAVED and num_micro_batches % stages:
        return f"{schedule} takes micro-batches in groups of as many as stages: {num_micro_batches} of {stages} do not"
    return None


def position_of(schedule: Schedule, stages: int, stage: int, lap: int) -> int:
    """The place along the pipeline, from 0, of one lap on one stage."""
    turned = schedule is Schedule.ZBV and lap % 2
    return lap * stages + (stages - 1 - stage if turned else stage)


def at_position(schedule: Schedule, stages: int, position: int) -> tuple[int, int]:
    """(stage, lap) of a place along the pipeline."""
    lap, stage = divmod(position, stages)
    return position_of(schedule, stages, stage, lap) - lap * stages, lap


def chunk_order(schedule: Schedule, stages: int, stage: int, num_micro_batches: int, laps: int = 1) -> Iterator[Chunk]:
    """The chunks of one step on `stage`, in order; of a schedule that `schedule_problem` has nothing against."""
    if schedule is Schedule.INTERLEAVED:
        return _interleaved(stages, stage, num_micro_batches, laps)
    if schedule is Schedule.ZBV:
        return _zbv(stages, stage, num_micro_batches)
    if schedule is Schedule.ZB_H1:
        return _zb_h1(stages, stage, num_micro_batches)
    if schedule is Schedule.ONEFLOW:
        return iter(backward_first(stages, num_micro_batches, blocks=2 * stages + 1)[stage])
    ahead = num_micro_batches if schedule is Schedule.GPIPE and stages > 1 else stages - stage
    return _one_by_one(min(ahead, num_micro_batches), num_micro_batches)


def _one_by_one(ahead: int, m: int) -> Iterator[Chunk]:
    """Forwards ahead of backwards by a fixed number."""
    yield from (Chunk(Phase.FORWARD, k) for k in range(ahead))
    for k in range(m):
        yield Chunk(Phase.BACKWARD, k)
        if k + ahead < m:
            yield Chunk(Phase.FORWARD, k + ahead)


def _zb_h1(stages: int, stage: int, m: int) -> Iterator[Chunk]:
    """As 1F1B, weight gradients `stage` backwards later."""
    ahead = min(stages - stage, m)
    yield from (Chunk(Phase.FORWARD, k) for k in range(ahead))
    for k in range(m):
        yield Chunk(Phase.BACKWARD, k)
        if k >= stage:
            yield Chunk(Phase.WEIGHT, k - stage)
        if k + ahead < m:
            yield Chunk(Phase.FORWARD, k + ahead)
    yield from (Chunk(Phase.WEIGHT, k) for k in range(max(m - stage, 0), m))


def _interleaved(stages: int, stage: int, m: int, laps: int) -> Iterator[Chunk]:
    """Megatron's: 2 (stages - stage - 1) + (laps - 1) stages forwards ahead, then one forward and one backward each."""

    def turn(number: int) -> tuple[int, int]:
        group, within = divmod(number, stages * laps)
        return group * stages + within % stages, within // stages

    total = m * laps
    ahead = min(2 * (stages - stage - 1) + (laps - 1) * stages, total)
    for number in range(total + ahead):
        if number < total:
            k, lap = turn(number)
            yield Chunk(Phase.FORWARD, k, lap)
        if number >= ahead:
            k, lap = turn(number - ahead)
            yield Chunk(Phase.BACKWARD, k, laps - 1 - lap)


def _zbv(stages: int, stage: int, m: int) -> Iterator[Chunk]:
    """The order for at least 2 stages - 1 micro-batches, without those that there are not."""
    known = _Counted(max(2 * stages - 1, m))
    f, b, w = Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT
    known.take([(f, 0)] * (2 * (stages - stage) - 1))
    known.take([(f, 1), (f, 0)] * stage)
    known.take([(f, 1), (b, 1), (w, 1)] * (stages - stage))
    while known.of[f, 1] < known.most:
        known.take([(f, 0), (b, 0), (w, 0), (f, 1), (b, 1), (w, 1)])
    known.take([(b, 0), (b, 1)] * stage)
    known.take([(b, 0), (w, 0)] * (stages - stage))
    known.take([(w, 1)] * known.most)
    known.take([(w, 0)] * known.most)
    return (chunk for chunk in known.chunks if chunk.micro_batch < m)


class _Counted:
    """Chunks of one stage, each (phase, lap) in the order of its micro-batches; what is done is done."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.of = dict.fromkeys([(p, lap) for p in (Phase.FORWARD, Phase.BACKWARD, Phase.WEIGHT) for lap in (0, 1)], 0)
        self.chunks: list[Chunk] = []

    def take(self, turns: Sequence[tuple[Phase, int]]) -> None:
        """The next micro-batch of every turn."""
        for phase, lap in turns:
            if self.of[phase, lap] < self.most:
                self.chunks.append(Chunk(phase, self.of[phase, lap], lap))
                self.of[phase, lap] += 1


@lru_cache(maxsize=16)
def backward_first(stages: int, m: int, *, blocks: int, backward_time: int = 2) -> tuple[tuple[Chunk, ...], ...]:
    """The order of each stage that acts as soon as it can: backward if there is one, else forward if a block is free.

    Args:
        stages: of the pipeline.
        m: micro-batches.
        blocks: most micro-batches in flight on a stage; OneFlow's buffer has twice the stages, its producer one more.
        backward_time: of a backward, in units of a forward.
    """
    takes = {Phase.FORWARD: 1, Phase.BACKWARD: backward_time}
    found: list[list[Chunk]] = [[] for _ in range(stages)]
    done = {(phase, stage): 0 for phase in takes for stage in range(stages)}
    running: list[tuple[int, Chunk] | None] = [None] * stages
    time = 0
    while done[Phase.BACKWARD, 0] < m:
        for stage, act in enumerate(running):
            if act is not None and act[0] == time:
                done[act[1].phase, stage] += 1
                running[stage] = None
        for stage in range(stages):
            if running[stage] is not None:
                continue
            forwards, backwards = done[Phase.FORWARD, stage], done[Phase.BACKWARD, stage]
            returned = done[Phase.BACKWARD, stage + 1] if stage + 1 < stages else forwards
            arrived = done[Phase.FORWARD, stage - 1] if stage else m
            if backwards < returned:
                chunk = Chunk(Phase.BACKWARD, backwards)
            elif forwards < min(arrived, backwards + blocks):
                chunk = Chunk(Phase.FORWARD, forwards)
            else:
                continue
            found[stage].append(chunk)
            running[stage] = time + takes[chunk.phase], chunk
        time += 1
    return tuple(map(tuple, found))
