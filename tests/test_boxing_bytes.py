"""A conversion sends the bytes that it says, and the tensor stays the same.

All pairs over one axis and some over several here, hundreds by `python -m tests.campaigns boxing-bytes --cases 500`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from random import Random

import pytest

from executor.train import program_of
from strategy.cost.cost import CostModel
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.program.program import BoxingTask
from strategy.sbp.sbp import B, P, Partial, Reduce, Split
from strategy.sbp.tensor import DType, TensorSpec
from tests.campaigns import boxing_bytes as campaign
from tests.campaigns.boxing_bytes import LINES, MESHES, Act, Case, check, conversion, line_cases, random_case, run
from tests.campaigns.transparency import check as check_training
from tests.support.long_parameters import long_but
from tests.support.small_plans import cluster, config_of, in_float64, plan_by_rules, request


@pytest.mark.parametrize("every", long_but([1, 5]))
def test_conversions_send_what_they_say(every: int) -> None:
    """All, or one in five: five does not divide the 64 pairs of layouts, so that each of them comes all the same."""
    outcome = run(60, 3, every=every)
    assert outcome.failures == []
    assert outcome.unmet() == []
    assert sum(outcome.coverage[f"1-D {relation}"] for relation in {pair.relation for pair in LINES}) == 1920 // every


def test_every_pair_over_one_axis_is_there() -> None:
    pairs = {(case.source[0], case.target[0], case.pair.relation) for case in line_cases()}
    assert len(pairs) == 64 * 6


def test_what_is_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Terms that combine in another way, a conversion that takes a detour, bytes that nobody stated."""
    case = Case(TensorSpec((12, 24), DType.FLOAT64), LINES[1], (P,), (B,), 0)
    back = replace(case, source=(B,), target=(Split(0),))
    (act,) = conversion(case)
    assert list(check(case, [act], 0)) == []
    tasks = {r: replace(t, reduce=Reduce.MAX) for r, t in act.tasks.items() if isinstance(t, BoxingTask)}
    assert list(check(case, [Act(act.kind, dict(tasks))], 0)) == ["the tensor is another one"]
    around = conversion(replace(case, target=(Split(0),))) + conversion(replace(case, source=(Split(0),)))
    assert list(check(case, around, 0)) == []
    assert any("the table says" in line for line in check(case, around + conversion(back) + around[1:], 0))
    monkeypatch.setattr(campaign, "part_nbytes", lambda kind, task, rank, spec: (1,))
    assert any("bytes, not 1" in line for line in check(case, [act], 0))


@pytest.mark.parametrize("reduce", [Reduce.MAX, Reduce.MIN])
@pytest.mark.parametrize("dtype", [DType.FLOAT32, DType.INT32])
def test_terms_of_extremes_are_made_and_reduced(reduce: Reduce, dtype: DType) -> None:
    """Made on one placement and on another, by neutral elements that no maximum or minimum of the tensor keeps."""
    for pair in LINES:
        for source in (B, Split(0), Partial(reduce)):
            case = Case(TensorSpec((7, 5), dtype), pair, (source,), (Partial(reduce),), 0)
            assert list(check(case, conversion(case), 0)) == []


@cache
def on_two_nodes() -> Plan:
    """Data parallel over two nodes of two ranks."""
    training = in_float64(Training(global_batch=8, num_micro_batches=2))
    asked = request(4, training)
    asked = replace(asked, cost=CostModel(cluster(4, per_node=2), {}))
    return plan_by_rules(asked, config_of(training, dp=4), ("data", "tensor"))


def test_a_plan_over_nodes_reduces_on_two_levels_and_trains_alike() -> None:
    plan = on_two_nodes()
    tasks = [a.task for a in program_of(plan).actors if isinstance(a.task, BoxingTask)]
    assert any(task.nodes == ((0, 1), (2, 3)) for task in tasks)
    assert list(check_training(plan)) == []


def test_cases_follow_their_seed() -> None:
    assert str(random_case(Random(5))) == str(random_case(Random(5)))
    assert {pair.relation for pair in MESHES} >= {"same", "regrouped", "disjoint", "overlapping", "subset"}
