"""Graphs: every problem reported at once, by op and value; queries and template names."""

from __future__ import annotations

import dataclasses

import pytest

from strategy.base.errors import GraphError
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Graph, Op, Phase, Role, Value, check_graph, layer_of, of_op, of_value, template_of
from strategy.models.gpt import GptConfig
from strategy.passes.training import Training, training_graph
from strategy.sbp.placement import Space
from strategy.sbp.tensor import Rate, TensorSpec

SPEC = TensorSpec((4, 4))


def values(**roles: Role) -> dict[str, Value]:
    return {name: Value(name, SPEC, role=role) for name, role in roles.items()}


def problems(graph: Graph) -> tuple[str, ...]:
    with pytest.raises(GraphError) as caught:
        check_graph(graph)
    assert all(problem in str(caught.value) for problem in caught.value.problems)
    return caught.value.problems


def test_all_problems_come_at_once_with_op_and_value() -> None:
    graph = Graph(
        values(x=Role.INPUT, w=Role.VARIABLE, y=Role.COMPUTED, late=Role.COMPUTED, never=Role.COMPUTED),
        (
            Op("a", "add", ("x", "ghost"), ("y",)),
            Op("a", "gelu", ("late",), ("x",)),
            Op("b", "gelu", ("x",), ("late", "phantom")),
            Op("c", "gelu", ("x",), ("y",)),
            Op("d", "adamw", ("y",), (), updates=("x", "spirit")),
            Op("e", "gelu", ("y",), ()),
        ),
        loss="nothing",
    )
    assert problems(graph) == (
        "op a: reads ghost, which the graph does not hold",
        "op a: the name is used twice",
        "op a: reads late before anything writes it (a cycle, or a wrong order)",
        "op a: writes x, which is already written",
        "op b: writes phantom, which the graph does not hold",
        "op c: writes y, which is already written",
        "op d: reads spirit, which the graph does not hold",
        "op d: updates x, which is not a variable",
        "value never: nothing writes it",
        "the loss nothing is no value of the graph",
    )


def test_an_op_works_in_one_memory_unless_it_moves() -> None:
    named = values(x=Role.INPUT, y=Role.COMPUTED, z=Role.COMPUTED, sum=Role.COMPUTED, back=Role.COMPUTED)
    named["y"] = dataclasses.replace(named["y"], space=Space.HOST)
    ops = (
        Op("there", "to_host", ("x",), ("y",)),
        Op("again", "to_device", ("x",), ("z",)),
        Op("both", "add", ("x", "y"), ("sum",)),
        Op("over", "gelu", ("y",), ("back",)),
    )
    assert problems(Graph(named, ops)) == (
        "op again: to_device moves x, which is there already",
        "op both: add reads from both memories (got x of the device, y of the host); to_global brings them to one",
        "op over: writes back of the device, and computes on the host",
    )


def test_the_forward_pass_is_over_when_the_backward_pass_begins() -> None:
    named = values(x=Role.INPUT, y=Role.COMPUTED, dy=Role.COMPUTED, sum=Role.COMPUTED, late=Role.COMPUTED)
    graph = Graph(
        named,
        (
            Op("y", "gelu", ("x",), ("y",)),
            Op("dy", "gelu_grad", ("y", "x"), ("dy",), phase=Phase.BACKWARD),
            Op("sum", "accumulate", ("dy",), ("sum",), phase=Phase.BACKWARD),
            Op("late", "gelu", ("y",), ("late",)),
        ),
    )
    assert problems(graph) == ("op late: is of the forward pass, after op dy has begun the backward pass",)


def test_a_cycle_is_a_problem() -> None:
    graph = Graph(
        values(a=Role.COMPUTED, b=Role.COMPUTED), (Op("one", "gelu", ("b",), ("a",)), Op("two", "gelu", ("a",), ("b",)))
    )
    assert problems(graph) == ("op one: reads b before anything writes it (a cycle, or a wrong order)",)


def test_an_op_does_not_read_what_it_writes() -> None:
    graph = Graph(values(a=Role.COMPUTED), (Op("one", "gelu", ("a",), ("a",)),))
    assert problems(graph) == ("op one: reads a before anything writes it (a cycle, or a wrong order)",)


def test_a_graph_without_ops_is_a_problem() -> None:
    assert problems(Graph({}, ())) == ("the graph has no ops",)


def test_a_variable_is_updated_once_and_read_before() -> None:
    """Whoever reads it later would mean the new value by the order, and the old one by the credits."""
    graph = Graph(
        values(x=Role.INPUT, w=Role.VARIABLE, y=Role.COMPUTED),
        (
            Op("first", "adamw", ("x",), (), updates=("w",)),
            Op("second", "adamw", ("x",), (), updates=("w",)),
            Op("late", "gelu", ("w",), ("y",)),
        ),
    )
    assert problems(graph) == (
        "op second: updates w, which op first has already updated",
        "op late: reads w after op first has updated it",
    )


def test_queries() -> None:
    graph = training_graph(GptConfig(2, 8, 2, 5, 11), Training(global_batch=2))
    for op in graph.ops:
        assert graph.by_name[op.name] is op
        assert all(graph.producer[name] is op for name in op.outputs)
        assert all(op in graph.consumers[name] for name in op.inputs)
        assert all(graph.updater[name] is op for name in op.updates)
    for name, readers in graph.consumers.items():
        assert list(readers) == [op for op in graph.ops if name in op.inputs]
    assert graph.num_layers == 2
    assert {value.name for value in graph.with_role(Role.INPUT)} == {"ids", "labels"}
    assert set(graph.updater) == {value.name for value in graph.with_role(Role.VARIABLE)}


def test_layers_fold_to_the_same_templates() -> None:
    graph = training_graph(GptConfig(3, 8, 2, 5, 11), Training(global_batch=2))
    by_layer = [
        [(graph.template_of(op), op.kind, op.phase) for op in graph.ops if op.layer == layer] for layer in range(3)
    ]
    assert sorted(by_layer[0]) == sorted(by_layer[1]) == sorted(by_layer[2])
    assert len(by_layer[0]) > 20
    for phase in Phase:
        order = [[name for name, _, found in rows if found is phase] for rows in by_layer]
        assert order[0] == order[1] == order[2]


@pytest.mark.parametrize(
    ("path", "layer", "template"),
    [
        (("layers", 3, "mlp", "fc1"), 3, "layers.*.mlp.fc1"),
        (("layers", 3, "steps", "3", "fc1"), 3, "layers.*.steps.3.fc1"),
        (("experts", 13, "layers", 13, "fc"), 13, "experts.13.layers.*.fc"),
        (("layers", 13), 13, "layers.*"),
        (("layers3", "fc"), None, "layers3.fc"),
    ],
)
def test_template_and_layer_of_a_path(path: tuple[str | int, ...], layer: int | None, template: str) -> None:
    assert (layer_of(path), template_of(path)) == (layer, template)


def test_what_is_made_of_an_op_belongs_to_its_root() -> None:
    op = Op("layers.3.norm", "layer_norm", ("x",), ("y", "y.mean"), layer=3, template="layers.*.norm", labels=("mean",))
    gradient = of_op(op, "dx", 3).op("gelu", ("y",), Phase.BACKWARD, 3)
    clone = of_op(gradient, "again", None)
    assert (gradient.name, gradient.template, gradient.root) == ("layers.3.norm:dx", "layers.*.norm:dx", op.name)
    assert (clone.name, clone.template, clone.origin) == ("layers.3.norm:dx:again", "layers.3.norm:dx:again", op.name)


def test_what_is_made_of_a_second_output_has_its_label() -> None:
    op = Op("layers.3.norm", "layer_norm", ("x",), ("y", "z"), layer=3, template="layers.*.norm", labels=("mean",))
    line = of_value(Value("z", SPEC), op, "sum", 3)
    assert (line.name, line.template, line.origin) == ("z:sum", "layers.*.norm.mean:sum", op.name)


def test_what_is_made_of_state_belongs_to_the_parameter() -> None:
    parameter = Value("layers.3.w", SPEC, role=Role.VARIABLE, path=("layers", 3, "w"))
    moment = Value("layers.3.w:m", SPEC, role=Role.VARIABLE, parameter=parameter.name)
    graph = Graph({value.name: value for value in (parameter, moment)}, ())
    assert [graph.parameter_of(name) for name in graph.values] == [parameter.name] * 2
    assert graph.derived(moment.name, "to_host", 3).parameter == parameter.name
    assert graph.derived(parameter.name, "cast", 3).template == "layers.*.w:cast"
    assert graph.derived(parameter.name, "cast", 2).template == "layers.3.w:cast"


def test_the_builder_refuses_a_name_twice() -> None:
    builder = GraphBuilder()
    builder.declare(Value("x", SPEC, Rate.STEP, Role.INPUT))
    with pytest.raises(GraphError, match="value x: the name is used twice"):
        builder.declare(Value("x", SPEC, Rate.STEP, Role.INPUT))
    builder.add("y", "gelu", ("x",))
    with pytest.raises(GraphError, match="value y: the name is used twice"):
        builder.add("y", "gelu", ("x",))


def test_the_builder_names_op_tensors_found_and_expected() -> None:
    builder = GraphBuilder()
    builder.declare(Value("x", SPEC, Rate.STEP, Role.INPUT))
    builder.declare(Value("w", TensorSpec((5, 6)), Rate.STEP, Role.VARIABLE))
    with pytest.raises(
        GraphError, match=r"op fc \(x, w\): .*got \(\(4, 4\), \(5, 6\)\), expected x\[\.\.\., k\], w\[k"
    ):
        builder.add("fc", "matmul", ("x", "w"))
    with pytest.raises(GraphError, match=r"op fc: reads ghost"):
        builder.add("fc", "matmul", ("x", "ghost"))


def test_rates_follow_the_inputs() -> None:
    builder = GraphBuilder()
    builder.declare(Value("x", SPEC, Rate.MICRO_BATCH, Role.INPUT))
    builder.declare(Value("w", SPEC, Rate.STEP, Role.VARIABLE))
    builder.add("y", "matmul", ("x", "w"))
    builder.add("z", "gelu", ("w",))
    builder.add("total", "accumulate", ("y",))
    assert [builder.values[n].rate for n in ("y", "z", "total")] == [Rate.MICRO_BATCH, Rate.STEP, Rate.STEP]


def test_ops_and_values_do_not_change() -> None:
    op = Op("a", "gelu", ("x",), ("y",))
    with pytest.raises(dataclasses.FrozenInstanceError):
        op.name = "b"  # type: ignore[misc]
