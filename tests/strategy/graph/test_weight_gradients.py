"""Which ops of a backward pass are gradients of weights, before and after they are a pass of their own."""

from __future__ import annotations

from strategy.graph.graph import Phase
from strategy.graph.weight_gradients import weight_gradients
from strategy.layout.schedule import Schedule
from strategy.passes.planned import planned_graph
from strategy.passes.training import Training
from tests.support.small_plans import MODEL, config_of


def test_they_are_the_same_ops_whether_they_are_put_off_or_not() -> None:
    training = Training(global_batch=8, num_micro_batches=4)
    beside, apart = (
        planned_graph(MODEL, training, config_of(training, pp=2, schedule=schedule))
        for schedule in (Schedule.ONE_F_ONE_B, Schedule.ZB_H1)
    )
    assert weight_gradients(beside) == weight_gradients(apart)
    assert weight_gradients(apart) == {op.name for op in apart.ops if op.phase is Phase.WEIGHT}
    assert {f"layers.0.mlp.fc1.matmul:dw{end}" for end in ("", ":sum")} <= weight_gradients(beside)
    assert "layers.0.mlp.fc1.matmul:dx" not in weight_gradients(beside)
