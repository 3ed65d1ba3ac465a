"""Classes: ops that share one decision. They say where every value lives: its home is in a layout of their signatures.

Repeated layers are tied: the ops of one template are one class, and what computes an op again is laid out like it.
What lives where it lives, whatever is chosen, has a class of its own, of one choice and no op.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from strategy.base.errors import InfeasibleError
from strategy.graph.graph import Op, deciding_op
from strategy.graph.signature import Signature, likenesses
from strategy.layout.layout import home_position
from strategy.sbp.sbp import NdSbp
from strategy.space.space import SearchSpace


@dataclass(frozen=True, slots=True)
class OpClass:
    """Ops that share one decision. Classes of one `kind` have the same choices at the same cost."""

    index: int
    kind: int
    ops: tuple[Op, ...]
    options: tuple[Signature, ...]


@dataclass(slots=True)
class _ClassBuilder:
    """A class whose ops are added one by one."""

    index: int
    kind: int
    options: tuple[Signature, ...]
    ops: list[Op]

    def freeze(self) -> OpClass:
        """The class."""
        return OpClass(self.index, self.kind, tuple(self.ops), self.options)


@dataclass(frozen=True, slots=True)
class Writer:
    """The class that decides a value's home; the position is among the layouts of its signatures."""

    found: OpClass
    position: int

    @property
    def homes(self) -> list[NdSbp]:
        """The home layout under each choice."""
        return [option.layouts[self.position] for option in self.found.options]

    @property
    def identity(self) -> tuple[int, int]:
        """What tells it from other writers."""
        return self.found.index, self.position

    @property
    def kind(self) -> tuple[int, int]:
        """What writers with the same homes have in common."""
        return self.found.kind, self.position


@dataclass(frozen=True, slots=True)
class Classes:
    """Everything that is decided about the home layouts of a space.

    `of_ops[i]` has index i; `of_op` finds an op's by its name. `held`, whose indices follow, are the classes of the
    values that live where they live.
    """

    space: SearchSpace
    of_ops: tuple[OpClass, ...]
    of_op: Mapping[str, OpClass]
    held: Mapping[str, OpClass]

    def writer(self, value: str) -> Writer | None:
        """Who decides a value's home; nobody does where it is loaded."""
        if value in self.held:
            return Writer(self.held[value], 0)
        op = deciding_op(self.space.graph, value)
        return None if op is None else Writer(self.of_op[op.name], home_position(op, value))

    def homes(self) -> Iterator[tuple[str, int, Writer]]:
        """(value, the stage that it lives on, who decides its home) of all that lives somewhere."""
        graph, stages = self.space.graph, self.space.stages
        for op in graph.ops:
            for position, name in enumerate((*op.inputs, *op.outputs, *op.updates)):
                decides = deciding_op(graph, name) is op and name not in self.held
                if decides and position == home_position(op, name):
                    yield name, stages.stage_of[op.name], Writer(self.of_op[op.name], position)
        for name, home in stages.homes.items():
            yield name, home.stage, Writer(self.held[name], 0)


def classify(space: SearchSpace) -> Classes:
    """The classes of a space.

    Raises:
        InfeasibleError: `keep` leaves an op without signature.
    """
    builders: list[_ClassBuilder] = []
    index_of: dict[str, int] = {}
    by_template: dict[str, list[_ClassBuilder]] = {}
    likeness = likenesses(space.graph)
    for op in space.graph.ops:
        options = space.options(op)
        if not options:
            raise InfeasibleError(f"no legal signature of op {op.name} satisfies the pins", hint="relax a pin")
        known = by_template.setdefault(space.graph.template_of(op), [])
        alike = [c for c in known if c.options == options and likeness[c.ops[0].name] == likeness[op.name]]
        found = next((c for c in alike if space.folded or _decided(c.ops[0]) == _decided(op)), None)
        if found is None:
            index = len(builders)
            first = alike[0] if alike else None
            found = _ClassBuilder(index, first.kind if first else index, first.options if first else options, [])
            known.append(found)
            builders.append(found)
        found.ops.append(op)
        index_of[op.name] = found.index
    of_ops = tuple(builder.freeze() for builder in builders)
    held = {
        name: OpClass(index, index, (), (Signature((home.layout,), ()),))
        for index, (name, home) in enumerate(space.stages.homes.items(), len(of_ops))
    }
    of_op = {name: of_ops[index] for name, index in index_of.items()}
    return Classes(space, of_ops, MappingProxyType(of_op), MappingProxyType(held))


def _decided(op: Op) -> str:
    """The op whose decision it is how an op is laid out: what computes an op again is laid out like it."""
    return op.repeats or op.name
