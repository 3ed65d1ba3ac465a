"""Module: the front end. Python classes that look like eager code, traced once into a graph.

    class Block(Module):
        def __init__(self, width: int) -> None:
            self.norm = LayerNorm(width)
            self.fc = Linear(width, width)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.fc(self.norm(x))

The names of attributes become the names of parameters and ops (`layers.3.fc.weight`), and the places in lists and keys
in dicts (`heads.left.weight`). The members of a `Layers` are the repeated layers that a pipeline cuts between, and that
the search folds where they are alike; without one, those of the list of modules of one class with most parameters.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, TypeVar, final

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

    is_layer: ClassVar[bool] = False
    """Whether it is a layer also where it stands among those that repeat as one that is unlike them."""

    def children(self) -> Iterator[tuple[str | int, Module]]:
        """Direct sub-modules by attribute name; a list or dict of modules is one; a repeated layer by its number."""
        for name, member in vars(self).items():
            found = _module_in(member)
            if found is not None:
                yield name, found

    def modules(self) -> Iterator[tuple[str, Module]]:
        """This module and every one below, depth first, by path (`""`, `"layers.0.fc"`)."""
        yield from ((".".join(map(str, path)), module) for module, path in self.walk())

    def walk(self, path: Path = ()) -> Iterator[tuple[Module, Path]]:
        """This module and every one below, each with the attributes that lead to it."""
        yield self, path
        for name, child in self.children():
            yield from child.walk((*path, name))

    def own_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """The parameters held in attributes of this module itself, or in lists and dicts of those (`weights.0`)."""
        for name, member in vars(self).items():
            yield from _parameters_in(name, member)

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


@final
class Members(Module):
    """The modules of a list, tuple or dict that another module has as an attribute; the rest of it is none of ours.

    Members of a list that are of one class (two at least) are numbered, others are named by their place or key.
    """

    def __init__(self, held: Sequence[Any] | Mapping[Any, Any]) -> None:
        self.held = held

    @property
    def are_alike(self) -> bool:
        """Whether they may be repeated layers."""
        held = self.held
        return not isinstance(held, Mapping) and len(held) > 1 and all(type(one) is type(held[0]) for one in held)

    def children(self) -> Iterator[tuple[str | int, Module]]:
        """The members by place or key."""
        numbered = self.are_alike
        places = self.held.items() if isinstance(self.held, Mapping) else enumerate(self.held)
        for place, member in places:
            found = _module_in(member)
            if found is not None:
                yield place if numbered else str(place), found


def paths(root: Module) -> list[tuple[Module, Path]]:
    """Every module below with the attributes that lead to it; numbers are those of repeated layers alone.

    Where nobody says by a `Layers` what these are, they are the members of one outermost list of modules of one class:
    the one with most parameters.
    """
    found = list(root.walk())
    lists = [(member, path) for member, path in found if isinstance(member, Members) and member.are_alike]
    given = any(isinstance(member, Layers) for member, _ in found)
    outermost = [] if given else [(m, path) for m, path in lists if not any(isinstance(part, int) for part in path)]
    layers = max(outermost, key=lambda pair: _elements(pair[0]))[1] if outermost else None
    named = {path for _, path in lists if path != layers}

    def told(path: Path) -> Path:
        return tuple(str(part) if path[:place] in named else part for place, part in enumerate(path))

    return [(member, told(path)) for member, path in found]


def _elements(module: Module) -> int:
    return sum(math.prod(parameter.shape) for _, parameter in module.parameters())


def _module_in(member: object) -> Module | None:
    """An attribute as a module, if it is one or holds some."""
    if isinstance(member, Module):
        return member
    if isinstance(member, list | tuple) and any(_module_in(one) is not None for one in member):
        return Members(member)
    if isinstance(member, Mapping) and any(_module_in(one) is not None for one in member.values()):
        return Members(member)
    return None


def _parameters_in(name: str, member: object) -> Iterator[tuple[str, Parameter]]:
    if isinstance(member, Parameter):
        yield name, member
    elif isinstance(member, list | tuple | Mapping):
        places = member.items() if isinstance(member, Mapping) else enumerate(member)
        for place, one in places:
            yield from _parameters_in(f"{name}.{place}", one)
