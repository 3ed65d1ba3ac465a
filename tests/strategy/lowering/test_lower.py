"""Lowered programs: registers are local shapes, acts are counted right, every plan is admitted."""

from __future__ import annotations

import random
from itertools import pairwise, product

import pytest

from executor.train import program_of
from simulator.engine import run
from strategy.layout.schedule import Schedule
from strategy.lowering.lower import model_flop
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.program.program import BoxingTask, LoadTask, OpTask, Program
from strategy.program.protocol import admit, rendezvous_members
from strategy.program.timeline import by_stream
from strategy.sbp.tensor import box_shape
from tests.support.long_parameters import long_but
from tests.support.small_plans import MODEL, config_of, deduced_plan, random_plan, request


def made(seed: int, *, backend: str = "numpy") -> Plan:
    rng = random.Random(seed)
    dp, tp, pp = rng.choice([(1, 1, 1), (2, 1, 1), (1, 3, 1), (2, 2, 1), (1, 2, 2), (2, 1, 2)])
    schedule = rng.choice(list(Schedule))
    count = pp if schedule is Schedule.INTERLEAVED else rng.choice((1, 2, 3))
    training = Training(global_batch=6 * dp, num_micro_batches=count)
    config = config_of(training, dp=dp, tp=tp, pp=pp, schedule=schedule)
    return random_plan(request(dp * tp * pp, training, backend=backend, per_node=tp), config, rng)


LOADED_TWICE = 41
"""Seed of a plan of which one rank loads an input whole, and as terms of which its own is the one that counts."""


def loads_of(program: Program) -> list[tuple[object, ...]]:
    """What tells the loaders of ranks apart."""
    loaders = [(actor.rank, actor.task) for actor in program.actors if isinstance(actor.task, LoadTask)]
    return [(rank, task.inputs, task.boxes, tuple(task.absent), task.number) for rank, task in loaders]


@pytest.mark.parametrize("backend", ["numpy", "cupy"])
@pytest.mark.parametrize("seed", long_but([*range(10), LOADED_TWICE], 2, 10))
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
    assert len(set(loads_of(program))) == len(loads_of(program))
    for members in rendezvous_members(program).values():
        assert len({program.actors[member].rank for member in members}) == len(members) > 1
    for stream in program.streams:
        collectives = {
            plan.cluster.level(actor.task.group)
            for actor in (program.actors[index] for index in stream.sequence)
            if isinstance(actor.task, BoxingTask) and actor.kind.is_communication
        }
        assert collectives <= ({stream.name.removesuffix(" data")} if backend == "cupy" else {"intra", "inter"})
        assert not collectives or backend == "cupy" or stream.name == "compute"


def test_model_flop_is_that_of_the_logical_step() -> None:
    plan = made(0)
    h, s, tokens = MODEL.width, MODEL.sequence, plan.tokens_per_step
    dense = 6 * tokens * (12 * MODEL.layers * h * h + MODEL.vocabulary * h)
    attention = 14 * tokens * s * h * MODEL.layers
    assert model_flop(plan.graph, plan.pipeline) == dense + attention == program_of(plan).model_flop_per_step


def acts_of(program: Program, stream: str) -> list[tuple[int, int]]:
    """When the acts of a stream of the first rank begin and end, in two steps."""
    index = next(i for i, found in enumerate(program.streams) if (found.rank, found.name) == (0, stream))
    records = by_stream(run(program, 2).timeline)[index]
    return [(record.start_ns, record.end_ns) for record in records]


def between_and_inside(per_node: int) -> Program:
    """Samples over the first axis of 4 devices, a layer over the second."""
    training = Training(global_batch=8, num_micro_batches=2)
    asked = request(4, training, backend="cupy", per_node=per_node)
    return program_of(deduced_plan(asked, config_of(training, dp=2, tp=2), ("data", "tensor")))


def test_gradients_travel_between_nodes_beside_a_tensor_axis_inside() -> None:
    program = between_and_inside(2)
    between, inside = acts_of(program, "inter data"), acts_of(program, "intra")
    assert any(begin < until and start < end for begin, end in between for start, until in inside)


def test_collectives_of_one_kind_on_one_level_queue() -> None:
    """All of them on one node; gradients travel beside a tensor axis there, too."""
    program = between_and_inside(4)
    assert {stream.name for stream in program.streams} == {"compute", "intra", "intra data", "load"}
    each = acts_of(program, "intra"), acts_of(program, "intra data")
    for acts in each:
        assert all(end <= begin for (_, end), (begin, _) in pairwise(acts))
    assert any(begin < until and start < end for (begin, end), (start, until) in product(*each))
