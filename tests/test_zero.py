"""What ZeRO costs and saves: memory by stage, and bytes that the transports of a training count."""

from __future__ import annotations

import math
from functools import cache

import pytest

from strategy.graph.graph import Graph, Role
from strategy.layout.arrangement import arrange
from strategy.models.gpt import GptConfig
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.sbp.sbp import local_box
from strategy.sbp.tensor import Rate, box_shape
from tests.support.long_parameters import long_but
from tests.support.small_plans import config_of, corpus, plan_by_rules, request, train

MODEL = GptConfig(layers=2, width=32, heads=2, sequence=64, vocabulary=64)
PARAMETERS = 4 * MODEL.parameters
TABLE = 4 * MODEL.vocabulary * MODEL.width
"""Bytes of the token table, which is used at both ends and so has two terms of its gradient."""
SCALAR = 2 * 4
"""Bytes of the all-reduce of one number: the loss, the count and, where gradients are shared out, the norm's square."""


@cache
def zero_plan(stage: int, micro_batches: int, dp: int = 2, *, owner: bool = False, group: int = 0) -> Plan:
    """A GPT whose every parameter is shared out, evenly; data parallelism at stage 0."""
    training = Training(global_batch=2 * dp * micro_batches, num_micro_batches=micro_batches)
    config = config_of(training, dp=dp, zero_stage=stage, zero_group=group, zero_min_size=1, zero_owner=owner)
    rules = (*("data",) * (group > 0), "samples split" if stage else "data", "tensor")
    return plan_by_rules(request(dp, training, model=MODEL, per_node=group or dp), config, rules)


def read_backward(graph: Graph) -> int:
    """Bytes of the parameters that the backward pass reads: matrices, and what norms multiply by."""
    names = [v.name for v in graph.with_role(Role.VARIABLE) if ":" not in v.name]
    read = [n for n in names if n != "position" and (n.startswith("token") or n.endswith(".weight"))]
    return sum(graph.values[name].spec.nbytes for name in read)


@pytest.mark.parametrize("micro_batches", long_but([1, 3], 1))
@pytest.mark.parametrize(
    ("stage", "owner"),
    long_but([(0, False), *((stage, owner) for stage in (1, 2, 3) for owner in (False, True))], 0, 1, 4, 5),
)
def test_what_a_stage_sends_is_counted_by_the_transport(stage: int, micro_batches: int, owner: bool) -> None:
    """Over two ranks; T are the bytes of all parameters, G those of their gradients, a second term of the table's too.

    data parallel 2 T and stage 1 T + T once per step, whatever the micro-batches; stage 2 scatters G per micro-batch
    and gathers T once; stage 3 scatters G and gathers what either pass reads, per micro-batch.
    Reduced to owners and broadcast by them, it is as much.
    """
    plan = zero_plan(stage, micro_batches, owner=owner)
    graph, gradients = plan.graph, PARAMETERS + TABLE
    wanted = {
        0: 2 * PARAMETERS,
        1: 2 * PARAMETERS,
        2: micro_batches * gradients + PARAMETERS,
        3: micro_batches * (gradients + PARAMETERS + TABLE + read_backward(graph)),
    }[stage]
    assert sum(plan.claims.sent_bytes_per_step) == wanted + SCALAR * (3 if stage else 2)
    assert train(plan, corpus(MODEL.vocabulary), steps=1).sent_bytes == plan.claims.sent_bytes_per_step


@pytest.mark.parametrize("dp", long_but([2, 4], 0))
def test_what_a_stage_holds(dp: int) -> None:
    """Bytes of model state on a rank, each a golden: parameters and moments, copies for a whole step, gradient sums."""
    found = {stage: state_of(zero_plan(stage, 2, dp)) for stage in range(4)}
    sums = PARAMETERS + TABLE
    assert found == {
        0: (3 * PARAMETERS, 0, sums),
        1: (3 * PARAMETERS // dp, PARAMETERS, sums),
        2: (3 * PARAMETERS // dp, PARAMETERS, sums // dp),
        3: (3 * PARAMETERS // dp, 0, sums // dp),
    }
    peaks = [max(zero_plan(stage, 2, dp).claims.peak_memory_bytes) for stage in range(4)]
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == 4


@pytest.mark.parametrize("stage", long_but([1, 2, 3], 2))
def test_what_groups_send_and_hold(stage: int) -> None:
    """Four ranks in groups of two. Each group sends what two ranks alone do; groups add up parts of sums.

    A part is half of T, two ranks have it, and adding it up takes twice that: 2 T of both parts, once per step.
    """
    micro_batches, groups = 2, 2
    plan, sums = zero_plan(stage, micro_batches, 4, group=2), PARAMETERS + TABLE
    alone = {
        1: 2 * PARAMETERS,
        2: micro_batches * sums + PARAMETERS,
        3: micro_batches * (sums + PARAMETERS + TABLE + read_backward(plan.graph)),
    }[stage]
    pairs = 2 * (groups + 2) + groups  # loss and count: in groups and between; the square of the norm: in groups
    assert sum(plan.claims.sent_bytes_per_step) == groups * alone + 2 * PARAMETERS + pairs * SCALAR
    assert train(plan, corpus(MODEL.vocabulary), steps=1).sent_bytes == plan.claims.sent_bytes_per_step
    assert state_of(plan) == (
        3 * PARAMETERS // 2,
        PARAMETERS if stage < 3 else 0,
        sums if stage < 2 else sums // 2,
    )


def state_of(plan: Plan, rank: int = 0) -> tuple[int, int, int]:
    """(variables, their copies that last a step, accumulated gradients) in bytes on a rank."""
    graph, stages = plan.graph, plan.layout.stages
    variables = copies = sums = 0
    for tensor in arrange(graph, plan.layout, plan.pipeline).tensors:
        value, placement = graph.values[tensor.value], stages.placements[tensor.stage]
        box = local_box(value.spec.shape, tensor.layout, placement.mesh, placement.coords(rank))
        nbytes = math.prod(box_shape(box)) * value.spec.dtype.nbytes * tensor.lifetime.blocks
        if value.role is Role.VARIABLE:
            variables += nbytes * (tensor.name == tensor.value)
            copies += nbytes * (tensor.name != tensor.value)
        elif tensor.name == tensor.value and value.rate is Rate.STEP and value.name.endswith(":sum"):
            sums += nbytes * (math.prod(value.spec.shape) > 1)
    return variables, copies, sums


@pytest.mark.parametrize("stage", long_but([1, 2, 3], 0, 2))
def test_owners_hold_between_them_what_is_held_once(stage: int) -> None:
    """Every tensor on one rank, ranks about equally full; a broadcast of a large one is a scatter and a gather."""
    plan = zero_plan(stage, 2, 4, owner=True)
    found = [state_of(plan, rank) for rank in range(4)]
    sums = PARAMETERS + TABLE
    assert sum(variables for variables, _, _ in found) == 3 * PARAMETERS
    assert sum(gradients for _, _, gradients in found) == (4 * sums if stage == 1 else sums)
    assert max(variables for variables, _, _ in found) <= 1.1 * 3 * PARAMETERS / 4
    copies = {1: PARAMETERS, 2: PARAMETERS, 3: 0}[stage]
    assert all(copies <= held <= 1.3 * copies for _, held, _ in found)
