"""ONNX's parameters: a file does not say which of its tensors are trained, so that it follows from how they are used.

Floats of more than one element that meet what depends on the inputs are trained, moved before or not, as are tables
that rows are taken from. Tables that are multiplied element by element are not (cosines of positions), nor are square
ones that are added to scores (masks).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from strategy.models.imported.foreign import ForeignNode, refs_of
from strategy.sbp.tensor import Shape

_MOVES = ("Transpose", "Reshape", "Cast", "Identity", "Unsqueeze", "Squeeze", "Slice", "Split", "Expand")


def labels_of(nodes: Sequence[ForeignNode], tensors: Iterable[str]) -> dict[str, str]:
    """What tensors are called: as they are, those without a module after the one that reads them first."""
    found = {name: name for name in tensors}
    for node in reversed(nodes):
        for name in refs_of(node.arguments["inputs"]):
            if name in found and "." not in name:
                found[name] = ".".join((*node.scope, name.replace("/", "_")))
    return found


def trained_tensors(nodes: Sequence[ForeignNode], floats: Mapping[str, Shape], inputs: set[str]) -> set[str]:
    """The tensors of floats that are parameters."""
    live = set(inputs)
    for node in nodes:
        if live.intersection(refs_of(node.arguments["inputs"])) and not node.target.endswith(".Shape"):
            live.update(node.outputs)
    readers: dict[str, list[ForeignNode]] = defaultdict(list)
    for node in nodes:
        for name in dict.fromkeys(refs_of(node.arguments["inputs"])):
            readers[name].append(node)
    return {
        name
        for name, shape in floats.items()
        if shape and max(shape) > 1 and any(_meets(node, came, live, shape) for node, came in _met(name, readers))
    }


def _met(name: str, readers: Mapping[str, list[ForeignNode]]) -> Iterator[tuple[ForeignNode, str]]:
    """Where a tensor ends up that is moved, perhaps, but not computed on: nodes, and what they know it by."""
    waiting, seen = [name], {name}
    while waiting:
        came = waiting.pop()
        for node in readers.get(came, ()):
            if node.target.removeprefix("onnx.") not in _MOVES:
                yield node, came
                continue
            fresh = [one for one in node.outputs if one not in seen]
            seen.update(fresh)
            waiting += fresh


def _meets(node: ForeignNode, came: str, live: set[str], shape: Shape) -> bool:
    operands, kind = refs_of(node.arguments["inputs"]), node.target.removeprefix("onnx.")
    if kind == "Gather":
        return operands[:1] == (came,)
    if not live.intersection(operands):
        return False
    wide = [size for size in shape if size > 1]
    if kind in ("Mul", "Where", "Div") and len(wide) > 1:
        return False
    return not (kind == "Add" and len(shape) == 4 and shape[-1] == shape[-2])
