"""Schedule: in which order one pipeline stage runs the chunks of a step.

A chunk is the forward or the backward pass of one micro-batch on one stage. Four stages, four micro-batches, 1F1B
(PipeDream-flush; Narayanan et al. 2021, arXiv:2104.04473, figure 4), forward k as k, backward k as (k):

    stage 0   0  1  2  3              (0)    (1)    (2)    (3)
    stage 1      0  1  2         (0)   3 (1)    (2)    (3)
    stage 2         0  1    (0)   2 (1)   3 (2)    (3)
    stage 3            0 (0) 1 (1) 2 (2) 3 (3)

GPipe (Huang et al. 2019, arXiv:1811.06965) runs all forwards first. What differs is memory: the micro-batches whose
forward is done and whose backward is not are at most m under GPipe and stages - stage under 1F1B. One stage alone
runs forward and backward of each micro-batch in turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from strategy.graph import Phase


class Schedule(StrEnum):
    """Pipeline schedules."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"


@dataclass(frozen=True, slots=True)
class Chunk:
    """Forward or backward pass of one micro-batch."""

    phase: Phase
    micro_batch: int


def in_flight(schedule: Schedule, stages: int, stage: int, num_micro_batches: int) -> int:
    """Most micro-batches between forward and backward on `stage`."""
    cap = num_micro_batches if schedule is Schedule.GPIPE and stages > 1 else stages - stage
    return min(cap, num_micro_batches)


def chunk_order(schedule: Schedule, stages: int, stage: int, num_micro_batches: int) -> Iterator[Chunk]:
    """The chunks of one step on `stage`, in order."""
    ahead = in_flight(schedule, stages, stage, num_micro_batches)
    for k in range(ahead):
        yield Chunk(Phase.FORWARD, k)
    for k in range(num_micro_batches):
        yield Chunk(Phase.BACKWARD, k)
        if k + ahead < num_micro_batches:
            yield Chunk(Phase.FORWARD, k + ahead)
