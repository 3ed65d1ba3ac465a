"""Module: the front end. Python classes that look like eager code, traced once into a graph.

    class Block(Module):
        def __init__(self, width: int) -> None:
            self.norm = LayerNorm(width)
            self.fc = Linear(width, width)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.fc(self.norm(x))

The names of attributes become the names of parameters and ops (`layers.3.fc.weight`); the members of a `Layers`
are the repeated layers that the search folds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from strategy.builder import GraphBuilder
from strategy.errors import GraphError, InputError, did_you_mean
from strategy.graph import Attrs, Role, Value
from strategy.tensor import DType, Rate, Shape, TensorSpec

_INIT = re.compile(r"zeros|ones|normal\(\d+\.?\d*(?:e[+-]?\d+)?\)")


@dataclass(frozen=True, slots=True)
class Parameter:
    """A trained tensor: shape and how it starts (`"zeros"`, `"ones"` or `"normal(std)"`)."""

    shape: Shape
    init: str = "zeros"

    def __post_init__(self) -> None:
        if not _INIT.fullmatch(self.init):
            raise InputError("unknown start", got=self.init, expected='"zeros", "ones" or "normal(std)"')


class Module:
    """Base of everything that holds parameters or other modules."""

    def children(self) -> Iterator[tuple[str, Module]]:
        """Direct sub-modules by attribute name."""
        for name, member in vars(self).items():
            if isinstance(member, Module):
                yield name, member

    def parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Every parameter below, depth first, by its full name."""
        for name, member in vars(self).items():
            if isinstance(member, Parameter):
                yield prefix + name, member
        for name, child in self.children():
            yield from child.parameters(f"{prefix}{name}.")

    def forward(self, *inputs: Tensor) -> Any:
        """The module's computation; subclasses write it."""
        raise NotImplementedError(f"{type(self).__name__}.forward")

    def __call__(self, *inputs: Tensor) -> Any:
        """Trace `forward` under this module's name.

        Raises:
            GraphError: no input is traced, or the module is no part of the model that is traced.
        """
        if not inputs or not isinstance(inputs[0], Tensor):
            raise GraphError([f"{type(self).__name__} is called without a traced tensor"])
        tracer = inputs[0].tracer
        with_scope = tracer.scope_of(self)
        tracer.scopes.append(with_scope)
        try:
            return self.forward(*inputs)
        finally:
            tracer.scopes.pop()

    def parameter(self, name: str, like: Tensor) -> Tensor:
        """The traced tensor of the parameter held in attribute `name`.

        Raises:
            GraphError: there is no such parameter, or it came after tracing began.
        """
        held = {key: member for key, member in vars(self).items() if isinstance(member, Parameter)}
        if name not in held:
            raise GraphError([f"{type(self).__name__} has no parameter {name}; {did_you_mean(name, held)}"])
        found = like.tracer.named_parameters.get(id(held[name]))
        if found is None:
            raise GraphError([f"{type(self).__name__}.{name} does not belong to the module that is traced"])
        return Tensor(like.tracer, found)


class Layers(Module):
    """Repeated modules: `layers.0`, `layers.1`, ...; alike in structure, so that a search may solve them once."""

    def __init__(self, members: Sequence[Module]) -> None:
        self.members = tuple(members)

    def children(self) -> Iterator[tuple[str, Module]]:
        """The members by index."""
        yield from ((str(index), member) for index, member in enumerate(self.members))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Apply the members in order."""
        x = inputs[0]
        for member in self.members:
            x = member(x)
        return x


@dataclass(slots=True)
class _Scope:
    path: str
    layer: int | None


@dataclass(slots=True)
class Tracer:
    """State of one tracing: the graph so far, and where in the module tree we are."""

    graph: GraphBuilder = field(default_factory=GraphBuilder)
    scopes: list[_Scope] = field(default_factory=list)
    named_parameters: dict[int, str] = field(default_factory=dict)
    paths: dict[int, _Scope] = field(default_factory=dict)

    def adopt(self, module: Module, dtype: DType) -> None:
        """Declare all parameters of a module tree and remember every module's path."""
        self._walk(module, _Scope("", None))
        for name, parameter in module.parameters():
            if id(parameter) not in self.named_parameters:
                spec = TensorSpec(parameter.shape, dtype)
                self.graph.declare(Value(name, spec, Rate.STEP, Role.VARIABLE, parameter.init))
                self.named_parameters[id(parameter)] = name

    def _walk(self, module: Module, scope: _Scope) -> None:
        self.paths[id(module)] = scope
        for name, child in module.children():
            layer = int(name) if isinstance(module, Layers) else scope.layer
            self._walk(child, _Scope(f"{scope.path}{name}.", layer))

    def scope_of(self, module: Module) -> _Scope:
        """Path and layer of a module of the traced tree."""
        if id(module) not in self.paths:
            raise GraphError([f"a {type(module).__name__} is called that is no attribute of the traced module"])
        return self.paths[id(module)]

    def apply(
        self, label: str, kind: str, inputs: Sequence[Tensor], attrs: Attrs | None = None, labels: Sequence[str] = ()
    ) -> tuple[Tensor, ...]:
        """Append an op called `label` under the current scope."""
        scope = self.scopes[-1] if self.scopes else _Scope("", None)
        name = scope.path + label
        outputs = self.graph.add(name, kind, [t.name for t in inputs], labels=labels, attrs=attrs, layer=scope.layer)
        return tuple(Tensor(self, output) for output in outputs)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A traced tensor: a name in the graph under construction."""

    tracer: Tracer
    name: str

    @property
    def shape(self) -> Shape:
        """Logical shape."""
        return self.tracer.graph.spec(self.name).shape

    def apply(self, label: str, kind: str, *others: Tensor, attrs: Attrs | None = None) -> Tensor:
        """The first output of an op on this tensor and `others`."""
        return self.tracer.apply(label, kind, (self, *others), attrs)[0]

    def reshape(self, label: str, shape: Shape) -> Tensor:
        """The same elements under another shape."""
        return self.apply(label, "reshape", attrs={"shape": shape})

    def transpose(self, label: str, perm: tuple[int, ...]) -> Tensor:
        """Dims in the order `perm`."""
        return self.apply(label, "transpose", attrs={"perm": perm})
