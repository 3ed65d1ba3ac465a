"""What a certificate is about: a digest of everything in a problem that bears on its optimum, names excepted."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable

import numpy as np

from strategy.base.errors import InputError
from strategy.ilp.problem import FORBIDDEN, Problem


def problem_digest(problem: Problem) -> str:
    """SHA-256, in hexadecimal, of costs, edges, usages and limit, in order.

    Raises:
        InputError: an integer beyond 64 bits other than a forbidden cost.
    """
    usages = [(i, usage) for i, node in enumerate(problem.nodes) for usage in node.usages]
    parts: list[Iterable[int]] = [
        (len(problem.nodes), len(problem.edges), len(usages), problem.limit is not None, problem.limit or 0),
        (len(node.costs) for node in problem.nodes),
        _costs(node.costs for node in problem.nodes),
        (end for edge in problem.edges for end in (edge.tail, edge.head)),
        _costs(edge.costs for edge in problem.edges),
        (word for i, usage in usages for word in (i, usage.begin, usage.end)),
        itertools.chain.from_iterable(usage.amounts for _, usage in usages),
    ]
    digest = hashlib.sha256(b"sbplan problem 1")
    try:
        for part in parts:
            digest.update(np.fromiter(part, "<i8").tobytes())
    except OverflowError:
        raise InputError("an integer of more than 64 bits", where=f"problem {problem.name!r}") from None
    return digest.hexdigest()


def _costs(lines: Iterable[tuple[int, ...]]) -> Iterable[int]:
    return (min(cost, FORBIDDEN) for line in lines for cost in line)
