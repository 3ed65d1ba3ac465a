"""What gradients of weights are computed beside: which collectives, and for how long."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from strategy.cost.cost import CostModel
from strategy.layout.config import Recompute
from strategy.layout.covered import covering_products, covers_ns, products_ns
from strategy.layout.schedule import Schedule
from strategy.layout.step_times import COVERED, TICKS, Overlap, StepTimes, no_times, step_ns
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from tests.support.small_plans import MODEL, cluster, config_of, deduced_plan, request


def megatron(*, pp: int = 1, overlaps: bool = True, **of: object) -> Plan:
    """A GPT of which layers are split along a tensor axis of two, by rule."""
    training = Training(global_batch=8, num_micro_batches=4)
    config = config_of(training, tp=2, pp=pp, **of)  # type: ignore[arg-type]
    return deduced_plan(request(2 * pp, training, overlaps=overlaps), config, config.axes)


def covered(plan: Plan) -> dict[str, int]:
    """Value -> nanoseconds of its conversions that are covered."""
    priced, found = plan.priced, dict[str, int]()
    for at, covered_ns in priced.covered_ns.items():
        assert 0 < covered_ns <= priced.took_ns[at]
        action = priced.arrangement.actions[at]
        assert action.kind.is_communication or action.step is not None
        value = priced.arrangement.tensors[action.writes[0]].value
        found[value] = found.get(value, 0) + covered_ns
    return found


@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL])
def test_gradients_of_what_split_products_read_are_covered(recompute: Recompute) -> None:
    """The terms that the first product of each half of a layer leaves; whatever is computed again.

    Those of the very first are summed up behind the norm ahead of it: no layer follows.
    """
    found = covered(megatron(recompute=recompute))
    halves = {f"layers.{layer}.{name}.matmul:dx" for layer in range(MODEL.layers) for name in ("attn.qkv", "mlp.fc1")}
    assert halves - found.keys() <= {"layers.0.attn.qkv.matmul:dx"}
    assert not any("proj" in name or "fc2" in name for name in found)


def test_they_are_covered_for_as_long_as_the_product_takes_at_most() -> None:
    plan = megatron()
    value = "layers.0.mlp.fc1.matmul:dx"
    (product,) = covering_products(plan.graph)[value]
    assert product.flop == 2 * np.prod(product.product, dtype=int)
    assert covers_ns(plan.graph, value, plan.cost, 2) == products_ns([product], plan.cost, 2)
    assert covers_ns(plan.graph, value, plan.cost, 2) == pytest.approx(product.flop / 2, rel=1e-6)  # 1 GFLOP/s
    slow = CostModel(replace(cluster(2, overlaps=True), intra=replace(plan.cluster.intra, bytes_per_s=1e4)), {})
    priced = replace(plan, cost=slow, cluster=slow.cluster)
    assert covered(priced)[value] == covers_ns(plan.graph, value, slow, 2)


def test_nothing_is_covered_by_a_pass_of_its_own() -> None:
    plan = megatron(pp=2, schedule=Schedule.ZB_H1)
    assert not covering_products(plan.graph)
    assert not covered(plan)


def test_objectives_count_it_apart_where_collectives_run_beside_computation() -> None:
    waited, (hidden,) = "backward_waited_ns", COVERED.values()
    beside, alone = (megatron(overlaps=overlaps).priced.times for overlaps in (True, False))
    assert getattr(beside, hidden).sum() == sum(covered(megatron()).values())
    assert not getattr(alone, hidden).any()
    assert getattr(alone, waited).sum() == getattr(beside, waited).sum() + getattr(beside, hidden).sum()


@pytest.mark.parametrize(
    ("schedule", "more_ns"), [(Schedule.GPIPE, 3 * 10), (Schedule.ONE_F_ONE_B, 3 * 10), (Schedule.ZB_H1, 3 * 40)]
)
def test_it_slows_down_or_is_waited_for(schedule: Schedule, more_ns: int) -> None:
    """40 ns in each of three backward passes, a fourth of which computation loses."""
    found = no_times(1, 1)
    for name in ("forward_ns", "backward_ns", "weight_ns"):
        found[name][:] = 100
    plain = StepTimes(**found, overlap=Overlap(allowed=True, slowed_ticks=TICKS // 4))
    hiding = replace(plain, backward_covered_ns=np.full((1, 1), 40))
    assert step_ns(schedule, 3, hiding) - step_ns(schedule, 3, plain) == more_ns
