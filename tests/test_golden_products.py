"""Golden products: small graphs of products and of ArcFace's head, laid out as the sources say.

The pins say where operands are; what follows is deduced, and every conversion is one that the layout inserts. Each
graph runs too, on threads, and equals one device.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pytest

from strategy.base.errors import InfeasibleError
from strategy.cost.cost import CostModel
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Graph, Phase, Role, Value
from strategy.layout.arrangement import Pipeline
from strategy.layout.convert import Converter, lay_out
from strategy.layout.layout import Conversion, Layout, Stages
from strategy.layout.schedule import Schedule
from strategy.lowering.lower import lower
from strategy.nn.losses import margin_softmax
from strategy.nn.tracer import Tensor, Tracer
from strategy.passes.autodiff import differentiate
from strategy.program.program import ActKind, BoxingTask
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import format_nd, local_boxes, parse_nd
from strategy.sbp.tensor import DType, Rate, Shape, TensorSpec
from strategy.space.deduce import deduce
from strategy.space.pins import pinned
from tests.campaigns import layouts
from tests.support.small_plans import cluster
from tests.support.whole_graphs import Operand, WholeCase

SGD = {"momentum": 0.0, "nesterov": 0, "weight_decay": 0.0}
WHOLE_ENDS = {"x": ("B",), "w0": ("B",), "z": ("B",)}
TWO_AXES = {"a": ("S(0)", "S(1)"), "b": ("B", "S(0)"), "used": ("S(0)", "B")}
CLASSES = 8
LABELS = TensorSpec((4,), DType.INT32)
ROWS = {"loss.max": [ActKind.ALL_REDUCE], "loss.sum": [ActKind.ALL_REDUCE]}
SPLIT_CLASSES = {"w0": ("B",), "head": ("S(1)",), "loss.log": ("B",), "loss.margin:dcosine": ("S(1)",)}
"""Faces are whole or split; classes and what is scored of them are split."""


def collectives(conversion: Conversion) -> list[ActKind]:
    return [step.kind for step in conversion.steps if step.kind.is_communication]


def leaf(builder: GraphBuilder, name: str, shape: Shape, role: Role = Role.INPUT) -> str:
    rate = Rate.STEP if role is Role.VARIABLE else Rate.MICRO_BATCH
    init = "zeros" if role is Role.VARIABLE else ""
    return builder.declare(Value(name, TensorSpec(shape, DType.FLOAT64), rate, role, init))


def laid(graph: Graph, pins: Mapping[str, Sequence[str]], mesh: Shape) -> Layout:
    """The graph on one placement: what is pinned, the rest deduced."""
    size = math.prod(mesh)
    placement = Placement(tuple(range(size)), mesh, ("nodes", "devices")[: len(mesh)])
    stages = Stages((placement,), {op.name: 0 for op in graph.ops})
    converter = Converter(CostModel(cluster(size), {}), (placement,))
    keep = pinned(graph, {name: parse_nd(texts) for name, texts in pins.items()}, mesh)
    return lay_out(graph, stages, deduce(graph, stages, converter, keep), converter)


def case_of(graph: Graph, layout: Layout) -> WholeCase:
    """The laid-out graph with random operands, to be run on threads."""
    leaves = [value for value in graph.values.values() if value.role is not Role.COMPUTED]
    bounds = {"labels": (0.0, float(CLASSES))}
    operands = {value.name: Operand(value.spec, bounds.get(value.name), 0) for value in leaves}
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
    assert list(layouts.check(case_of(product(), layout))) == []


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
    assert list(layouts.check(case_of(graph, layout))) == []


def test_a_product_over_two_axes_is_reduced_along_the_second() -> None:
    layout = laid(product(), TWO_AXES, (2, 2))
    assert format_nd(layout.signatures["out"].outputs[0]) == ["S(0)", "P(sum)"]
    assert found_in(layout) == [("out", ["S(0)", "P(sum)"], ["S(0)", "B"], [ActKind.ALL_REDUCE])]
    assert list(layouts.check(case_of(product(), layout))) == []


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


def pair(before: bool) -> Graph:
    """gelu -> product -> gelu -> product -> gelu with their gradients, or with one product alone."""
    builder = GraphBuilder()
    x = builder.add("h", "matmul", (leaf(builder, "x", (4, 6)), leaf(builder, "w0", (6, 6), Role.VARIABLE)))[0]
    for name in ("col", "row") if before else ("only",):
        w = leaf(builder, name, (6, 6), Role.VARIABLE)
        x = builder.add(f"{name}.out", "matmul", (builder.add(f"{name}.in", "gelu", (x,))[0], w))[0]
    loss = builder.add("loss", "square_sum", builder.add("z", "gelu", (x,)))[0]
    return with_updates(builder, loss)


def with_updates(builder: GraphBuilder, loss: str) -> Graph:
    """A training step by plain SGD."""
    scalars = [leaf(builder, name, ()) for name in ("factor", "rate")]
    for name, terms in differentiate(builder, loss).items():
        gradient = terms[0] if len(terms) == 1 else builder.add(f"{name}:grad", "add_n", terms, phase=Phase.UPDATE)[0]
        builder.add(f"{name}:sgd", "sgd", (gradient, *scalars), updates=(name,), attrs=SGD, phase=Phase.UPDATE)
    return builder.build(loss=loss)


def by_phase(graph: Graph, layout: Layout) -> dict[Phase, list[tuple[str, list[ActKind]]]]:
    found: dict[Phase, list[tuple[str, list[ActKind]]]] = {Phase.FORWARD: [], Phase.BACKWARD: []}
    for conversion in layout.conversions:
        if collectives(conversion):
            value = conversion.copy.value
            found[graph.producer[value].phase].append((value, collectives(conversion)))
    return found


def face_head() -> Graph:
    """Features, and ArcFace's loss over eight classes."""
    tracer = Tracer()
    x, labels = tracer.input("x", TensorSpec((4, 6), DType.FLOAT64)), tracer.input("labels", LABELS)
    w0, head = (Tensor(tracer, leaf(tracer.graph, n, (6, k), Role.VARIABLE)) for n, k in (("w0", 6), ("head", CLASSES)))
    loss, _ = margin_softmax(x.apply("features", "matmul", w0), head, labels)
    return with_updates(tracer.graph, loss.name)


def moved_in(graph: Graph, layout: Layout) -> dict[str, list[ActKind]]:
    """Value -> the collectives that convert it, scalars aside."""
    found: dict[str, list[ActKind]] = {}
    for conversion in layout.conversions:
        if collectives(conversion) and graph.values[conversion.copy.value].spec.shape:
            found.setdefault(conversion.copy.value, []).extend(collectives(conversion))
    return found


def test_a_class_split_head_moves_two_figures_per_face_and_the_gradient_of_the_features() -> None:
    """Deng et al. 2019 (arXiv:1801.07698): neither logits nor the classes' directions travel."""
    graph = face_head()
    layout = laid(graph, {**SPLIT_CLASSES, "x": ("B",), "loss.features*": ("B",)}, (2,))
    assert moved_in(graph, layout) == {**ROWS, "loss.cosine:dx": [ActKind.ALL_REDUCE]}
    assert list(layouts.check(case_of(graph, layout))) == []


def test_a_class_split_head_behind_data_parallelism_gathers_features_as_well() -> None:
    """An et al. 2021 (arXiv:2010.05222), figure 2: faces are split before the head, classes within it."""
    graph = face_head()
    by_face = {"x": ("S(0)",), "loss.features.*": ("S(0)",), "loss.features:*": ("S(0)",)}
    layout = laid(graph, {**SPLIT_CLASSES, **by_face}, (2,))
    assert moved_in(graph, layout) == {
        "loss.features": [ActKind.ALL_GATHER],
        **ROWS,
        "loss.cosine:dx": [ActKind.REDUCE_SCATTER],
        "features:dw": [ActKind.ALL_REDUCE],
    }
    assert list(layouts.check(case_of(graph, layout))) == []


def test_a_column_split_weight_gathers_forward_and_reduces_backward() -> None:
    graph = pair(before=False)
    layout = laid(graph, {**WHOLE_ENDS, "only": ("S(1)",), "h:*": ("B",), "only.in:dx": ("B",)}, (2,))
    assert by_phase(graph, layout) == {
        Phase.FORWARD: [("only.out", [ActKind.ALL_GATHER])],
        Phase.BACKWARD: [("only.out:dx", [ActKind.ALL_REDUCE])],
    }
    assert list(layouts.check(case_of(graph, layout))) == []


def test_a_row_split_weight_reduces_forward_and_gathers_backward() -> None:
    graph = pair(before=False)
    layout = laid(graph, {**WHOLE_ENDS, "only": ("S(0)",), "only.in:dx": ("B",)}, (2,))
    assert by_phase(graph, layout) == {
        Phase.FORWARD: [("only.out", [ActKind.ALL_REDUCE])],
        Phase.BACKWARD: [("only.out:dx", [ActKind.ALL_GATHER])],
    }
    assert list(layouts.check(case_of(graph, layout))) == []


def test_columns_then_rows_reduce_once_each_way() -> None:
    graph = pair(before=True)
    layout = laid(graph, {**WHOLE_ENDS, "col": ("S(1)",), "row": ("S(0)",), "col.in:dx": ("B",)}, (2,))
    assert by_phase(graph, layout) == {
        Phase.FORWARD: [("row.out", [ActKind.ALL_REDUCE])],
        Phase.BACKWARD: [("col.out:dx", [ActKind.ALL_REDUCE])],
    }
    assert list(layouts.check(case_of(graph, layout))) == []
