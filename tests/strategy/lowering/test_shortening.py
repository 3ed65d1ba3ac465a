"""Programs of very many micro-batches: what is replayed of them, and that nothing lies on top of what is live."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import pytest

from simulator.engine import run
from simulator.memory_timeline import piece_lives
from strategy.graph.graph import Phase
from strategy.layout.schedule import Schedule, chunk_order
from strategy.lowering import shortening as module
from strategy.lowering.lower import lower
from strategy.lowering.memory import aligned, memory_nbytes
from strategy.lowering.shortening import shortening
from strategy.program.program import ActKind, Actor, Program
from strategy.program.timeline import Timeline
from tests.simulator.test_engine import delays
from tests.strategy.lowering.test_folding import plan_of
from tests.support.long_parameters import long_but

Lives = list[tuple[int, int, int, int, int]]
"""(first byte, last byte + 1, begin, end, register)."""


def stream(schedule: Schedule, stages: int, stage: int, m: int) -> tuple[Program, tuple[int, ...]]:
    """A step that begins and ends with acts of its own; forward passes of two acts, backward passes of one."""
    actors = tuple(Actor(name, 0, ActKind.COMPUTE, acts_per_step=m) for name in ("f", "F", "B"))
    once = Actor("once", 0, ActKind.COMPUTE)
    turns: list[int] = [3]
    for chunk in chunk_order(schedule, stages, stage, m):
        turns += (0, 1) if chunk.phase is Phase.FORWARD else (2,)
    return Program(1, (), (*actors, once, once), (), num_micro_batches=m), (*turns, 4)


def text(sequence: Iterable[int]) -> str:
    return "".join("fFB<>"[actor] for actor in sequence)


@pytest.mark.parametrize(
    ("schedule", "stage", "left"),
    [
        (Schedule.ONE_F_ONE_B, 0, "<fFfFfFBfFBfFBfFBBB>"),
        (Schedule.ONE_F_ONE_B, 30, "<fFfFBfFBfFBfFBB>"),
        (Schedule.ONE_F_ONE_B, 31, "<fFBfFBfFB>"),
        (Schedule.GPIPE, 3, "<fFfFfFBBB>"),
    ],
)
def test_what_is_left_has_every_pass_between_those_that_it_ever_stands_between(
    schedule: Schedule, stage: int, left: str
) -> None:
    program, sequence = stream(schedule, 32, stage, 200)
    short = shortening(program, sequence)
    assert short is not None
    found = text(short.sequence(program, np.array(sequence)).tolist())
    assert found == left
    for length in (2, 3):
        windows = [{whole[i : i + length] for i in range(len(whole))} for whole in (found, text(sequence))]
        assert windows[0] == windows[1]


def test_what_is_short_or_of_another_shape_is_replayed_whole() -> None:
    assert shortening(*stream(Schedule.ONE_F_ONE_B, 4, 0, module.LONG)) is None
    program, sequence = stream(Schedule.ONE_F_ONE_B, 4, 0, 200)
    assert shortening(program, (*sequence[:-9], *sequence[-8:-1], sequence[-9], sequence[-1])) is None
    assert shortening(program, (3, 4)) is None
    assert shortening(replace(program, num_micro_batches=100), sequence) is None


def lives_of(program: Program, timeline: Timeline) -> dict[int, Lives]:
    """By rank: when which bytes of its pool are live."""
    found: dict[int, Lives] = {}
    for life in piece_lives(program, timeline):
        register = program.registers[life.register]
        if register.offsets:
            offset = register.offsets[life.piece % register.blocks]
            span = (offset, offset + aligned(register.block_nbytes), life.begin_ns, life.end_ns, life.register)
            found.setdefault(register.rank, []).append(span)
    return found


def collisions(program: Program, timeline: Timeline) -> int:
    """Pairs of pieces that are live in the same bytes at once, those that are written in place apart."""
    passed_on = {
        (read.register, write.register) for actor in program.actors for read in actor.reads for write in actor.writes
    }
    count = 0
    for lives in lives_of(program, timeline).values():
        lives.sort(key=lambda life: life[2])
        for i, (low, high, _, end, register) in enumerate(lives):
            for other in lives[i + 1 :]:
                if other[2] >= end:
                    break
                in_place = (low, high) == other[:2] and (register, other[4]) in passed_on
                count += low < other[1] and other[0] < high and not in_place
    return count


@pytest.mark.parametrize(
    ("degrees", "backend"),
    long_but(itertools.product([(1, 2, 4), (2, 1, 2), (1, 1, 3)], ["numpy", "cupy"]), 1),
)
def test_nothing_lies_on_top_of_what_is_live(
    degrees: tuple[int, int, int], backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(*degrees, backend=backend)
    parts = plan.graph, plan.layout, plan.pipeline, plan.cost
    whole = lower(*parts)
    monkeypatch.setattr(module, "LONG", 1)
    short = lower(*parts)
    assert short != whole
    assert replace(short, registers=whole.registers) == whole
    for rank, nbytes in enumerate(memory_nbytes(short)):
        assert nbytes <= 1.5 * memory_nbytes(whole)[rank]
    for seed in range(3):
        timeline = run(short, 2, jitter=delays(seed, 20_000)).timeline
        assert collisions(short, timeline) == 0
        assert sum(map(len, lives_of(short, timeline).values())) > 100
