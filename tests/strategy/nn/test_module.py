"""Tracing modules: names, layers, shared parameters, and modules used wrongly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from strategy.base.errors import GraphError, InputError
from strategy.graph.graph import Role, Value
from strategy.nn.layers import LayerNorm, Linear
from strategy.nn.module import Layers, Module, Parameter, paths
from strategy.nn.tracer import Tensor, Tracer
from strategy.sbp.tensor import DType, Rate, TensorSpec


class Block(Module):
    def __init__(self, width: int) -> None:
        self.norm = LayerNorm(width)
        self.fc = Linear(width, width)

    def forward(self, *inputs: Tensor) -> Tensor:
        (x,) = inputs
        return x.apply("residual", "add", self.fc(self.norm(x)))


class Stack(Module):
    def __init__(self) -> None:
        self.layers = Layers([Block(4), Block(4)])
        self.head = Linear(4, 3)

    def forward(self, *inputs: Tensor) -> Any:
        return self.head(self.layers(inputs[0]))


def traced(model: Module) -> tuple[Tracer, Tensor]:
    tracer = Tracer()
    tracer.adopt(model, DType.FLOAT32)
    x = tracer.graph.declare(Value("x", TensorSpec((2, 4)), Rate.MICRO_BATCH, Role.INPUT))
    return tracer, Tensor(tracer, x)


def test_attributes_name_parameters_and_ops() -> None:
    model = Stack()
    tracer, x = traced(model)
    y = model(x)
    assert y.shape == (2, 3)
    variables = [value.name for value in tracer.graph.variables()]
    assert variables == [
        *(f"layers.{i}.{n}" for i in range(2) for n in ("norm.weight", "norm.bias", "fc.weight", "fc.bias")),
        "head.weight",
        "head.bias",
    ]
    assert variables == [name for name, _ in model.parameters()]
    assert [(op.name, op.layer) for op in tracer.graph.ops] == [
        *((f"layers.{i}.{n}", i) for i in range(2) for n in ("norm.norm", "fc.matmul", "fc.bias_add", "residual")),
        ("head.matmul", None),
        ("head.bias_add", None),
    ]
    assert tracer.scopes == []


def test_a_shared_parameter_is_declared_once_and_read_twice() -> None:
    class Tied(Module):
        def __init__(self) -> None:
            self.one, self.two = Linear(4, 4), Linear(4, 4)
            self.two.weight = self.one.weight

        def forward(self, *inputs: Tensor) -> Any:
            return self.two(self.one(inputs[0]))

    model = Tied()
    tracer, x = traced(model)
    model(x)
    assert [value.name for value in tracer.graph.variables()] == ["one.weight", "one.bias", "two.bias"]
    assert [op.inputs[1] for op in tracer.graph.ops if op.kind == "matmul"] == ["one.weight", "one.weight"]


def test_parameters_that_are_alike_are_not_shared() -> None:
    tracer, _ = traced(Layers([Linear(4, 4), Linear(4, 4)]))
    assert len(tracer.graph.variables()) == 4


class InASet(Module):
    def __init__(self) -> None:
        self.blocks = {Block(4)}

    def forward(self, *inputs: Tensor) -> Any:
        return next(iter(self.blocks))(inputs[0])


class MadeInForward(Module):
    def forward(self, *inputs: Tensor) -> Any:
        return Block(4)(inputs[0])


class Misspelt(Module):
    def __init__(self) -> None:
        self.weight = Parameter((4, 4))

    def forward(self, *inputs: Tensor) -> Any:
        return inputs[0].apply("fc", "matmul", self.parameter("weighty", inputs[0]))


class MadeLate(Module):
    def forward(self, *inputs: Tensor) -> Any:
        self.weight = Parameter((4, 4))
        return inputs[0].apply("fc", "matmul", self.parameter("weight", inputs[0]))


class NoParameter(Module):
    def __init__(self) -> None:
        self.width = 4

    def forward(self, *inputs: Tensor) -> Any:
        return inputs[0].apply("fc", "matmul", self.parameter("width", inputs[0]))


class WrongWidth(Module):
    def __init__(self) -> None:
        self.fc = Linear(5, 4)

    def forward(self, *inputs: Tensor) -> Any:
        return self.fc(inputs[0])


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (InASet, "a Block is called that is no attribute of the traced module"),
        (MadeInForward, "a Block is called that is no attribute of the traced module"),
        (Misspelt, "Misspelt has no parameter weighty; did you mean 'weight'"),
        (MadeLate, "MadeLate.weight does not belong to the module that is traced"),
        (NoParameter, "NoParameter has no parameter width"),
        (WrongWidth, r"op fc.matmul \(x, fc.weight\): .*\(\(2, 4\), \(5, 4\)\)"),
    ],
)
def test_misuse_says_what_and_where(module: Callable[[], Module], message: str) -> None:
    model = module()
    tracer, x = traced(model)
    with pytest.raises(GraphError, match=message):
        model(x)
    assert tracer.scopes == []


def test_a_call_without_a_traced_tensor_is_refused() -> None:
    model = Stack()
    traced(model)
    for inputs in ((), (1,), (None,)):
        with pytest.raises(GraphError, match="Stack is called without a traced tensor"):
            model(*inputs)


def test_a_module_without_forward_says_so() -> None:
    class Empty(Module):
        pass

    model = Empty()
    _, x = traced(model)
    with pytest.raises(NotImplementedError, match=r"Empty\.forward"):
        model(x)


@pytest.mark.parametrize(
    "init", ["", "one", "normal", "normal()", "normal(x)", "normal(-1)", "normal(nan)", "uniform(1)"]
)
def test_an_unknown_start_is_refused(init: str) -> None:
    with pytest.raises(InputError, match=r"unknown start.*normal\(std\)"):
        Parameter((4,), init)


def test_known_starts() -> None:
    assert [Parameter((4,), init).init for init in ("zeros", "ones", "normal(0.02)", "normal(1e-3)", "normal(0)")]


class Lists(Module):
    """Several lists, of which one holds the layers."""

    def __init__(self, **held: Any) -> None:
        vars(self).update(held)


def test_the_list_with_most_parameters_holds_the_layers() -> None:
    blocks = [Block(8) for _ in range(2)]
    many = Lists(heads=[Linear(2, 2) for _ in range(4)], blocks=blocks, both=[Linear(2, 2), Block(2)])
    layers = {path for _, path in paths(many) if any(isinstance(part, int) for part in path)}
    assert layers == {("blocks", n, *rest) for n in (0, 1) for rest in ((), ("norm",), ("fc",))}
    assert {path[:2] for _, path in paths(many) if path[:1] == ("heads",)} == {
        ("heads",),
        *(("heads", c) for c in "0123"),
    }
    names = [name for name, _ in many.parameters()]
    assert len(set(names)) == len(names)


def test_layers_that_are_said_are_those() -> None:
    said = Lists(blocks=[Block(8), Block(8)], layers=Layers([Block(2), Block(2)]))
    assert {path[0] for _, path in paths(said) if len(path) > 1 and isinstance(path[1], int)} == {"layers"}


def test_lists_in_layers_are_names() -> None:
    nested = Lists(blocks=[Lists(experts=[Linear(2, 2), Linear(2, 2)]) for _ in range(2)])
    found = {path for _, path in paths(nested)}
    assert ("blocks", 1, "experts", "0") in found


def test_lists_of_lists_and_what_is_no_module_in_them() -> None:
    mixed = Lists(grid=[[Linear(2, 2)], [Linear(2, 2)]], some=[None, Linear(2, 2), 3], plain=[1, 2], none=())
    assert [name for name, _ in mixed.parameters()][::2] == ["grid.0.0.weight", "grid.1.0.weight", "some.1.weight"]
