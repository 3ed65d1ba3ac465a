"""Golden layouts: what people write by hand follows from a few pins, and each plan moves exactly what they say it does.

The pins say where weights and activations are; every conversion is one that the layout inserts. What is small runs too,
on threads, and equals one device.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from strategy.arrangement import Pipeline
from strategy.autodiff import differentiate
from strategy.builder import GraphBuilder
from strategy.candidates import Pins
from strategy.convert import Converter, lay_out
from strategy.cost import CostModel
from strategy.deduce import Deduction, deduce
from strategy.errors import InfeasibleError
from strategy.graph import Graph, Phase, Role, Value
from strategy.layout import Conversion, Layout, Stages, wanted_copies
from strategy.losses import margin_softmax
from strategy.lower import lower
from strategy.models import Model
from strategy.models.mlp import MlpConfig
from strategy.module import Tensor, Tracer
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
MEGATRON = {
    "layers.*.attn.qkv.weight": ("B", "S(1)"),
    "layers.*.attn.proj.weight": ("B", "S(0)"),
    "layers.*.mlp.fc1.weight": ("B", "S(1)"),
    "layers.*.mlp.fc2.weight": ("B", "S(0)"),
}
SPLIT_VOCABULARY = {"token": ("B", "S(0)"), "logits": ("B", "S(2)"), "loss:dlogits": ("B", "S(2)")}
STREAM = ("embed_position", "layers.*.residual?", "layers.*.norm?.norm.rstd", "norm.norm.rstd")
"""What lies between the halves of layers, and the norms on it."""
WHOLE_STREAM = dict.fromkeys(STREAM, ("B", "B"))
SPLIT_STREAM = dict.fromkeys(STREAM, ("B", "S(1)"))
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


def activations(plan: Plan, phase: Phase) -> Counter[ActKind]:
    """The collectives on values of the residual stream's shape."""
    width = plan.graph.values["embed_position"].spec.shape
    return Counter(
        kind
        for value, kinds in moved(plan, phase).items()
        for kind in kinds
        if plan.graph.values[value].spec.shape == width
    )


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


def test_a_split_vocabulary_never_gathers_logits() -> None:
    """Two figures per token travel for the loss, and what the embedding and the head sum up."""
    plan = plan_of(MODEL, {**MEGATRON, **SPLIT_VOCABULARY, **WHOLE_STREAM}, tp=2)
    forward, backward = moved(plan, Phase.FORWARD), moved(plan, Phase.BACKWARD)
    one = [ActKind.ALL_REDUCE]
    assert {name: kinds for name, kinds in forward.items() if not name.startswith("layers.")} == {
        "embed": one,
        "loss.max": one,
        "loss.sum": one,
    }
    assert {name: kinds for name, kinds in backward.items() if not name.startswith("layers.")} == {"logits:dx": one}
    assert activations(plan, Phase.FORWARD) == {ActKind.ALL_REDUCE: 2 * MODEL.layers + 1}
    assert activations(plan, Phase.BACKWARD) == {ActKind.ALL_REDUCE: 2 * MODEL.layers + 1}
    largest = max(plan.graph.values[name].spec.shape[-1] for name in (*forward, *backward))
    assert largest < MODEL.vocabulary
    assert list(transparency.check(plan)) == []


def test_sequence_parallelism_scatters_and_gathers_twice_each_way() -> None:
    """Korthikanti et al. 2022 (arXiv:2205.05198), figure 5; embedding and head add one of each.

    Norms see a part of the positions, so that the gradients of their gains are reduced, once per step.
    """
    plan = plan_of(MODEL, {**MEGATRON, **SPLIT_VOCABULARY, **SPLIT_STREAM}, tp=2)
    each = {ActKind.REDUCE_SCATTER: 2 * MODEL.layers + 1, ActKind.ALL_GATHER: 2 * MODEL.layers + 1}
    assert activations(plan, Phase.FORWARD) == each
    assert activations(plan, Phase.BACKWARD) == each
    for layer in range(MODEL.layers):
        assert in_layer(plan, layer, Phase.FORWARD) == {ActKind.REDUCE_SCATTER: 2, ActKind.ALL_GATHER: 2}
        assert in_layer(plan, layer, Phase.BACKWARD) == {ActKind.REDUCE_SCATTER: 2, ActKind.ALL_GATHER: 2}
    rest = {n: k for n, k in moved(plan, Phase.BACKWARD).items() if len(plan.graph.values[n].spec.shape) == 1}
    norms = [f"layers.{i}.norm{j}.norm" for i in range(MODEL.layers) for j in (1, 2)]
    gains = [f"{norm}:grad.{part}" for norm in (*norms, "norm.norm") for part in ("dgamma", "dbeta")]
    assert rest == {gain: [ActKind.ALL_REDUCE] for gain in gains}
    assert list(transparency.check(plan)) == []


def in_layer(plan: Plan, layer: int, phase: Phase) -> Counter[ActKind]:
    """What a layer scatters of what it sums, and gathers of what it reads."""
    readers = wanted_copies(plan.graph, plan.layout.stages, plan.layout.signatures)
    width = plan.graph.values["embed_position"].spec.shape
    found: Counter[ActKind] = Counter()
    for conversion in plan.layout.conversions:
        producer = plan.graph.producer.get(conversion.copy.value)
        if producer is None or producer.phase is not phase:
            continue
        if plan.graph.values[conversion.copy.value].spec.shape != width:
            continue
        for kind in collectives(conversion):
            op = producer if kind is ActKind.REDUCE_SCATTER else readers[conversion.copy][0]
            found[kind] += op.layer == layer
    return found


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


SGD = {"momentum": 0.0, "nesterov": 0, "weight_decay": 0.0}
WHOLE_ENDS = {"x": ("B",), "w0": ("B",), "z": ("B",)}


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


CLASSES = 8
LABELS = TensorSpec((4,), DType.INT32)
ROWS = {"loss.max": [ActKind.ALL_REDUCE], "loss.sum": [ActKind.ALL_REDUCE]}


def moved_in(graph: Graph, layout: Layout) -> dict[str, list[ActKind]]:
    """Value -> the collectives that convert it, scalars aside."""
    found: dict[str, list[ActKind]] = {}
    for conversion in layout.conversions:
        if collectives(conversion) and graph.values[conversion.copy.value].spec.shape:
            found.setdefault(conversion.copy.value, []).extend(collectives(conversion))
    return found


SPLIT_CLASSES = {"w0": ("B",), "head": ("S(1)",), "loss.log": ("B",), "loss.margin:dcosine": ("S(1)",)}


def test_a_class_split_head_moves_two_figures_per_face_and_the_gradient_of_the_features() -> None:
    """Deng et al. 2019 (arXiv:1801.07698): neither logits nor the classes' directions travel."""
    graph = face_head()
    layout = laid(graph, {**SPLIT_CLASSES, "x": ("B",), "loss.features*": ("B",)}, (2,))
    assert moved_in(graph, layout) == {**ROWS, "loss.cosine:dx": [ActKind.ALL_REDUCE]}
    assert list(graphs.check(case_of(graph, layout))) == []


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
    assert list(graphs.check(case_of(graph, layout))) == []


def test_a_column_split_weight_gathers_forward_and_reduces_backward() -> None:
    graph = pair(before=False)
    layout = laid(graph, {**WHOLE_ENDS, "only": ("S(1)",), "h:*": ("B",), "only.in:dx": ("B",)}, (2,))
    assert by_phase(graph, layout) == {
        Phase.FORWARD: [("only.out", [ActKind.ALL_GATHER])],
        Phase.BACKWARD: [("only.out:dx", [ActKind.ALL_REDUCE])],
    }
    assert list(graphs.check(case_of(graph, layout))) == []


def test_a_row_split_weight_reduces_forward_and_gathers_backward() -> None:
    graph = pair(before=False)
    layout = laid(graph, {**WHOLE_ENDS, "only": ("S(0)",), "only.in:dx": ("B",)}, (2,))
    assert by_phase(graph, layout) == {
        Phase.FORWARD: [("only.out", [ActKind.ALL_REDUCE])],
        Phase.BACKWARD: [("only.out:dx", [ActKind.ALL_GATHER])],
    }
    assert list(graphs.check(case_of(graph, layout))) == []


def test_columns_then_rows_reduce_once_each_way() -> None:
    graph = pair(before=True)
    layout = laid(graph, {**WHOLE_ENDS, "col": ("S(1)",), "row": ("S(0)",), "col.in:dx": ("B",)}, (2,))
    assert by_phase(graph, layout) == {
        Phase.FORWARD: [("row.out", [ActKind.ALL_REDUCE])],
        Phase.BACKWARD: [("col.out:dx", [ActKind.ALL_REDUCE])],
    }
    assert list(graphs.check(case_of(graph, layout))) == []
