"""Vector clocks: what they tell of a message holds however long acts take, and takes memory from what is sent."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from executor.train import program_of
from simulator.engine import run
from strategy.layout.schedule import Schedule
from strategy.lowering import occupancy
from strategy.lowering.memory import memory_nbytes
from strategy.lowering.occupancy import Occupancy
from strategy.lowering.turns import NEVER, Known
from strategy.lowering.vector_clocks import heard
from strategy.passes.training import Training
from strategy.program.program import ActKind, Actor, Message, Program, TransferTask
from tests.strategy.lowering.test_renaming import with_durations
from tests.support.long_parameters import long_but
from tests.support.small_plans import config_of, random_plan, request

CASES = [
    (schedule, pp, tp, m)
    for schedule in (Schedule.INTERLEAVED, Schedule.ZBV, Schedule.ZB_H1, Schedule.ONE_F_ONE_B, Schedule.GPIPE)
    for pp, tp in ((2, 1), (3, 1), (4, 1), (2, 2))
    for m in (1, 2, 4, 12)
    if not (schedule is Schedule.INTERLEAVED and m % pp)
]


def pipeline(schedule: Schedule, pp: int, tp: int, m: int, seed: int) -> Program:
    training = Training(global_batch=m, num_micro_batches=m)
    config = config_of(training, pp=pp, tp=tp, schedule=schedule)
    return program_of(random_plan(request(pp * tp, training), config, random.Random(seed)))


@pytest.mark.parametrize("first", long_but(list(range(0, len(CASES), 8)), 0))
def test_messages_are_sent_and_over_when_they_are_told_to_be(first: int) -> None:
    seen = Counter[str]()
    for seed, case in enumerate(CASES[first : first + 8], start=first):
        program, draw = pipeline(*case, seed), random.Random(seed)
        for timed in (program, with_durations(program, draw), with_durations(program, draw)):
            seen.update(told(timed))
    print(dict(seen))
    assert min(seen["begins"], seen["ends"]) >= 50, seen


def told(program: Program) -> Counter[str]:
    """What is told beside what the acts of one rank say; fails where it is not so in the last of three steps."""
    found = Counter[str]()
    replayed = Occupancy(program)
    when = {(r.actor, r.number): (r.start_ns, r.end_ns) for r in run(program, 3).timeline.records}
    main = {rank: program.streams[streams[0]].sequence for rank, streams in enumerate(replayed.streams_of) if streams}
    acts = {rank: numbered_acts(program, sequence) for rank, sequence in main.items()}
    for actor, (begins, ends) in replayed.heard.items():
        rank, first = program.actors[actor].rank, 2 * program.actors[actor].acts_per_step
        for number, (begin, end) in enumerate(zip(begins.tolist(), ends.tolist(), strict=True)):
            start_ns, end_ns = when[actor, first + number]
            if begin >= 0:
                assert when[acts[rank][begin // 2]][1] <= start_ns, (program.actors[actor].name, number)
                found["begins"] += bool(program.actors[actor].writes)
            if end < NEVER:
                assert end_ns <= when[acts[rank][end // 2]][0], (program.actors[actor].name, number)
                found["ends"] += bool(program.actors[actor].reads)
    return found


def numbered_acts(program: Program, sequence: tuple[int, ...]) -> list[tuple[int, int]]:
    """The acts of a stream in the third step."""
    counts = Counter[int]()
    found = []
    for actor in sequence:
        found.append((actor, 2 * program.actors[actor].acts_per_step + counts[actor]))
        counts[actor] += 1
    return found


def test_what_is_sent_lap_by_lap_takes_less_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = pipeline(Schedule.INTERLEAVED, 2, 1, 4, 0)
    with monkeypatch.context() as patched:
        patched.setattr(occupancy, "heard", lambda *_: {})
        theirs = pipeline(Schedule.INTERLEAVED, 2, 1, 4, 0)
    assert ours.actors == theirs.actors
    assert all(mine < other for mine, other in zip(memory_nbytes(ours), memory_nbytes(theirs), strict=True))


#       time        1   3       6
# rank 0    | acts 0, 1, 2 | 3       a: sent at 1, read there at 4
# rank 1    | 0 | 1 | 2              b: sent at 5, read at 6
def actors(*messages: tuple[int, int, int]) -> Program:
    """Of messages (number, source, target), each with its two ends."""
    found = []
    for number, source, target in messages:
        task = TransferTask((Message(source, target, ()),), {source: ()}, {target: ()})
        found += [Actor(f"{number}", rank, ActKind.TRANSFER, rendezvous=number, task=task) for rank in (source, target)]
    return Program(2, (), tuple(found), ())


def known(*times: tuple[int, int]) -> Known:
    return {actor: (np.array([begin]), np.array([end])) for actor, (begin, end) in enumerate(times)}


def test_an_answer_tells_that_what_was_asked_has_come() -> None:
    program = actors((0, 0, 1), (1, 1, 0))
    found = heard(program, known((1, NEVER), (-1, 4), (5, NEVER), (-1, 6)))
    assert [(int(begin[0]), int(end[0])) for begin, end in found.values()] == [(1, 6), (-1, 4), (5, NEVER), (1, 6)]


def test_what_is_sent_before_the_question_was_read_tells_nothing() -> None:
    program = actors((0, 0, 1), (1, 1, 0))
    found = heard(program, known((1, NEVER), (-1, 4), (3, NEVER), (-1, 6)))
    assert [(int(begin[0]), int(end[0])) for begin, end in found.values()] == [(1, NEVER), (-1, 4), (3, NEVER), (-1, 6)]


def test_of_a_piece_in_parts_the_first_that_comes_counts_and_the_last_that_is_read() -> None:
    """Rank 0 asks ranks 1 and 2, who both answer; rank 2 is not known to have read before it did."""
    both = TransferTask((Message(0, 1, ()), Message(0, 2, ())), {0: ()}, {1: (), 2: ()})
    back = TransferTask((Message(1, 0, ()), Message(2, 0, ())), {1: (), 2: ()}, {0: ()})
    members = [*(("asks", rank, 0, both) for rank in range(3)), *(("answers", rank, 1, back) for rank in range(3))]
    ends = tuple(
        Actor(name, rank, ActKind.TRANSFER, rendezvous=number, task=task) for name, rank, number, task in members
    )
    program = Program(3, (), ends, ())
    asks, answers = (1, NEVER), (-1, 6)
    found = heard(program, known(asks, (-1, 4), (-1, 4), answers, (5, NEVER), (5, NEVER)))
    assert [int(one[0]) for one in (found[0][1], found[3][0])] == [6, 1]
    found = heard(program, known(asks, (-1, 4), (-1, 4), answers, (5, NEVER), (3, NEVER)))
    assert [int(one[0]) for one in (found[0][1], found[3][0])] == [NEVER, -1]
    found = heard(program, known(asks, (-1, 4), (-1, NEVER), answers, (5, NEVER), (5, NEVER)))
    assert [int(one[0]) for one in (found[0][1], found[3][0])] == [NEVER, -1]
