"""Clusters of several types of nodes: prices by type, layers dealt out by speed, and plans that all else accepts."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from experiments.studies.what_if import what_if
from simulator.simulate import simulate
from strategy.base.budget import Budget
from strategy.base.errors import ContradictionError, InfeasibleError, InputError
from strategy.bounds.mixed_bound import mixed_bounds_ns
from strategy.bounds.quick_bound import quick_bound_ns
from strategy.cost.cost import CostModel, port_rates
from strategy.cost.data_sheet import Coefficients
from strategy.cost.measurement import CostKey, Features
from strategy.hardware.cluster import Cluster
from strategy.layout.config import PlanConfig, Recompute
from strategy.layout.layout import layer_runs
from strategy.layout.schedule import Schedule
from strategy.lowering.lower import lower_priced
from strategy.models.gpt import GptConfig
from strategy.passes.training import Training
from strategy.plan.plan import Plan, plan_text, read_plan, write_plan
from strategy.plan.verify import verify
from strategy.program.program import ActKind
from strategy.search.candidate.candidate_solve import solve_candidate
from strategy.search.search import search
from strategy.space.candidate_space import free_rules
from strategy.space.candidates import candidates_of
from strategy.space.request import Pins
from strategy.space.stage_orders import runs_by_speed, stage_orders
from tests.strategy.plan.test_plan import stamped
from tests.support.long_parameters import long_but
from tests.support.mixed_clusters import ROOMY, mixed, mixed_request
from tests.support.small_plans import (
    config_of,
    corpus,
    exchange_left_alone,
    no_simulation,
    plan_by_rules,
    request,
    simulated,
    train,
)

GPT = GptConfig(layers=6, width=16, heads=2, sequence=8, vocabulary=64)
SCHEDULES = (Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.ZB_H1)
EXACT = 1 + 1e-9


def pinned(pp: int, dp: int, schedule: Schedule = Schedule.ONE_F_ONE_B) -> Pins:
    return Pins(pp=pp, dp=dp, tp=1, micro_batch=1, schedule=schedule, recompute=Recompute.NONE, zero_stage=0)


def all_cuts(layers: int, places: int) -> Iterator[tuple[int, ...]]:
    for bars in itertools.combinations(range(1, layers), places - 1):
        yield tuple(end - begin for begin, end in itertools.pairwise((0, *bars, layers)))


def test_an_act_is_priced_by_those_who_take_part() -> None:
    cluster = mixed(1.0, 3.0)
    cost, (slow, fast) = CostModel(cluster, {}), (CostModel(one, {}) for one in cluster.types)
    product = Features("matmul", 10**9, 10**6, product=(500, 1000, 1000, 1))
    for act in (product, Features(ActKind.ALL_REDUCE, 0, 10**6, 1, "intra"), Features("relu", 10**6, 10**6)):
        assert slow.seconds(act) > 1.1 * fast.seconds(act)
        found = [cost.seconds(replace(act, groups=groups)) for groups in ((0,), (1,), (0, 1), ())]
        assert found == [slow.seconds(act), fast.seconds(act), slow.seconds(act), fast.seconds(act)]


def test_ports_are_those_of_a_ranks_own_node() -> None:
    rates = port_rates(mixed(1.0, 3.0), 4)
    assert [rates[f"intra:{rank}"] for rank in range(4)] == pytest.approx([2e8, 2e8, 6e8, 6e8])
    assert len({rates[f"inter:{rank}"] for rank in range(4)}) == 1


def test_measured_constants_are_refused() -> None:
    with pytest.raises(InputError, match="cluster mixed: measured constants do not say of which type"):
        CostModel(mixed(1.0, 2.0), {CostKey("matmul"): Coefficients(0.0, 1.0, 0.0)})


def test_what_if_changes_all_types_alike_or_the_links_between_them() -> None:
    cost = CostModel(mixed(1.0, 2.0), {})
    assert what_if(cost, ["inter.bandwidth=2x"]).cluster.inter.bytes_per_s == 1e8
    doubled = what_if(cost, ["device.compute=2x", "intra.latency=1 us"]).cluster
    assert [one.device.flop_per_s for one in doubled.groups] == [2e9, 4e9]
    assert [one.intra.latency_s for one in doubled.groups] == [1e-6, 1e-6]
    assert doubled.device.flop_per_s == 2e9


def test_stages_are_of_one_type_and_groups_stay_together() -> None:
    cluster = mixed(1.0, 3.0, nodes=3, per_node=5)
    asked = mixed_request(GPT, 30, cluster, Pins())
    assert {config.pp for config in candidates_of(asked)} == {1, 2, 6}
    assert stage_orders(cluster, 6) == ((), (3, 4, 5, 0, 1, 2))
    assert stage_orders(mixed(3.0, 1.0), 2) == ((), (1, 0))
    assert stage_orders(mixed(2.0, 1.0, 3.0), 3) == ((), (2, 0, 1), (1, 0, 2))
    assert stage_orders(cluster, 1) == stage_orders(cluster, 4) == ((),)
    assert runs_by_speed(8, [1.0, 3.0]) == (2, 6)
    assert runs_by_speed(2, [1.0, 100.0]) == (1, 1)
    with pytest.raises(ContradictionError):
        search(replace(asked, pins=Pins(pp=3)), simulate=no_simulation, budget=Budget.of(5))


MOST_EVEN = 1


@pytest.mark.long
@pytest.mark.parametrize("cases", [1, 3])
@exchange_left_alone()
def test_no_cut_and_no_order_is_better(cases: int) -> None:
    """Every cut in every order, each solved on its own."""
    rng, seen = random.Random(7), Counter[str]()
    for case in range(cases):
        pp, speed, count = (2, 4)[case % 2], rng.choice([1.5, 2.0, 4.0]), rng.choice([2, 4, 16])
        backend, schedule = rng.choice(["cupy", "numpy"]), SCHEDULES[case % 3]
        dp = 4 // pp
        cluster = mixed(*rng.sample([1.0, speed], 2), backend=backend)
        asked = mixed_request(GPT, count * dp, cluster, pinned(pp, dp, schedule))
        plan = search(asked, simulate=no_simulation, budget=Budget.of(30)).plan
        base, best_ns = PlanConfig(dp, 1, pp, 1, count, schedule), None
        for order, runs in itertools.product(stage_orders(cluster, pp), all_cuts(GPT.layers, pp)):
            config = replace(base, runs=runs, stage_order=order)
            found = solve_candidate(asked, config, rules=free_rules(config), cutoff_ns=best_ns)
            if found is not None and (best_ns is None or found.objective_ns < best_ns):
                best_ns = found.objective_ns
        assert best_ns is not None
        assert plan.claims.objective_s * 1e9 <= EXACT * best_ns, plan.config
        assert plan.claims.lower_bound_s * 1e9 <= best_ns
        seen += Counter({"uneven": bool(plan.config.runs), f"pp {pp}": 1, "reordered": bool(plan.config.stage_order)})
    print(dict(seen))
    assert seen["uneven"] >= cases - MOST_EVEN
    assert cases == 1 or min(seen["pp 2"], seen["pp 4"], seen["reordered"]) > 0


@pytest.mark.parametrize(("plans", "quota"), long_but([(4, 1), (14, 6)], 0))
def test_no_plan_takes_less_than_its_bounds(plans: int, quota: int) -> None:
    """Random cuts, orders and speeds, laid out by rules."""
    rng, seen = random.Random(3), Counter[str]()
    for _ in range(plans):
        pp, tp = rng.choice([(1, 1), (2, 1), (2, 2), (4, 1)])
        dp, schedule = 4 // pp // tp, rng.choice(SCHEDULES)
        cluster = mixed(rng.choice([1.0, 2.5]), rng.choice([1.0, 4.0]), backend=rng.choice(["cupy", "numpy"]))
        asked = mixed_request(GPT, 4 * dp, cluster, Pins())
        config = PlanConfig(
            dp, tp, pp, 1, 4, schedule,
            runs=rng.choice(list(all_cuts(GPT.layers, pp))), stage_order=rng.choice(stage_orders(cluster, pp)),
        )  # fmt: skip
        objective_ns = plan_by_rules(asked, config, ("data", "tensor")).claims.objective_s * 1e9
        bounds = quick_bound_ns(asked, config), *mixed_bounds_ns(asked, [config])
        assert 0 < max(bounds) <= EXACT * objective_ns
        seen += Counter({"mixed counts": bounds[1] > bounds[0], "uneven": len(set(config.runs)) > 1})
    print(dict(seen))
    assert seen["mixed counts"] >= quota
    assert seen["uneven"] >= quota


@cache
@exchange_left_alone()
def large_plan() -> Plan:
    """Of 3 nodes of 5 slow devices and 3 of 5 fast ones."""
    model = GptConfig(layers=12, width=64, heads=4, sequence=16, vocabulary=128)
    asked = mixed_request(model, 30, mixed(1.0, 3.0, nodes=3, per_node=5), pinned(6, 5))
    return search(replace(asked, gap=0.1), simulate=simulated, budget=Budget.of(60)).plan


def groups_of_stages(plan: Plan) -> list[tuple[int, ...]]:
    return [plan.cluster.groups_of(one.devices) for one in plan.layout.stages.placements]


def layers_of_groups(plan: Plan) -> list[int]:
    """By group, on all of its stages."""
    found = [0] * len(plan.cluster.groups)
    config = plan.config
    runs = config.runs or layer_runs(plan.model.layers, config.schedule, config.pp, config.virtual_stages)
    for run, (group,) in zip(runs, groups_of_stages(plan), strict=True):
        found[group] += run
    return found


@pytest.mark.long
def test_six_nodes_of_five_devices(tmp_path: Path) -> None:
    plan = large_plan()
    assert sorted(groups_of_stages(plan)) == [(0,)] * 3 + [(1,)] * 3
    slow, fast = layers_of_groups(plan)
    assert slow < fast
    assert slow + fast == 12
    assert verify(plan) == []
    path = tmp_path / "plan.json"
    write_plan(plan, path)
    again = read_plan(path)
    assert again == plan
    assert plan_text(again) == path.read_text(encoding="utf-8")
    program = lower_priced(plan.priced)
    assert simulate(program).step_time_s == pytest.approx(plan.claims.step_time_s)


@pytest.mark.long
def test_a_plan_that_is_not_what_it_says_is_refused(tmp_path: Path) -> None:
    content, path = json.loads(plan_text(large_plan())), tmp_path / "plan.json"

    def refusal(change: Any) -> str:
        document = json.loads(json.dumps(content))
        change(document)
        path.write_text(stamped(document), encoding="utf-8")
        try:
            return "\n".join(verify(read_plan(path)))
        except InputError as error:
            return str(error)

    runs = content["config"]["runs"]
    other = [runs[1], runs[0], *runs[2:]] if runs[0] != runs[1] else [runs[-1], *runs[1:-1], runs[0]]
    assert "where config.runs has layer" in refusal(lambda d: d["config"].update(runs=other))
    assert "config.runs: 13 layers in all" in refusal(lambda d: d["config"].update(runs=[*runs[:-1], runs[-1] + 1]))
    assert "no runs of layers" in refusal(lambda d: d["config"].update(runs=runs[1:]))
    assert "no order of the stages" in refusal(lambda d: d["config"].update(stage_order=[0, 0, 1, 2, 3, 4]))
    orders = [list(order) or list(range(6)) for order in stage_orders(large_plan().cluster, 6)]
    wrong = next(order for order in orders if order != content["config"].get("stage_order", list(range(6))))
    assert "config.stage_order has share" in refusal(lambda d: d["config"].update(stage_order=wrong))
    assert "not what all groups of nodes have at least" in refusal(lambda d: d["cluster"]["groups"][0].update(nodes=4))
    assert "cluster.groups.1.nodes" in refusal(lambda d: d["cluster"]["groups"][1].update(nodes="3"))
    assert "a group without nodes" in refusal(lambda d: d["cluster"]["groups"][1].update(nodes=0))
    assert "cluster.groups.0.device" in refusal(lambda d: d["cluster"]["groups"][0]["device"].update(flop_per_s=0.0))
    assert "memory_limit_bytes" in refusal(lambda d: d.update(memory_limit_bytes=2 * ROOMY))
    faster = refusal(lambda d: d["cluster"]["groups"][1]["device"].update(flop_per_s=9e9))
    assert "objective_s" in faster


def test_plans_of_alike_devices_say_nothing_of_groups() -> None:
    training = Training(4, num_micro_batches=2)
    plan = plan_by_rules(request(2, training), config_of(training, pp=2), ("data", "tensor"))
    document = json.loads(plan_text(plan))
    assert "groups" not in document["cluster"]
    assert not {"runs", "stage_order"} & set(document["config"])


def peaks_by_group(plan: Plan) -> list[int]:
    peaks = list(enumerate(plan.claims.peak_memory_bytes))
    return [max(peak for rank, peak in peaks if plan.cluster.groups_of((rank,)) == (group,)) for group in (0, 1)]


@exchange_left_alone()
def found_on(cluster: Cluster) -> Plan:
    return search(mixed_request(GPT, 8, cluster, pinned(2, 2)), simulate=simulated, budget=Budget.of(20)).plan


@pytest.mark.long
def test_every_stage_keeps_to_the_memory_of_its_own_devices() -> None:
    free = found_on(mixed(1.0, 4.0))
    assert layers_of_groups(free)[1] > 3
    slow, fast = peaks_by_group(free)
    assert slow < fast
    there = 3 * fast // 5
    tight = found_on(mixed(1.0, 4.0, memory=(ROOMY, there)))
    assert layers_of_groups(tight)[1] < layers_of_groups(free)[1]
    assert peaks_by_group(tight)[1] <= there
    assert tight.claims.memory_limit_bytes == ROOMY
    assert tight.claims.objective_s > free.claims.objective_s
    assert verify(tight) == []
    same = found_on(mixed(1.0, 4.0, memory=(slow, ROOMY)))
    assert same.claims.objective_s == pytest.approx(free.claims.objective_s, rel=1e-4)
    small = replace(same, cluster=mixed(1.0, 4.0, memory=(peaks_by_group(same)[0] - 1, ROOMY)))
    assert any("memory:" in problem for problem in verify(small))
    with pytest.raises(InfeasibleError):
        found_on(mixed(1.0, 4.0, memory=(1000, 1000)))


@pytest.mark.long
@exchange_left_alone()
def test_unlike_layers_are_dealt_out_by_speed() -> None:
    model = replace(GPT, layers=3)
    asked = mixed_request(model, 8, mixed(1.0, 3.0), replace(pinned(2, 2), micro_batch=None))
    found = search(asked, simulate=simulated, budget=Budget.of(20))
    assert layers_of_groups(found.plan) == [1, 2]
    assert found.plan.claims.lower_bound_s <= found.plan.claims.objective_s
    assert verify(found.plan) == []


@pytest.mark.parametrize("schedule", long_but([Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.ZBV]))
def test_any_runs_in_any_order_are_verified(schedule: Schedule) -> None:
    """With ranks that stand for others, too."""
    asked = mixed_request(GPT, 80, mixed(1.0, 2.0, nodes=5, per_node=4), Pins())
    runs = (1, 5) if schedule is Schedule.ONE_F_ONE_B else (1, 2, 2, 1)
    config = config_of(asked.training_with(PlanConfig(20, 1, 2, 1, 4, schedule)), dp=20, pp=2, schedule=schedule)
    config = replace(config, runs=runs, stage_order=(1, 0))
    plan = plan_by_rules(asked, config, ("data", "tensor"), simulated)
    assert groups_of_stages(plan) == [(1,), (0,)]
    assert verify(plan) == []
    folded, whole = (lower_priced(plan.priced, folds=folds) for folds in (True, False))
    assert folded.alike
    assert not whole.alike
    assert simulate(folded).step_time_s == pytest.approx(simulate(whole).step_time_s, rel=1e-9)


@pytest.mark.long
def test_a_stage_of_several_types_is_simulated_rank_by_rank() -> None:
    asked = mixed_request(GPT, 12, mixed(1.0, 2.0, nodes=2, per_node=3), Pins())
    plan = plan_by_rules(asked, PlanConfig(12, 1, 1, 1, 1, Schedule.ONE_F_ONE_B), ("data", "tensor"), simulated)
    assert groups_of_stages(plan) == [(0, 1)]
    assert verify(plan) == []
    program = lower_priced(plan.priced, folds=True)
    assert not program.alike


@pytest.mark.long
@exchange_left_alone()
def test_uneven_stages_train_as_one_device_does() -> None:
    model = GptConfig(layers=5, width=8, heads=2, sequence=4, vocabulary=16)
    asked = mixed_request(model, 4, mixed(1.0, 3.0, backend="numpy"), pinned(2, 2))
    plan = search(asked, simulate=no_simulation, budget=Budget.of(20)).plan
    assert plan.config.runs
    turned = replace(plan.config, runs=(2, 3), stage_order=(0, 1) if plan.config.stage_order else (1, 0))
    other = plan_by_rules(asked, turned, ("data", "tensor"))
    alone = replace(asked.training, num_micro_batches=2)
    whole = plan_by_rules(request(1, alone, model=model), config_of(alone), ("data", "tensor"))
    losses = [[report.loss for report in train(one, corpus(16), steps=3).reports] for one in (plan, other, whole)]
    assert len(losses[0]) == 3
    assert losses[0] == pytest.approx(losses[2], rel=1e-5)
    assert losses[1] == pytest.approx(losses[2], rel=1e-5)
