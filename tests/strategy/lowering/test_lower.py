"""Lowered programs: registers are local shapes, acts are counted right, every plan is admitted."""

from __future__ import annotations

import random

import pytest

from executor.train import program_of
from strategy.layout.schedule import Schedule
from strategy.lowering.lower import model_flop
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.program.program import ActKind, LoadTask, OpTask
from strategy.program.protocol import admit, rendezvous_members
from strategy.sbp.tensor import box_shape
from tests.support.small_plans import MODEL, config_of, random_plan, request


def made(seed: int, *, backend: str = "numpy") -> Plan:
    rng = random.Random(seed)
    dp, tp, pp = rng.choice([(1, 1, 1), (2, 1, 1), (1, 3, 1), (2, 2, 1), (1, 2, 2), (2, 1, 2)])
    schedule = rng.choice(list(Schedule))
    count = pp if schedule is Schedule.INTERLEAVED else rng.choice((1, 2, 3))
    training = Training(global_batch=6 * dp, num_micro_batches=count)
    config = config_of(training, dp=dp, tp=tp, pp=pp, schedule=schedule)
    return random_plan(request(dp * tp * pp, training, backend=backend), config, rng)


@pytest.mark.parametrize("backend", ["numpy", "cupy"])
@pytest.mark.parametrize("seed", range(10))
def test_programs_are_whole_and_live(seed: int, backend: str) -> None:
    plan = made(seed, backend=backend)
    program = program_of(plan)
    admit(program)
    in_streams = [actor for stream in program.streams for actor in set(stream.sequence)]
    assert sorted(in_streams) == list(range(len(program.actors)))
    for stream in program.streams:
        for actor in set(stream.sequence):
            assert program.actors[actor].rank == stream.rank
            if not stream.dynamic:
                assert stream.sequence.count(actor) == program.actors[actor].acts_per_step
    for actor_ in program.actors:
        ports = [program.registers[port.register] for port in (*actor_.reads, *actor_.writes)]
        assert {register.rank for register in ports} == {actor_.rank}
        if isinstance(actor_.task, OpTask):
            boxes = (*actor_.task.input_boxes, *actor_.task.output_boxes)
            assert [box_shape(box) for box in boxes] == [register.shape for register in ports]
        if isinstance(actor_.task, LoadTask):
            assert [box_shape(box) for box in actor_.task.boxes] == [register.shape for register in ports]
    for members in rendezvous_members(program).values():
        assert len({program.actors[member].rank for member in members}) == len(members) > 1
    names = {stream.name for stream in program.streams}
    assert ("comm" in names) <= (backend == "cupy")
    communicates = any(a.kind.is_communication and a.kind is not ActKind.TRANSFER for a in program.actors)
    assert ("comm" in names) == (backend == "cupy" and communicates)


def test_model_flop_is_that_of_the_logical_step() -> None:
    plan = made(0)
    h, s, tokens = MODEL.width, MODEL.sequence, plan.tokens_per_step
    dense = 6 * tokens * (12 * MODEL.layers * h * h + MODEL.vocabulary * h)
    attention = 14 * tokens * s * h * MODEL.layers
    assert model_flop(plan.graph, plan.pipeline) == dense + attention == program_of(plan).model_flop_per_step
