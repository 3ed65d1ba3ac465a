"""Tables over the neighbours of what a proof joins away, and the least that messages leave of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import numpy as np

from strategy.base.errors import CertificateError
from strategy.ilp.certificate.proof import IntArray
from strategy.ilp.certificate.working import Working, legal

# Cells of one table.
MAX_CELLS = 1 << 22
MAX_SCOPE = 16


@dataclass(frozen=True, slots=True)
class JoinScope:
    """Nodes with the same neighbours, `scope`, ascending."""

    scope: tuple[int, ...]
    nodes: tuple[int, ...]


def joins_of(work: Working, joined: IntArray) -> list[JoinScope]:
    """The joins of a proof, by ascending scope.

    Raises:
        CertificateError: nodes not ascending or not there, that hold memory, or that have a table between them.
    """
    if (np.diff(joined) <= 0).any():
        raise CertificateError("joined nodes that are not ascending")
    nodes = joined.tolist()
    inside = set(nodes)
    groups: dict[tuple[int, ...], list[int]] = {}
    for node in nodes:
        if node not in work.costs:
            raise CertificateError("no such node is left", got=node)
        if work.spans[node]:
            raise CertificateError(f"node {node} is joined away, but it holds memory")
        if not inside.isdisjoint(work.tables[node]):
            raise CertificateError(f"node {node} is joined away, and so is a neighbour")
        groups.setdefault(tuple(sorted(work.tables[node])), []).append(node)
    return [JoinScope(scope, tuple(members)) for scope, members in sorted(groups.items())]


def least_left(
    work: Working, costs: Mapping[int, IntArray], join: JoinScope, messages: list[IntArray], bits: int, *, infinite: int
) -> int | None:
    """The least entry of a join's table without its messages; None if it has no legal one.

    Args:
        work: whose tables to add.
        costs: of the nodes, in units of 2^-`bits`, forbidden ones `infinite`.
        join: which one.
        messages: to the choices of its scope, in order.
        bits: the scale.
        infinite: what forbidden entries are; twice as much does not overflow.

    Raises:
        CertificateError: too many cells, or numbers too large to be added exactly.
    """
    lines = [_lines([work.tables[other][node] for node in join.nodes]) for other in join.scope]
    shape = [first.size for first, _ in lines]
    widest = max(costs[node].size for node in join.nodes)
    if len(shape) > MAX_SCOPE or prod(shape) * widest > MAX_CELLS:
        raise CertificateError("a join that is too wide", got=shape, expected=f"at most {MAX_CELLS} cells")
    total = np.zeros(shape, np.int64)
    for node in join.nodes:
        joint = costs[node].reshape([1] * len(shape) + [-1])
        for axis, other in enumerate(join.scope):
            part = _scaled(work.tables[other][node][lines[axis][0]], bits, infinite)
            joint = _sum(joint, part.reshape([*_along(axis, shape), -1]), infinite)
        total = _sum(total, joint.min(axis=-1, initial=infinite), infinite)
    allowed = total < infinite
    if not allowed.any():
        return None
    largest = int(np.abs(total[allowed]).max())
    for axis, (message, (first, line)) in enumerate(zip(messages, lines, strict=True)):
        most = np.full(first.size, -infinite)
        np.maximum.at(most, line, message)
        largest += int(np.abs(most).max())
        if largest >= infinite:
            raise CertificateError("the scale is too fine for exact sums", got=bits)
        total = total - most.reshape(_along(axis, shape))
    return int(total[allowed].min())


def _lines(tables: list[IntArray]) -> tuple[IntArray, IntArray]:
    """Choices that all tables treat alike are one line: a choice of each line, and the line of each choice."""
    _, first, line = np.unique(np.hstack(tables), axis=0, return_index=True, return_inverse=True)
    return first, line.reshape(-1)


def _along(axis: int, shape: list[int]) -> list[int]:
    """The shape of what varies along one axis only."""
    return [size if k == axis else 1 for k, size in enumerate(shape)]


def _scaled(entries: IntArray, bits: int, infinite: int) -> IntArray:
    allowed = legal(entries)
    finite = np.where(allowed, entries, 0)
    if int(np.abs(finite).max(initial=0)) << bits >= infinite:
        raise CertificateError("the scale is too fine for exact sums", got=bits)
    return np.where(allowed, finite << bits, infinite)


def _sum(one: IntArray, other: IntArray, infinite: int) -> IntArray:
    """The broadcast sum; forbidden entries stay forbidden."""
    forbidden = (one >= infinite) | (other >= infinite)
    total = np.where(forbidden, 0, one + other)
    if int(np.abs(total).max(initial=0)) >= infinite:
        raise CertificateError("the scale is too fine for exact sums")
    return np.where(forbidden, infinite, total)
