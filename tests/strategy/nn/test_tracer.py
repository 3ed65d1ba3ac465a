"""Tracing tensor code: operators, names that the tracer gives, and all mistakes of a graph in one report."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from strategy.base.errors import GraphError, InputError
from strategy.nn.layers import Linear
from strategy.nn.module import Layers, Module, Parameter
from strategy.nn.tracer import Tensor, Tracer
from strategy.sbp.tensor import DType, TensorSpec


def traced(**shapes: tuple[int, ...]) -> list[Tensor]:
    tracer = Tracer()
    return [tracer.input(name, TensorSpec(shape)) for name, shape in shapes.items()]


def test_operators_are_ops_named_by_kind_and_number() -> None:
    x, w, b = traced(x=(2, 4), w=(4, 4), b=(4,))
    y = (x @ w + b).gelu() @ w.T + b
    assert [op.name for op in x.tracer.graph.ops] == ["matmul", "add", "gelu", "transpose", "matmul_2", "add_2"]
    assert (y.name, y.shape) == ("add_2", (2, 4))


def test_names_do_not_collide_with_labels() -> None:
    x, y = traced(add=(4,), y=(4,))
    assert (x + y).name == "add_2"
    assert x.apply("add_3", "add", y).name == "add_3"
    assert (x + y).name == "add_4"


def test_labels_stay_possible() -> None:
    (x,) = traced(x=(2, 6))
    names = [x.reshape("heads", (2, 3, 2)).name, x.reshape((3, 4)).name, x.transpose("flip", (1, 0)).name, x.T.name]
    assert names == ["heads", "reshape", "flip", "transpose"]
    assert x.reshape((-1, 2)).shape == x.reshape("rows", (-1, 2)).shape == (6, 2)
    assert x.reshape((3, -1, 2)).transpose((-1, 0, 1)).shape == (2, 3, 2)


class Residual(Module):
    def __init__(self) -> None:
        self.fc = Linear(4, 4)

    def forward(self, *inputs: Tensor) -> Any:
        (x,) = inputs
        return x + self.fc(x) + x


def test_names_of_layers_are_alike() -> None:
    model = Layers([Residual(), Residual()])
    tracer = Tracer()
    tracer.adopt(model, DType.FLOAT32)
    model(tracer.input("x", TensorSpec((2, 4))))
    names = [op.name for op in tracer.graph.ops]
    assert names == [f"{i}.{n}" for i in range(2) for n in ("fc.matmul", "fc.bias_add", "add", "add_2")]
    assert [op.layer for op in tracer.graph.ops] == [0] * 4 + [1] * 4


def test_what_is_no_operand_is_told_with_what_would_be() -> None:
    (x,) = traced(x=(4,))
    for wrong in (None, "x", [1.0], np.ones(4)):
        for code in (lambda a: x + a, lambda a: a + x, lambda a: x @ a, lambda a: x > a, lambda a: x.maximum(a)):
            with pytest.raises(InputError, match=r"not an operand .*expected a tensor of the same kind, a Parameter"):
                code(wrong)


class Broken(Module):
    """Six mistakes, three of which are followed by code that uses what they would have given."""

    def __init__(self) -> None:
        self.narrow = Linear(5, 4)
        self.fine = Linear(4, 4)
        self.shift = Parameter((3,))

    def forward(self, *inputs: Tensor) -> Any:
        x, ids = inputs
        rows, width = self.narrow(x).shape
        heads = x.reshape((rows, 2, 3)).transpose((0, 2, 1)) + x
        mixed = self.fine(x) + ids
        late = self.fine(x).apply("twist", "twirl") @ self.parameter("missing", x)
        lone = Linear(4, 4)(x)
        return heads + mixed + late + lone + x.transpose((0, 0)), width


def test_one_report_holds_every_mistake_with_op_tensors_found_and_expected() -> None:
    tracer = Tracer()
    model = Broken()
    model.again = Linear(4, 4)
    tracer.adopt(model, DType.FLOAT32)
    x = tracer.input("x", TensorSpec((2, 4)))
    ids = tracer.input("ids", TensorSpec((2, 4), DType.INT32))
    with pytest.raises(GraphError) as caught:
        model(x, ids)
    wanted = [
        ("op narrow.matmul (x, narrow.weight): matmul shapes do not compose", "((2, 4), (5, 4))", "x[..., k], w[k, n]"),
        ("op reshape (x): reshape changes the number of elements", "((2, 4), (2, 2, 3))", "equal products"),
        ("op add_2 (fine.bias_add, ids): add mixes dtypes", "float32", "one dtype"),
        ("op twist: unknown op kind", "twirl", "known: "),
        ("Broken has no parameter missing; known: shift", "", ""),
        ("a Linear is called that is no attribute of the traced module", "", ""),
        ("op transpose_2 (x): not a permutation of the dims", "(0, 0)", "an order of 2 dims"),
    ]
    problems = caught.value.problems
    assert len(problems) == len(wanted), problems
    for problem, (what, got, expected) in zip(problems, wanted, strict=True):
        assert problem.startswith(what), problem
        assert got in problem, problem
        assert expected in problem, problem
        assert problem in str(caught.value)


class Confused(Module):
    def __init__(self) -> None:
        self.narrow = Linear(5, 4)

    def forward(self, *inputs: Tensor) -> Any:
        one, two, three = self.narrow(inputs[0]).shape
        return one, two, three


def test_code_that_trips_over_a_mistake_reports_the_mistake() -> None:
    tracer = Tracer()
    model = Confused()
    tracer.adopt(model, DType.FLOAT32)
    with pytest.raises(GraphError, match=r"narrow\.matmul.*do not compose"):
        model(tracer.input("x", TensorSpec((2, 4))))
    assert tracer.scopes == []


def test_code_that_is_wrong_by_itself_stays_pythons_error() -> None:
    tracer = Tracer()
    model = Confused()
    tracer.adopt(model, DType.FLOAT32)
    with pytest.raises(ValueError, match="unpack"):
        model(tracer.input("x", TensorSpec((2, 5))))


def test_tensors_of_two_graphs_do_not_mix() -> None:
    (x,), (y,) = traced(x=(4,)), traced(y=(4,))
    x + y
    with pytest.raises(GraphError, match="op add: reads y, a tensor of another graph"):
        x.tracer.check()


def test_wrong_operands_and_unknown_kinds_are_named() -> None:
    x, w = traced(x=(2, 4), w=(4, 4))
    x.apply("lone", "matmul")
    x.apply("bare", "reshape")
    x.apply("odd", "reshap", w)
    with pytest.raises(GraphError) as caught:
        x.tracer.check()
    first, second, third = caught.value.problems
    assert "op lone (x): matmul takes other operands or attrs (got 1 inputs, 0 updates, attrs {})" in first
    assert second.startswith("op bare (x): ")
    assert "shape" in second
    assert "op odd: unknown op kind (got 'reshap'); did you mean 'reshape'?" in third


def test_modules_are_found_by_path() -> None:
    model = Layers([Residual(), Residual()])
    assert [path for path, _ in model.modules()] == ["", "0", "0.fc", "1", "1.fc"]
