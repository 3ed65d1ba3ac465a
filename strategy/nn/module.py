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
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from strategy.base.errors import GraphError, InputError
from strategy.graph.graph import Path
from strategy.sbp.tensor import Shape


class Applied(Protocol):
    """What modules are applied to: traced tensors, or global ones."""

    @property
    def tracer(self) -> Any:
        """What notes down the ops that are applied to it, or runs them."""


T = TypeVar("T", bound=Applied)

_INIT = re.compile(r"zeros|ones|normal\(\d+\.?\d*(?:e[+-]?\d+)?\)")


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Parameter:
    """A trained tensor: shape and how it starts (`"zeros"`, `"ones"` or `"normal(std)"`).

    Two parameters that are written alike are two parameters: one is told from the other by identity.
    """

    shape: Shape
    init: str = "zeros"

    def __post_init__(self) -> None:
        if not _INIT.fullmatch(self.init):
            raise InputError("unknown start", got=self.init, expected='"zeros", "ones" or "normal(std)"')


class Module:
    """Base of everything that holds parameters or other modules."""

    def children(self) -> Iterator[tuple[str | int, Module]]:
        """Direct sub-modules by attribute name; a repeated layer by its number."""
        for name, member in vars(self).items():
            if isinstance(member, Module):
                yield name, member

    def modules(self) -> Iterator[tuple[str, Module]]:
        """This module and every one below, depth first, by path (`""`, `"layers.0.fc"`)."""
        yield from ((".".join(map(str, path)), module) for module, path in self.walk())

    def walk(self, path: Path = ()) -> Iterator[tuple[Module, Path]]:
        """This module and every one below, each with the attributes that lead to it."""
        yield self, path
        for name, child in self.children():
            yield from child.walk((*path, name))

    def own_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """The parameters held in attributes of this module itself."""
        yield from ((name, member) for name, member in vars(self).items() if isinstance(member, Parameter))

    def parameters(self, prefix: str = "") -> Iterator[tuple[str, Parameter]]:
        """Every parameter below, depth first, by its full name."""
        for module, path in self.walk():
            start = "".join(f"{part}." for part in path)
            yield from ((prefix + start + name, parameter) for name, parameter in module.own_parameters())

    def forward(self, *inputs: Any) -> Any:
        """The module's computation; subclasses write it."""
        raise NotImplementedError(f"{type(self).__name__}.forward")

    def __call__(self, *inputs: Any) -> Any:
        """Apply `forward` under this module's name.

        Raises:
            GraphError: there is no tensor among the inputs, or, from the outermost module, with all that is wrong.
        """
        tracer = getattr(inputs[0], "tracer", None) if inputs else None
        if tracer is None:
            raise GraphError([f"{type(self).__name__} is called without a traced tensor"])
        if not tracer.holds(self):
            return tracer.foreign(self, inputs[0])
        with tracer.enter(self):
            return self.forward(*inputs)

    def parameter(self, name: str, like: T) -> T:
        """The tensor of the parameter held in attribute `name`, in the graph that `like` belongs to."""
        found: T = like.tracer.parameter(self, name, like)
        return found


class Layers(Module):
    """Repeated modules: `layers.0`, `layers.1`, ...; alike in structure, so that a search may solve them once."""

    def __init__(self, members: Sequence[Module]) -> None:
        self.members = tuple(members)

    def children(self) -> Iterator[tuple[str | int, Module]]:
        """The members by index."""
        yield from enumerate(self.members)

    def forward(self, *inputs: Any) -> Any:
        """Apply the members in order."""
        x = inputs[0]
        for member in self.members:
            x = member(x)
        return x
