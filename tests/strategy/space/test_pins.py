"""Pins in code: any value's layout, any op's stage or devices; and everything that is illegal about them at once."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.base.budget import Budget
from strategy.base.errors import GraphError, InfeasibleError, InputError
from strategy.graph.graph import Graph, Op
from strategy.graph.signature import op_signatures
from strategy.models.llama import LlamaConfig
from strategy.passes.training import Training, training_graph
from strategy.plan.verify import verify
from strategy.sbp.sbp import B, P, Split
from strategy.search.search import search
from strategy.space.candidates import candidates_of
from strategy.space.pins import check_pins, pinned, placement_problems
from strategy.space.request import Pins
from tests.support.small_plans import MODEL, no_simulation, request, simulated

TRAINING = Training(global_batch=4)
GRAPH = training_graph(MODEL, TRAINING)


def test_one_report_holds_every_illegal_pin() -> None:
    with pytest.raises(GraphError) as caught:
        check_pins(
            GRAPH,
            layouts={
                "layers.0.mlp.fc9.weight": (B, B),
                "layers.0.mlp.fc1.weight": (Split(2), B),
                "ids": (P, B),
                "token": (B,),
                "layers.1.mlp.fc?.bias": (B, Split(1)),
            },
            stages={"layers.7.*": 0, "layers.0.*": 1},
            placements={"layers.0.mlp.*": (0, 1), "layers.1.*": (2, 2), "loss*": (3, 2), "logits": (1, 2)},
            axes=2,
        )
    wanted = (
        "[sbp] 'layers.0.mlp.fc9.weight': a pin matches no value; did you mean",
        "[sbp] 'layers.0.mlp.fc1.weight': value layers.0.mlp.fc1.weight: split beyond the dims (got 'S(2)', expected a",
        "[sbp] 'ids': value ids: terms of integers (got 'P(sum)', expected B, S, P(max) or P(min) of int32)",
        "[sbp] 'token': one SBP per mesh axis is needed (got ['B'], expected 2)",
        "[sbp] 'layers.1.mlp.fc?.bias': value layers.1.mlp.fc1.bias: split beyond the dims (got 'S(1)', expected a dim",
        "[sbp] 'layers.1.mlp.fc?.bias': value layers.1.mlp.fc2.bias: split beyond the dims (got 'S(1)', expected a dim",
        "[stage] 'layers.7.*': a pin matches no op",
        "[placement] 'layers.1.*': a device stands twice in a placement (got [2, 2])",
        "[placement] 'loss*': no stage (got [3, 2], expected consecutive ranks",
        "[placement] 'logits': no stage (got [1, 2], expected stages of 2 devices, which begin at 0, 2, 4",
    )
    problems = caught.value.problems
    for found, start in zip(problems, wanted, strict=False):
        assert found.startswith(start), found
    conflicts = problems[len(wanted) :]
    assert conflicts
    for found in conflicts:
        assert found.startswith("[placement] 'layers.0.mlp.*': op layers.0.mlp.")
        assert "pinned to another stage too (got 1, expected stage 0" in found


def test_one_illegal_pin_is_reported_as_itself() -> None:
    with pytest.raises(InputError, match="pin matches no op") as caught:
        check_pins(GRAPH, stages={"nothing": 0}, axes=2)
    assert not isinstance(caught.value, GraphError)


def test_what_a_mesh_does_not_allow_names_every_op() -> None:
    pins = {"layers.0.attn.qkv": (Split(0),), "layers.?.mlp.gelu": (P,), "layers.1.mlp.fc1.matmul": (Split(0),)}
    with pytest.raises(InputError, match="pin matches no value"):
        pinned(GRAPH, pins, (2,))
    del pins["layers.0.attn.qkv"]
    with pytest.raises(InfeasibleError) as caught:
        pinned(GRAPH, pins, (5,))
    text = str(caught.value)
    assert "no layout satisfies the pins on a mesh of (5,)" in text
    assert "value layers.1.mlp.fc1.matmul: a dim is split into more parts than it has rows" in text
    assert "no legal signature of op layers.0.mlp.gelu (gelu) has layers.0.mlp.gelu as ['P(sum)']" in text
    assert "no legal signature of op layers.1.mlp.gelu (gelu)" in text


def test_devices_are_stages_by_their_place() -> None:
    pins = Pins(stages={"layers.0.*": 0}, placements={"layers.1.*": (2, 3)})
    assert pins.numbered_stages == {"layers.0.*": 0, "layers.1.*": 1}
    assert pins.devices_per_stage == 2
    asked = replace(request(4, TRAINING), pins=pins)
    assert {config.pp for config in candidates_of(asked)} == {2}
    assert {config.pp for config in candidates_of(replace(asked, pins=Pins()))} == {1, 2}


def test_wrong_devices_are_refused_where_they_are_written() -> None:
    with pytest.raises(GraphError) as caught:
        Pins(placements={"a": (0, 0), "b": (), "c": (0, 1, 2)})
    assert len(caught.value.problems) == 3
    assert "stages differ in size" in caught.value.problems[2]
    assert list(placement_problems({"a": (0, 1), "b": (2, 3)})) == []


def test_a_pinned_placement_holds() -> None:
    training = Training(global_batch=2)
    pins = Pins(placements={"layers.0.mlp.*": (1,), "layers.0.residual2": (1,)}, layouts={"token": (B, B)})
    plan = search(replace(request(2, training), pins=pins), simulate=no_simulation, budget=Budget.of(60)).plan
    stages = plan.layout.stages
    for op in plan.graph.ops:
        if op.name.startswith("layers.0.mlp."):
            assert stages.placement(op.name).devices == (1,)


def grouped(heads: int, key_heads: int) -> LlamaConfig:
    """Queries that share keys and values."""
    return LlamaConfig(layers=1, width=48, heads=heads, key_heads=key_heads, hidden=32, sequence=8, vocabulary=64)


def attention_of(model: LlamaConfig) -> tuple[Graph, Op]:
    graph = training_graph(model, TRAINING)
    return graph, next(op for op in graph.ops if op.kind == "attention")


@pytest.mark.parametrize(
    ("heads", "key_heads", "parts", "splits"), [(8, 2, 2, True), (8, 2, 4, False), (8, 4, 4, True), (6, 3, 2, False)]
)
def test_key_heads_are_split_only_where_each_rank_gets_whole_groups(
    heads: int, key_heads: int, parts: int, splits: bool
) -> None:
    """Fewer key heads than ranks of the tensor axis: queries are split all the same, keys and values stay whole."""
    graph, op = attention_of(grouped(heads, key_heads))
    found = {(s.inputs[0][1], s.inputs[1][1]) for s in op_signatures(graph, op, (1, parts))}
    assert ((Split(2), Split(2)) in found) is splits
    assert (Split(2), B) in found


def test_a_pinned_degree_beyond_the_key_heads_is_refused_with_the_reason() -> None:
    model = grouped(8, 2)
    keys = attention_of(model)[1].inputs[1]
    pins = Pins(dp=1, tp=4, pp=1, layouts={keys: (B, Split(2))})
    asked = replace(request(4, TRAINING, model=model), pins=pins)
    with pytest.raises(InfeasibleError) as caught:
        search(asked, simulate=no_simulation, budget=Budget.of(30))
    assert f"value {keys}: a dim is split into more parts than it has rows" in str(caught.value)
    assert "expected at least 4 rows, found 2" in str(caught.value)


def test_key_heads_that_no_degree_divides_are_refused_with_what_is_legal() -> None:
    graph, op = attention_of(grouped(6, 3))
    keys = op.inputs[1]
    with pytest.raises(InfeasibleError) as caught:
        pinned(graph, {keys: (B, Split(2))}, (1, 2))
    assert f"no legal signature of op {op.name} (attention) has {keys} as ['B', 'S(2)']; it may have " in str(
        caught.value
    )
    assert f"{keys} as ['B', 'B'], or {keys} as ['B', 'S(0)']" in str(caught.value)


@pytest.mark.long
def test_a_degree_beyond_the_key_heads_is_planned_with_whole_keys() -> None:
    model = grouped(8, 2)
    asked = replace(request(4, TRAINING, model=model), pins=Pins(dp=1, tp=4, pp=1))
    plan = search(asked, simulate=simulated, budget=Budget.of(30)).plan
    assert plan.config.tp == 4
    assert verify(plan) == []
