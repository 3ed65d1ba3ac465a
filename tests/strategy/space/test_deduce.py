"""Greedy deduction: OneFlow's rules, and that the search is never worse than they are."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from strategy.base.errors import InfeasibleError
from strategy.cost.cost import CostModel
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Graph, Op, Role, Value
from strategy.graph.signature import Signature
from strategy.ilp.solve import solve
from strategy.layout.convert import Converter, lay_out
from strategy.layout.layout import Stages
from strategy.passes.training import Training, training_graph
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import B, NdSbp, P, Split
from strategy.sbp.tensor import Rate, TensorSpec
from strategy.search.candidate.candidate_solve import solve_candidate
from strategy.space.candidate_space import free_rules
from strategy.space.candidates import candidates_of
from strategy.space.deduce import Deduction, SignatureFit, deduce, pick
from strategy.space.layout_problem import layout_problem
from strategy.space.pins import pinned
from strategy.space.rules import along_axes
from tests.support.random_graphs import GraphCase, price, random_case
from tests.support.small_plans import MODEL, cluster, request

S0, S1 = Split(0), Split(1)


def laid(graph: Graph, pins: dict[str, NdSbp], rule: Deduction = Deduction.MATCH_ALL) -> dict[str, Signature]:
    placement = Placement((0, 1), (2,), ("data",))
    stages = Stages((placement,), {op.name: 0 for op in graph.ops})
    converter = Converter(CostModel(cluster(2), {}), (placement,))
    return deduce(graph, stages, converter, pinned(graph, pins, (2,)), rule=rule)


def chain() -> Graph:
    """x -> relu-like a -> a @ w -> b + b."""
    builder = GraphBuilder()
    builder.declare(Value("x", TensorSpec((4, 6)), Rate.MICRO_BATCH, Role.INPUT))
    builder.declare(Value("w", TensorSpec((6, 8)), Rate.STEP, Role.VARIABLE, "zeros"))
    builder.add("a", "gelu", ("x",))
    builder.add("b", "matmul", ("a", "w"))
    builder.add("c", "add", ("b", "b"))
    builder.add("d", "gelu", ("c",))
    return builder.build()


def test_what_is_pinned_flows_on() -> None:
    """The three products of the global-view page: a split of samples, of columns, and of what is summed."""
    found = laid(chain(), {"x": (S0,), "w": (B,)})
    assert [found[name].outputs[0][0] for name in "abcd"] == [S0, S0, S0, S0]
    found = laid(chain(), {"x": (B,), "w": (S1,)})
    assert [found[name].outputs[0][0] for name in "abcd"] == [B, S1, S1, S1]
    found = laid(chain(), {"x": (S1,), "w": (S0,)})
    assert [found[name].outputs[0][0] for name in "abc"] == [S1, P, P]
    assert found["d"].outputs[0][0] != P


def test_nothing_is_split_that_nobody_asked_to_split() -> None:
    found = laid(chain(), {})
    assert {sbp for signature in found.values() for nd in signature.layouts for sbp in nd} == {B}


def test_variables_stay_whole_and_gradients_are_reduced() -> None:
    """Data parallelism follows from the inputs: a weight's gradient is a sum of terms, which its update wants whole."""
    graph = training_graph(MODEL, Training(global_batch=4))
    found = laid(graph, {"ids": (S0,), "labels": (S0,)})
    for op in graph.ops:
        if op.updates and op.kind == "adamw":
            assert all(nd == (B,) for nd in found[op.name].updates)
            assert found[op.name].inputs[0] == (B,)
    products = [op for op in graph.ops if op.kind == "matmul_tn"]
    assert products
    assert all(found[op.name].outputs == ((P,),) for op in products)


def test_the_rules_differ_as_they_say() -> None:
    match_all, dear, cheap = SignatureFit(0.0, 0), SignatureFit(5.0, 1), SignatureFit(4.0, 2)
    free = SignatureFit(0.0, 2)
    assert pick([dear, cheap, match_all], Deduction.MATCH_ALL) == 2
    assert pick([dear, cheap], Deduction.MATCH_ALL) == 1
    assert pick([cheap, dear], Deduction.MATCH_MOST) == 1
    assert pick([dear, cheap], Deduction.LEAST_COST) == 1
    assert pick([free, match_all], Deduction.LEAST_COST) == 1
    assert pick([free, match_all], Deduction.MATCH_ALL) == 1
    assert pick([SignatureFit(1.0, 1), SignatureFit(1.0, 1)], Deduction.MATCH_ALL) == 0


def test_no_signature_is_said() -> None:
    placement = Placement((0, 1), (2,), ("data",))
    graph = chain()
    stages = Stages((placement,), {op.name: 0 for op in graph.ops})

    def refuse(op: Op, signature: Signature) -> bool:
        return op.name != "c"

    with pytest.raises(InfeasibleError, match="no legal signature of op c"):
        deduce(graph, stages, Converter(CostModel(cluster(2), {}), (placement,)), refuse)


@cache
def least_of(seed: int) -> tuple[GraphCase, float]:
    """A random graph, and what no layout of it takes less than."""
    case = random_case(seed, axes=1 + seed % 2, stages=1 + seed % 3 // 2)
    found = solve(layout_problem(case.space).problem)
    assert found.choice is not None
    return case, found.lower_bound


@pytest.mark.parametrize("rule", Deduction)
def test_the_search_is_never_worse_on_random_graphs(rule: Deduction) -> None:
    worse = deduced = 0
    for seed in range(60):
        case, least = least_of(seed)
        space = case.space
        try:
            signatures = deduce(case.graph, case.stages, space.converter, space.allows, rule=rule)
        except InfeasibleError:
            continue
        greedy = price(case, lay_out(case.graph, case.stages, signatures, space.converter)).cost_ns
        deduced += 1
        worse += least < greedy
        assert least <= greedy
    assert deduced >= 40
    assert worse >= 10


@pytest.mark.long
def test_the_search_is_never_worse_on_a_model() -> None:
    asked = request(2, Training(global_batch=2))
    compared = 0
    for config in candidates_of(replace(asked, deduction=Deduction.MATCH_ALL)):
        best = solve_candidate(asked, config, rules=free_rules(config))
        for rule in Deduction:
            greedy = solve_candidate(replace(asked, deduction=rule), config, rules=free_rules(config))
            assert best is not None
            assert greedy is not None
            assert greedy.bound_ns <= greedy.objective_ns
            if config.pp == 1 or rule is Deduction.MATCH_ALL:
                compared += 1
                assert best.objective_ns <= greedy.objective_ns
    assert compared >= 6


def test_a_deduced_layout_that_does_not_fit_says_so() -> None:
    asked = replace(request(2, Training(global_batch=4)), deduction=Deduction.MATCH_ALL, memory_limit_bytes=1000)
    config = next(candidates_of(asked))
    with pytest.raises(InfeasibleError, match=r"deduced layout does not fit: .* 1000 are there"):
        solve_candidate(asked, config, rules=free_rules(config))


def test_rules_of_axes_hold() -> None:
    graph = training_graph(MODEL, Training(global_batch=4))
    placement = Placement((0, 1, 2, 3), (2, 2), ("data", "tensor"))
    stages = Stages((placement,), {op.name: 0 for op in graph.ops})
    keep = along_axes(graph, (2, 2), ("data", "tensor"))
    found = deduce(graph, stages, Converter(CostModel(cluster(4), {}), (placement,)), keep)
    assert all(keep(op, found[op.name]) for op in graph.ops)
