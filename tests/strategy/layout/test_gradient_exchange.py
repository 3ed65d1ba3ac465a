"""Exchanges are what adds up gradients over samples, in every micro-batch; what takes them is summed for the update."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.graph.graph import Op, Phase, Role, act_rate
from strategy.layout.arrangement import Action
from strategy.layout.gradient_exchange import BACKWARD, exchanged, takers
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.program.program import ActKind
from strategy.sbp.tensor import Rate
from tests.support.long_parameters import long_but
from tests.support.small_plans import MODEL, config_of, deduced_plan, request


def plan_of(*, zero_stage: int, pp: int = 1, precision: Precision = Precision.FULL, dp: int = 2) -> Plan:
    training = Training(global_batch=4 * dp, num_micro_batches=2, precision=precision)
    config = config_of(training, dp=dp, tp=2, pp=pp, zero_stage=zero_stage, zero_min_size=8)
    asked = request(2 * dp * pp, training, model=replace(MODEL, layers=2), backend="cupy", per_node=2)
    return deduced_plan(asked, config, ("data", "tensor"))


def moves(plan: Plan, action: Action) -> bool:
    """Whether an action exchanges gradients."""
    if not action.kind.is_communication or action.kind is ActKind.TRANSFER:
        return False
    return plan.priced.arrangement.tensors[action.reads[0]].value in exchanged(plan.graph)


@pytest.mark.parametrize("pp", [1, 2])
@pytest.mark.parametrize("precision", long_but([Precision.FULL, Precision.BF16], 1))
def test_what_is_exchanged_is_cast_and_summed_and_no_more(precision: Precision, pp: int) -> None:
    plan = plan_of(zero_stage=2, precision=precision, pp=pp)
    graph, arrangement = plan.graph, plan.priced.arrangement
    made, taking = exchanged(graph), takers(graph, arrangement)
    moving = {i for i, action in enumerate(arrangement.actions) if moves(plan, action)}
    shapes = {value.spec.shape for value in graph.with_role(Role.VARIABLE)}
    assert moving
    for index in moving:
        action = arrangement.actions[index]
        name = arrangement.tensors[action.reads[0]].value
        assert name in made
        assert graph.values[name].spec.shape in shapes
        assert action.phase is Phase.BACKWARD
    written = {tensor for index in moving | taking for tensor in arrangement.actions[index].writes}
    assert taking
    for index in taking:
        action = arrangement.actions[index]
        read = [t for t in action.reads if graph.values[arrangement.tensors[t].value].rate is not Rate.STEP]
        assert written.issuperset(read)
    sums = {op.name for op in graph.ops if op.phase is Phase.BACKWARD and graph.values[op.outputs[0]].rate is Rate.STEP}
    assert sums & {arrangement.actions[index].op for index in taking}


def test_where_samples_are_on_one_rank_nothing_is_exchanged() -> None:
    """But gains and biases, of which every rank of a tensor axis may have a term; its other collectives are none."""
    plan = plan_of(zero_stage=0, dp=1)
    arrangement = plan.priced.arrangement
    assert any(action.kind.is_communication and action.phase is Phase.BACKWARD for action in arrangement.actions)
    moved = {arrangement.tensors[one.reads[0]].value for one in arrangement.actions if moves(plan, one)}
    assert all(plan.graph.values[name].spec.shape in {(MODEL.width,), (3 * MODEL.width,)} for name in moved)


@pytest.mark.parametrize("zero_stage", [0, 2, 3])
@pytest.mark.parametrize("precision", long_but([Precision.FULL, Precision.BF16], 1))
def test_it_is_what_rounds_of_leaving_out_what_does_not_prepare_the_update_end_with(
    precision: Precision, zero_stage: int
) -> None:
    graph = plan_of(zero_stage=zero_stage, precision=precision, pp=2).graph

    def is_of_micro_batch(name: str) -> bool:
        return graph.values[name].rate is Rate.MICRO_BATCH

    def is_for(name: str, preparing: set[str]) -> bool:
        return {op.name for op in graph.consumers[name] if op.phase is not Phase.UPDATE} <= preparing

    def prepares(op: Op, preparing: set[str]) -> bool:
        read = filter(is_of_micro_batch, op.inputs)
        handed = (name in graph.producer and graph.producer[name].phase is op.phase for name in read)
        return all(handed) and all(
            is_for(name, preparing) for name in (*filter(is_of_micro_batch, op.inputs), *op.outputs)
        )

    backward = {op.name: op for op in graph.ops if op.phase in BACKWARD}
    preparing = {name for name, op in backward.items() if op.inputs and act_rate(graph, op) is Rate.MICRO_BATCH}
    while left_out := {name for name in preparing if not prepares(backward[name], preparing)}:
        preparing -= left_out
    made = {name for op in backward.values() for name in op.outputs if is_of_micro_batch(name)}
    assert exchanged(graph) == {name for name in made if is_for(name, preparing)} != set()
