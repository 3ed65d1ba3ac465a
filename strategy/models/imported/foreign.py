"""Foreign graph: a program of another framework as its file says it, before any operator is translated.

Readers make it (`exported`, `onnx_file`), the interpreter walks it. All that a file may say is bounded here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from strategy.base.errors import InputError

Array = NDArray[Any]

MOST_NODES = 10**6
"""Of a graph, those of graphs inside it included."""
MOST_DEPTH = 64
"""Of graphs inside graphs, and of what is nested in JSON or protobuf."""
MOST_ELEMENTS = 2**40
"""Of one tensor that is declared: four times the largest matrix of any published model."""
MOST_DIMS = 12


@dataclass(frozen=True, slots=True)
class Ref:
    """An argument that is a value of the graph."""

    name: str


Argument = Ref | int | float | str | None | tuple["Argument", ...]


@dataclass(frozen=True, slots=True)
class ForeignTensor:
    """A parameter, buffer or constant.

    Attributes:
        name: of the value in the graph.
        label: what its authors call it: modules and attribute, joined by dots.
        shape: of the tensor.
        dtype: by NumPy's name; "bool" too.
        trained: whether it is a parameter.
        read: reads the elements.
    """

    name: str
    label: str
    shape: tuple[int, ...]
    dtype: str
    trained: bool
    read: Callable[[], Array]


@dataclass(frozen=True, slots=True)
class ForeignInput:
    """What the program is called with; a dim is a number, or the name of a size that is open.

    `hints` are the sizes that open dims had where the program was written; 0 where nobody says.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str
    hints: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ForeignNode:
    """One operator.

    Attributes:
        target: the operator's name with the table's prefix: `aten.relu.default`, `onnx.Relu`.
        arguments: by name.
        outputs: names of the values that it writes.
        scope: modules that it was called in, the outermost first.
        where: what the file calls it, for messages.
    """

    target: str
    arguments: Mapping[str, Argument]
    outputs: tuple[str, ...]
    scope: tuple[str, ...]
    where: str


@dataclass(frozen=True, slots=True)
class ForeignGraph:
    """Nodes in an order in which they can be run."""

    where: str
    inputs: tuple[ForeignInput, ...]
    tensors: tuple[ForeignTensor, ...]
    nodes: tuple[ForeignNode, ...]
    outputs: tuple[str, ...]


def refs_of(argument: Argument) -> tuple[str, ...]:
    """The values that an argument names."""
    if isinstance(argument, Ref):
        return (argument.name,)
    if isinstance(argument, tuple):
        return tuple(name for one in argument for name in refs_of(one))
    return ()


def checked_shape(shape: tuple[int, ...], where: str) -> tuple[int, ...]:
    """A shape that a file declares, if it is one that a tensor can have.

    Raises:
        InputError: too many dims, a negative one, or more elements than any tensor has.
    """
    elements = 1
    for size in shape:
        elements *= max(size, 1)
        if size < 0 or elements > MOST_ELEMENTS or len(shape) > MOST_DIMS:
            expected = f"at most {MOST_DIMS} dims and {MOST_ELEMENTS} elements"
            raise InputError("no tensor has this shape", where=where, got=shape, expected=expected)
    return shape


def in_use(graph: ForeignGraph) -> tuple[ForeignNode, ...]:
    """The nodes that the first output depends on, in order.

    Raises:
        InputError: a value is read that nothing writes before, or is written twice; a cycle shows so, too.
    """
    writer: dict[str, int] = {}
    known = {one.name for one in graph.inputs} | {one.name for one in graph.tensors}
    for place, node in enumerate(graph.nodes):
        for argument in node.arguments.values():
            for name in refs_of(argument):
                if name not in known and name not in writer:
                    hint = "the graph has a cycle, or its nodes are out of order"
                    where = f"{graph.where}: {node.where}"
                    raise InputError("reads a value that nothing writes before", where=where, got=name, hint=hint)
        for name in node.outputs:
            if name in known or name in writer:
                raise InputError("writes a value that is there already", where=f"{graph.where}: {node.where}", got=name)
            writer[name] = place
    if not graph.outputs:
        raise InputError("the program returns nothing", where=graph.where, expected="logits as its first output")
    wanted, needed = [graph.outputs[0]], set[int]()
    while wanted:
        place_or_none = writer.get(wanted.pop())
        if place_or_none is None or place_or_none in needed:
            continue
        needed.add(place_or_none)
        for argument in graph.nodes[place_or_none].arguments.values():
            wanted.extend(refs_of(argument))
    return tuple(graph.nodes[place] for place in sorted(needed))
