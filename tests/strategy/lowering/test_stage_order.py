"""The order of a stage, drawn: f and b are the passes of a layer, t takes what the exchange of its gradients gave, and
g gathers its parameters."""

from __future__ import annotations

from itertools import groupby

import pytest

from executor.train import program_of
from strategy.graph.graph import Phase
from strategy.layout.arrangement import Action
from strategy.layout.parameter_gathers import gathers
from strategy.lowering.stage_order import stage_order
from strategy.models.gpt import GptConfig
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.program.protocol import admit
from strategy.sbp.tensor import Rate
from tests.support.small_plans import config_of, deduced_plan, request

MODEL = GptConfig(layers=4, width=8, heads=2, sequence=4, vocabulary=16)


def plan_of(pp: int, schedule: str, backend: str = "cupy", zero_stage: int = 2) -> Plan:
    """Two micro-batches, whose gradients are exchanged in each."""
    training = Training(global_batch=8, num_micro_batches=2)
    config = config_of(training, dp=2, pp=pp, schedule=schedule, zero_stage=zero_stage, zero_min_size=8)
    asked = request(2 * pp, training, model=MODEL, backend=backend, per_node=1)
    return deduced_plan(asked, config, ("data", "tensor"))


def drawn(plan: Plan) -> list[str]:
    """The chunks of every stage, layer by layer."""
    arrangement, count = plan.priced.arrangement, len(plan.layout.stages.placements)
    gathering, found = gathers(plan.graph, arrangement), []
    for lists, order in stage_order(plan.graph, arrangement, plan.pipeline, count):
        acts = ((index, arrangement.actions[index]) for number in order for index in lists[number])
        said = [letter(plan, action, gathers=index in gathering) for index, action in acts]
        found.append(" ".join(word for word, _ in groupby(filter(None, said))))
    return found


def letter(plan: Plan, action: Action, *, gathers: bool) -> str:
    if not action.op or action.phase is Phase.UPDATE or action.rate is Rate.STEP:
        return ""
    op = plan.graph.by_name[action.op]
    if op.layer is None:
        return ""
    sums = action.phase is not Phase.FORWARD and plan.graph.values[op.outputs[0]].rate is Rate.STEP
    return f"{'g' if gathers else 't' if sums else action.phase[0]}{op.layer}"


@pytest.mark.parametrize(
    ("pp", "schedule", "expected"),
    [
        (1, "1f1b", ["f0 f1 f2 f3 b3 b2 t3 b1 t2 b0 t1 f0 t0 f1 f2 f3 b3 b2 t3 b1 t2 b0 t1 t0"]),
        (2, "1f1b", ["f0 f1 f0 f1 b1 b0 t1 t0 b1 b0 t1 t0", "f2 f3 b3 b2 t3 f2 t2 f3 b3 b2 t3 t2"]),
        (2, "gpipe", ["f0 f1 f0 f1 b1 b0 t1 t0 b1 b0 t1 t0", "f2 f3 f2 f3 b3 b2 t3 t2 b3 b2 t3 t2"]),
        (2, "interleaved", ["f0 f2 b2 t2 b2 b0 t2 t0 b0 t0", "f1 f3 b3 f3 t3 b3 b1 t3 t1 b1 t1"]),
    ],
)
def test_sums_come_a_layer_later(pp: int, schedule: str, expected: list[str]) -> None:
    """But for those of a chunk that the same passes of the next micro-batch follow."""
    plan = plan_of(pp, schedule)
    assert drawn(plan) == expected
    admit(program_of(plan))


@pytest.mark.parametrize(
    ("pp", "schedule", "expected"),
    [
        (1, "1f1b", ["g0 g1 f0 g2 f1 g3 f2 g3 f3 g2 b3 g1 b2 t3 g0 b1 t2 g0 b0 t1 g1 f0 t0 g2 f1 g3 f2 g3 f3 g2 b3 g1 "
                     "b2 t3 g0 b1 t2 b0 t1 t0"]),
        (2, "gpipe", ["g0 g1 f0 f1 g0 g1 f0 g1 f1 g0 b1 b0 t1 t0 g1 g0 b1 b0 t1 t0",
                      "g2 g3 f2 f3 g2 g3 f2 g3 f3 g2 b3 b2 t3 t2 g3 g2 b3 b2 t3 t2"]),
    ],
)  # fmt: skip
def test_parameters_are_gathered_a_layer_earlier(pp: int, schedule: str, expected: list[str]) -> None:
    """But for those of the first layer of a chunk that follows one of the same passes."""
    plan = plan_of(pp, schedule, zero_stage=3)
    assert drawn(plan) == expected
    admit(program_of(plan))


def test_where_nothing_overlaps_nothing_is_postponed() -> None:
    plan = plan_of(1, "1f1b", "numpy")
    ((lists, _),) = stage_order(plan.graph, plan.priced.arrangement, plan.pipeline, 1)
    assert lists == [sorted(found) for found in lists]
