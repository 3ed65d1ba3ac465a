"""Dump: a graph as text, an op per line, and what a pass made of it.

    forward  layers.0.mlp.fc1.matmul = matmul(layers.0.norm2.norm: bfloat16[4,8,16], ...) -> bfloat16[4,8,64]

A difference marks ops that came with `+`, ops that went with `-`, ops that read or do something else with `~`, and
values that changed their shape, dtype or rate with `:`; ops that only read such values are not listed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from strategy.base.files import write_atomic
from strategy.graph.graph import Graph, Op, Role, Value
from strategy.sbp.tensor import Rate


def graph_text(graph: Graph) -> str:
    """Inputs and variables, then the ops in canonical order."""
    given = [
        f"{value.role}  {name}: {_kind_of(value)}"
        for name, value in graph.values.items()
        if value.role is not Role.COMPUTED
    ]
    return "\n".join([*given, *(f"{op.phase}  {_op_text(graph, op)}" for op in graph.ops)]) + "\n"


def difference(before: Graph, after: Graph) -> str:
    """What is in one of two graphs alone, or differs between them; the first line counts it."""
    added = [f"+ {op.phase}  {_op_text(after, op)}" for op in after.ops if op.name not in before.by_name]
    removed = [f"- {op.phase}  {_op_text(before, op)}" for op in before.ops if op.name not in after.by_name]
    common = [(op, after.by_name[op.name]) for op in before.ops if op.name in after.by_name]
    rewired = [f"~ {new.name}: {'; '.join(changes)}" for old, new in common if (changes := list(_changes(old, new)))]
    pairs = [(value, after.values[name]) for name, value in before.values.items() if name in after.values]
    values = [
        f": {old.name}: {_kind_of(old)}, now {_kind_of(new)}" for old, new in pairs if _kind_of(old) != _kind_of(new)
    ]
    counts = f"{len(added)} ops added, {len(removed)} removed, {len(rewired)} rewired; {len(values)} values changed"
    return "\n".join([counts, *removed, *added, *rewired, *values]) + "\n"


class PassDump:
    """Writes what it is told of, pass after pass, into files `1-forward.txt`, `2-mixed_precision.txt`, ...

    Every file but the first begins with the difference from the one before.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._count = 0
        self._last: tuple[str, Graph] | None = None

    def __call__(self, name: str, graph: Graph) -> None:
        """Write a graph, as a pass has left it."""
        self._count += 1
        text = graph_text(graph)
        if self._last is not None:
            before, other = self._last
            text = f"since {before}: {difference(other, graph)}\n{text}"
        write_atomic(self.folder / f"{self._count}-{name}.txt", text)
        self._last = (name, graph)


def _kind_of(value: Value) -> str:
    """Shape, dtype and rate of a value: `bfloat16[4,8]`, with `per step` where that is so."""
    shape = ",".join(map(str, value.spec.shape))
    return f"{value.spec.dtype}[{shape}]" + (" per step" if value.rate is Rate.STEP else "")


def _op_text(graph: Graph, op: Op) -> str:
    attrs = [f"{key}={value}" for key, value in op.attrs.items()]
    read = ", ".join([*(f"{name}: {_kind_of(graph.values[name])}" for name in op.inputs), *attrs])
    written = ", ".join(_kind_of(graph.values[name]) for name in op.outputs)
    updates = f" updates {', '.join(op.updates)}" if op.updates else ""
    return f"{op.name} = {op.kind}({read})" + (f" -> {written}" if written else "") + updates


def _changes(old: Op, new: Op) -> Iterator[str]:
    for what, one, other in (("does", old.kind, new.kind), ("is in", old.phase, new.phase)):
        if one != other:
            yield f"{what} {one}, now {other}"
    for what, names, others in (
        ("reads", old.inputs, new.inputs),
        ("writes", old.outputs, new.outputs),
        ("updates", old.updates, new.updates),
    ):
        if len(names) != len(others):
            yield f"{what} {', '.join(names) or 'nothing'}, now {', '.join(others) or 'nothing'}"
        else:
            yield from (f"{what} {one}, now {other}" for one, other in zip(names, others, strict=True) if one != other)
    if old.attrs != new.attrs:
        yield f"has {dict(old.attrs)}, now {dict(new.attrs)}"
