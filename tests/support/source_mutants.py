"""Mutants of source: one expression of one function changed, drawn by seed from its syntax tree.

A text is changed at the one place, and stays as it was elsewhere. Messages of errors, annotations and docstrings are
left alone: what they say is not what the code does.
"""

from __future__ import annotations

import ast
import copy
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from pathlib import Path

COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.FloorDiv,
    ast.FloorDiv: ast.Mult,
    ast.Div: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any"}
COMPILED = frozenset({"compiled", "in_place"})
"""Decorators of functions that are compiled: their machine code outlives a change of what they call."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """`before`, at an offset in bytes of a file, becomes `after`."""

    path: str
    function: str
    kind: str
    line: int
    start: int
    before: str
    after: str
    compiled: bool

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self._what}"

    @property
    def change(self) -> str:
        """What it changes, wherever in the file that stands."""
        return f"{self.path} {self._what}"

    @property
    def _what(self) -> str:
        return f"{self.function}: {self.kind}: {self.before} -> {self.after}"

    def applied(self, source: str) -> str:
        """The text of the file with the change."""
        held, old = source.encode(), self.before.encode()
        if held[self.start : self.start + len(old)] != old:
            raise ValueError(f"{self.path} is another text than the mutant was drawn from")
        return (held[: self.start] + self.after.encode() + held[self.start + len(old) :]).decode()


@cache
def mutants_of(path: str, source: str) -> tuple[Mutant, ...]:
    """Every mutant of a file, in the order of its text; `path` is what they say that they are of."""
    return tuple(_mutants_of(path, source))


def _mutants_of(path: str, source: str) -> Iterator[Mutant]:
    held = source.encode()
    starts = list(accumulate(map(len, held.splitlines(keepends=True)), initial=0))
    for name, function in _functions(ast.parse(source)):
        is_compiled = any(isinstance(mark, ast.Name) and mark.id in COMPILED for mark in function.decorator_list)
        for node in _expressions(function.body):
            for kind, changed in _changes(node):
                start = starts[node.lineno - 1] + node.col_offset
                end = starts[(node.end_lineno or node.lineno) - 1] + (node.end_col_offset or 0)
                before, after = held[start:end].decode(), f"({ast.unparse(changed)})"
                yield Mutant(path, name, kind, node.lineno, start, before, after, is_compiled)


def drawn(root: Path, rooms: Sequence[Sequence[str]], seed: int) -> Mutant:
    """A mutant of one room: a file by how much there is to change in it, then a kind of change, then a place.

    A room is some patterns of paths below `root`; seeds go round the rooms.
    """
    rng = random.Random(f"mutant {seed}")
    room = rooms[seed % len(rooms)]
    paths = sorted({path for pattern in room for path in root.glob(pattern)})
    found = [mutants_of(str(path.relative_to(root)), path.read_text(encoding="utf-8")) for path in paths]
    (chosen,) = rng.choices(found, [len(mutants) for mutants in found])
    kind = rng.choice(sorted({mutant.kind for mutant in chosen}))
    return rng.choice([mutant for mutant in chosen if mutant.kind == kind])


def _functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield within + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{within}{node.name}.")


def _expressions(body: Sequence[ast.AST]) -> Iterator[ast.expr]:
    """Expressions below some nodes that decide what the code does."""
    for node in body:
        if isinstance(node, (ast.Raise, ast.JoinedStr, ast.arguments)):
            continue
        if isinstance(node, ast.keyword) and node.arg == "strict":
            continue  # of a zip: lengths that agree, said again
        if isinstance(node, ast.AnnAssign):
            yield from _expressions([node.target, *([node.value] if node.value else [])])
            continue
        if isinstance(node, ast.expr):
            yield node
        children = ast.iter_child_nodes(node)
        decorators = node.decorator_list if isinstance(node, ast.FunctionDef) else []
        returns = node.returns if isinstance(node, ast.FunctionDef) else None
        yield from _expressions([child for child in children if child not in decorators and child is not returns])


def _changes(node: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """What an expression could become, each with the kind of change."""
    changed = copy.deepcopy(node)
    match changed:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            changed.ops = [COMPARISONS[type(op)]()]
            yield "comparison", changed
        case ast.BinOp(op=op) if type(op) in OPERATORS and not _joins_text(changed):
            changed.op = OPERATORS[type(op)]()
            yield "operator", changed
        case ast.BoolOp(op=op):
            changed.op = ast.Or() if isinstance(op, ast.And) else ast.And()
            yield "and, or", changed
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield "sign", operand
        case ast.Constant(value=bool(value)):
            yield "constant", ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield "constant", ast.Constant(value + 1)
        case ast.IfExp(body=body, orelse=other):
            changed.body, changed.orelse = other, body
            yield "branch", changed
        case ast.Call(func=ast.Name(id=name)) if name in CALLS:
            changed.func = ast.Name(CALLS[name])
            yield "least, most", changed
        case ast.Call(args=[first, second, *_]) if _can_swap(first, second):
            changed.args[:2] = [second, first]
            yield "arguments", changed


def _joins_text(node: ast.BinOp) -> bool:
    return any(
        isinstance(side, (ast.JoinedStr, ast.List, ast.Tuple))
        or (isinstance(side, ast.Constant) and isinstance(side.value, str))
        for side in (node.left, node.right)
    )


def _can_swap(first: ast.expr, second: ast.expr) -> bool:
    both_plain = not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred)
    return both_plain and ast.dump(first) != ast.dump(second)
