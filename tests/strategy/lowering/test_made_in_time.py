"""What is made of gathered parameters waits for its reader, not the first chunk for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.comm.boxing import BoxingStep
from strategy.graph.graph import Phase
from strategy.layout.arrangement import Action, Arrangement
from strategy.lowering.made_in_time import made_in_time
from strategy.lowering.stage_order import stage_order
from strategy.program.program import ActKind
from strategy.sbp.tensor import Rate
from tests.support.long_parameters import long_but
from tests.support.random_plans import random_plan_case


def act(name: str, reads: tuple[int, ...], writes: tuple[int, ...], kind: ActKind = ActKind.COMPUTE) -> Action:
    rate = Rate.MICRO_BATCH if name.startswith("f") else Rate.STEP
    op = name if kind is ActKind.COMPUTE else ""
    return Action(name, kind, 0, Phase.FORWARD, rate, 0, reads, writes, op=op)


def gather(name: str, reads: tuple[int, ...], writes: tuple[int, ...]) -> Action:
    return act(name, reads, writes, ActKind.ALL_GATHER)


def drawn(actions: list[Action], lists: list[list[int]], order: list[int], layers: list[int | None]) -> str:
    found, turns = made_in_time(Arrangement((), tuple(actions)), lists, order, layers)
    return " | ".join(" ".join(actions[index].name for index in found[turn]) for turn in turns)


def test_a_cast_of_what_is_gathered_stands_before_its_reader() -> None:
    actions = [
        gather("g1", (0,), (1,)),
        act("cast1", (1,), (2,)),
        gather("g2", (3,), (4,)),
        act("cast2", (4,), (5,)),
        act("f1", (2,), (6,)),
        act("f2", (5, 6), (7,)),
    ]
    order, layers = [0, 1, 2, 1, 2], [None, None, None, None, 0, 1]
    assert drawn(actions, [[0, 1, 2, 3], [4], [5]], order, layers) == "g1 g2 | cast1 f1 | cast2 f2 | f1 | f2"


def test_what_is_cast_before_it_is_gathered_stays_where_it_is() -> None:
    actions = [act("cast", (0,), (1,)), gather("g", (1,), (2,)), act("f", (2,), (3,))]
    assert drawn(actions, [[0, 1], [2]], [0, 1], [None, None, 0]) == "cast g | f"


def test_what_is_gathered_of_a_cast_is_so_a_layer_ahead() -> None:
    actions = [
        gather("g", (0,), (1,)),
        act("cast", (1,), (2,)),
        gather("again", (2,), (3,)),
        act("f1", (4,), (5,)),
        act("f2", (5,), (6,)),
        act("f3", (3, 6), (7,)),
    ]
    layers = [None, None, None, 0, 1, 2]
    assert drawn(actions, [[0, 1, 2], [3, 4, 5]], [0, 1], layers) == "g | f1 cast again f2 f3"
    assert drawn(actions, [[0, 1, 2], [3], [4], [5]], [0, 1, 2, 3], layers) == "g | f1 | cast again f2 | f3"


def test_what_is_gathered_in_two_steps_stays_where_it_is() -> None:
    """On one stream: the first parameter is not behind the first steps of all others."""
    actions = [
        gather("g1", (0,), (1,)),
        gather("again1", (1,), (2,)),
        gather("g2", (3,), (4,)),
        gather("again2", (4,), (5,)),
        act("f1", (2,), (6,)),
        act("f2", (5, 6), (7,)),
    ]
    layers = [None, None, None, None, 0, 1]
    assert drawn(actions, [[0, 1, 2, 3], [4, 5]], [0, 1], layers) == "g1 again1 g2 again2 | f1 f2"


def test_what_is_gathered_again_does_not_hold_up_what_is_gathered_of_a_cast() -> None:
    """Both on one stream inside nodes: of all laps, the first would wait until the last has come from other nodes."""
    actions = [
        gather("g1", (0,), (1,)),
        act("cast", (1,), (2,)),
        gather("inside1", (2,), (3,)),
        gather("g2", (4,), (5,)),
        gather("inside2", (5,), (6,)),
        act("f1", (3,), (7,)),
        act("f2", (7,), (8,)),
        act("f3", (6, 8), (9,)),
    ]
    layers = [None, None, None, None, None, 0, 1, 2]
    lists = [[0, 1, 2, 3, 4], [5], [6], [7]]
    assert drawn(actions, lists, [0, 1, 2, 3], layers) == "g1 g2 | cast inside1 f1 | inside2 f2 | f3"


def test_what_is_gathered_beside_it_is_so_a_layer_ahead_as_well() -> None:
    """On one stream: what is gathered of a cast for the first layer is not behind the parameters of the last one."""
    actions = [
        gather("big1", (0,), (1,)),
        gather("tiny1", (2,), (3,)),
        act("cast1", (3,), (4,)),
        gather("again1", (4,), (5,)),
        gather("big2", (6,), (7,)),
        gather("big3", (8,), (9,)),
        act("f1", (1, 5), (10,)),
        act("f2", (7, 10), (11,)),
        act("f3", (9, 11), (12,)),
    ]
    layers = [None] * 6 + [0, 1, 2]
    lists = [[0, 1, 2, 3, 4, 5], [6], [7], [8]]
    assert drawn(actions, lists, [0, 1, 2, 3], layers) == "tiny1 | big1 cast1 again1 big2 f1 | big3 f2 | f3"
    across = replace(actions[4], step=BoxingStep(ActKind.ALL_GATHER, (1,), ()))
    others = [*actions[:4], across, *actions[5:]]
    assert drawn(others, lists, [0, 1, 2, 3], layers) == "tiny1 big2 | big1 cast1 again1 f1 | big3 f2 | f3"


def test_what_is_made_for_several_stands_before_the_first_of_them() -> None:
    """Of an act with two results, and of a cast that is gathered again for a later layer and read before that."""
    two = [gather("g", (0,), (1,)), act("cast", (1,), (2, 3)), act("f1", (3,), (4,)), act("f2", (2, 4), (5,))]
    assert drawn(two, [[0, 1], [2], [3]], [0, 1, 2], [None, None, 0, 1]) == "g | cast f1 | f2"
    again = [
        gather("g", (0,), (1,)),
        act("cast", (1,), (2,)),
        gather("again", (2,), (3,)),
        act("f1", (2,), (4,)),
        act("f2", (4,), (5,)),
        act("f3", (5,), (6,)),
        act("f4", (3, 6), (7,)),
    ]
    lists, order, layers = [[0, 1, 2], [3], [4], [5], [6]], [0, 1, 2, 3, 4], [None, None, None, 0, 1, 2, 3]
    assert drawn(again, lists, order, layers) == "g | cast f1 | f2 | again f3 | f4"
    later = [*again[:3], act("f1", (8,), (4,)), *again[4:6], act("f4", (2, 3, 6), (7,))]
    assert drawn(later, lists, order, layers) == "g | f1 | f2 | cast again f3 | f4"


def test_what_another_stage_waits_for_is_not_put_off() -> None:
    actions = [
        gather("g", (0,), (1,)),
        act("cast", (1,), (2,)),
        act("sent", (2,), (3,), ActKind.TRANSFER),
        act("f", (2,), (4,)),
    ]
    assert drawn(actions, [[0, 1, 2], [3]], [0, 1], [None, None, None, 0]) == "g cast sent | f"


@pytest.mark.parametrize(("part", "plans"), long_but([(1, 3), *((part, 15) for part in range(4))], 0))
def test_every_act_is_there_once_and_behind_what_it_reads(part: int, plans: int) -> None:
    late = 0
    for seed in range(100 * part, 100 * part + plans):
        plan = random_plan_case(seed, pipeline=True, backend="cupy").plan
        arrangement, stages = plan.priced.arrangement, len(plan.layout.stages.placements)
        actions = arrangement.actions
        for stage, (lists, order) in enumerate(stage_order(plan.graph, arrangement, plan.pipeline, stages)):
            ran = [index for number in order for index in lists[number]]
            once = [index for index in ran if actions[index].rate is Rate.STEP]
            assert len(once) == len(set(once))
            assert set(ran) == {index for index, action in enumerate(actions) if action.stage == stage}
            written, gathered = set[int](), set[int]()
            here = {tensor for index in ran for tensor in actions[index].writes}
            for number, index in enumerate(ran):
                assert here.isdisjoint(set(actions[index].reads) - written), (seed, stage, actions[index].name)
                written.update(actions[index].writes)
                if actions[index].kind is ActKind.ALL_GATHER and actions[index].rate is Rate.STEP:
                    gathered.update(actions[index].writes)
                elif actions[index].rate is Rate.STEP and not gathered.isdisjoint(actions[index].reads):
                    late += any(actions[other].rate is Rate.MICRO_BATCH for other in ran[:number])
    assert late >= 1, late
