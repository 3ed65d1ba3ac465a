"""Golden layouts: what people write by hand follows from a few pins, and each plan moves exactly what they say it does.

The pins say where weights and activations are; every conversion is one that the layout inserts. What is small runs too,
on threads, and equals one device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from strategy.arrangement import Pipeline
from strategy.builder import GraphBuilder
from strategy.candidates import Pins
from strategy.convert import Converter, lay_out
from strategy.cost import CostModel
from strategy.deduce import Deduction, deduce
from strategy.errors import InfeasibleError
from strategy.graph import Graph, Phase, Role, Value
from strategy.layout import Conversion, Layout, Stages
from strategy.lower import lower
from strategy.models import Model
from strategy.models.mlp import MlpConfig
from strategy.pins import pinned
from strategy.placement import Placement
from strategy.plan import Plan
from strategy.program import ActKind, BoxingTask
from strategy.sbp import format_nd, local_boxes, parse_nd
from strategy.schedule import Schedule
from strategy.tensor import DType, Rate, Shape, TensorSpec
from strategy.training import Training
from tests.campaigns import graphs, transparency
from tests.small_plans import MODEL, cluster, config_of, plan_by_rules, request
from tests.whole_graphs import Operand, WholeCase

TRAINING = Training(global_batch=4, dtype=DType.FLOAT64)
GRADIENTS_WHOLE = {"*:square": ("B", "B")}
"""Every gradient is wanted whole, by the update as by the norm."""
STREAM = ("embed_position", "layers.*.residual?", "layers.*.norm?.norm.rstd", "norm.norm.rstd")
"""What lies between the halves of layers, and the norms on it."""
WHOLE_STREAM = dict.fromkeys(STREAM, ("B", "B"))
REPORTED = {"loss", "loss.count"}


def plan_of(
    model: Model,
    pins: Mapping[str, Sequence[str]],
    *,
    dp: int = 1,
    tp: int = 1,
    rules: tuple[str, str] = ("data", "samples shared"),
    deduction: Deduction | None = None,
) -> Plan:
    layouts = {name: parse_nd(texts) for name, texts in pins.items()}
    asked = replace(request(dp * tp, TRAINING, model=model), pins=Pins(layouts=layouts), deduction=deduction)
    return plan_by_rules(asked, config_of(TRAINING, dp=dp, tp=tp), rules)


def data_parallel(model: Model) -> Plan:
    """Nothing is said but that samples are split and weights are not: the rest is deduced."""
    return plan_of(model, GRADIENTS_WHOLE, dp=2, deduction=Deduction.MATCH_ALL)


def collectives(conversion: Conversion) -> list[ActKind]:
    return [step.kind for step in conversion.steps if step.kind.is_communication]


def moved(plan: Plan, phase: Phase) -> dict[str, list[ActKind]]:
    """Value -> the collectives that convert it, of the values of one phase, without scalars."""
    found: dict[str, list[ActKind]] = {}
    for conversion in plan.layout.conversions:
        value = conversion.copy.value
        producer = plan.graph.producer.get(value)
        if producer is not None and producer.phase is phase and plan.graph.values[value].spec.shape:
            found.setdefault(value, []).extend(collectives(conversion))
    return {value: kinds for value, kinds in found.items() if kinds}


def gradient_of(graph: Graph) -> dict[str, str]:
    """Weight -> its gradient of the step."""
    updates = [op for op in graph.ops if op.kind == "adamw"]
    return {op.updates[0]: op.inputs[0] for op in updates}


@pytest.mark.parametrize("model", [MlpConfig(layers=2, features=6, width=8, classes=5), MODEL], ids=["mlp", "gpt"])
def test_data_parallelism_is_one_all_reduce_per_weight(model: Model) -> None:
    """The sum of gradients emerges from weights that are whole and samples that are split."""
    plan = data_parallel(model)
    found = {c.copy.value: collectives(c) for c in plan.layout.conversions if collectives(c)}
    weights = gradient_of(plan.graph)
    assert len(weights) == sum(":" not in value.name for value in plan.graph.with_role(Role.VARIABLE))
    wanted = [*weights.values(), *REPORTED]
    assert found == {value: [ActKind.ALL_REDUCE] for value in wanted}
    assert len(plan.layout.conversions) == len(wanted)
    assert list(transparency.check(plan)) == []


def test_megatrons_layer_is_two_all_reduces_each_way() -> None:
    """Shoeybi et al. 2019 (arXiv:1909.08053), figure 4: g after either half forward, f after either half backward."""
    plan = plan_of(MODEL, WHOLE_STREAM, tp=2, rules=("data", "tensor"))
    two = [ActKind.ALL_REDUCE]
    layers = range(MODEL.layers)
    forward = {f"layers.{i}.{name}": two for i in layers for name in ("attn.proj.matmul", "mlp.fc2.matmul")}
    backward = {f"layers.{i}.{name}:dx": two for i in layers for name in ("attn.qkv.matmul", "mlp.fc1.matmul")}
    assert moved(plan, Phase.FORWARD) == forward
    assert moved(plan, Phase.BACKWARD) == backward
    assert moved(plan, Phase.UPDATE) == {}
    assert list(transparency.check(plan)) == []


def leaf(builder: GraphBuilder, name: str, shape: Shape, role: Role = Role.INPUT) -> str:
    rate = Rate.STEP if role is Role.VARIABLE else Rate.MICRO_BATCH
    init = "zeros" if role is Role.VARIABLE else ""
    return builder.declare(Value(name, TensorSpec(shape, DType.FLOAT64), rate, role, init))


def laid(graph: Graph, pins: Mapping[str, Sequence[str]], mesh: Shape) -> Layout:
    """The graph on one placement: what is pinned, the rest deduced."""
    size = 1
    for parts in mesh:
        size *= parts
    placement = Placement(tuple(range(size)), mesh, ("nodes", "devices")[: len(mesh)])
    stages = Stages((placement,), {op.name: 0 for op in graph.ops})
    converter = Converter(CostModel(cluster(size), {}), (placement,))
    keep = pinned(graph, {name: parse_nd(texts) for name, texts in pins.items()}, mesh)
    return lay_out(graph, stages, deduce(graph, stages, converter, keep), converter)


def case_of(graph: Graph, layout: Layout) -> WholeCase:
    """The laid-out graph with random operands, to be run on threads."""
    leaves = [value for value in graph.values.values() if value.role is not Role.COMPUTED]
    operands = {value.name: Operand(value.spec, None, 0) for value in leaves}
    cost = CostModel(cluster(len(layout.stages.placements[0].devices)), {})
    return WholeCase(0, graph, (), {}, operands, layout, Pipeline(1, Schedule.GPIPE, False), cost, DType.FLOAT64)


def found_in(layout: Layout) -> list[tuple[str, list[str], list[str], list[ActKind]]]:
    return [
        (c.copy.value, format_nd(c.source.layout), format_nd(c.copy.layout), [step.kind for step in c.steps])
        for c in layout.conversions
    ]


def product() -> Graph:
    """a @ b, of which something that is not linear reads the result."""
    builder = GraphBuilder()
    builder.add("out", "matmul", (leaf(builder, "a", (8, 16)), leaf(builder, "b", (16, 8))))
    builder.add("used", "gelu", ("out",))
    return builder.build()


@pytest.mark.parametrize(
    ("a", "b", "out"),
    [
        ("S(0)", "B", "S(0)"),
        ("B", "S(1)", "S(1)"),
        ("S(1)", "S(0)", "P(sum)"),
        ("P(sum)", "B", "P(sum)"),
        ("B", "P(sum)", "P(sum)"),
        ("B", "B", "B"),
    ],
)
def test_a_product_has_the_layout_of_the_table(a: str, b: str, out: str) -> None:
    """Yuan et al. 2021 (arXiv:2110.15032), table 1."""
    layout = laid(product(), {"a": (a,), "b": (b,)}, (2,))
    assert format_nd(layout.signatures["out"].outputs[0]) == [out]
    reduced = [value for value, *_, kinds in found_in(layout) if kinds != [ActKind.SLICE]]
    assert reduced == (["out"] if out == "P(sum)" else [])
    assert list(graphs.check(case_of(product(), layout))) == []


def test_two_operands_split_alike_have_no_product() -> None:
    with pytest.raises(InfeasibleError, match=r"no legal signature of op out \(matmul\) has a as \['S\(0\)'\]"):
        laid(product(), {"a": ("S(0)",), "b": ("S(0)",)}, (2,))


def test_data_parallel_before_model_parallel_is_one_all_gather() -> None:
    """Yuan et al. 2021, figure 7: the first product splits samples, the second columns."""
    builder = GraphBuilder()
    first = builder.add("first", "matmul", (leaf(builder, "x", (4, 6)), leaf(builder, "w0", (6, 8))))[0]
    builder.add("second", "matmul", (first, leaf(builder, "w1", (8, 6))))
    graph = builder.build()
    layout = laid(graph, {"x": ("S(0)",), "w0": ("B",), "w1": ("S(1)",)}, (2,))
    assert found_in(layout) == [("first", ["S(0)"], ["B"], [ActKind.ALL_GATHER])]
    assert list(graphs.check(case_of(graph, layout))) == []


TWO_AXES = {"a": ("S(0)", "S(1)"), "b": ("B", "S(0)"), "used": ("S(0)", "B")}


def test_a_product_over_two_axes_is_reduced_along_the_second() -> None:
    layout = laid(product(), TWO_AXES, (2, 2))
    assert format_nd(layout.signatures["out"].outputs[0]) == ["S(0)", "P(sum)"]
    assert found_in(layout) == [("out", ["S(0)", "P(sum)"], ["S(0)", "B"], [ActKind.ALL_REDUCE])]
    assert list(graphs.check(case_of(product(), layout))) == []


def test_the_reduction_along_the_second_axis_has_a_group_per_first_coordinate() -> None:
    """OneFlow's topology (4, 8): four groups of the eight ranks that share their first coordinate."""
    layout = laid(product(), TWO_AXES, (4, 8))
    program = lower(product(), layout, Pipeline(1, Schedule.GPIPE, False), CostModel(cluster(32), {}))
    groups = {actor.task.group for actor in program.actors if isinstance(actor.task, BoxingTask)}
    assert groups == {tuple(range(first, first + 8)) for first in (0, 8, 16, 24)}


def test_a_weight_that_is_whole_over_nodes_has_replicas_across_them() -> None:
    """[B, S(0)] over 2 x 4: replicas {0, 4}, {1, 5}, {2, 6}, {3, 7}; shards {0..3}, {4..7}."""
    boxes = local_boxes((8, 4), parse_nd(["B", "S(0)"]), (2, 4))
    holders: dict[object, set[int]] = {}
    for rank, box in enumerate(boxes):
        holders.setdefault(box, set()).add(rank)
    assert sorted(holders.values(), key=min) == [{0, 4}, {1, 5}, {2, 6}, {3, 7}]
    for node in (range(4), range(4, 8)):
        assert [boxes[rank][0] for rank in node] == [(0, 2), (2, 4), (4, 6), (6, 8)]
