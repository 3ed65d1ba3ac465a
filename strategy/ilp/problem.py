"""The optimisation problem as plain data: choose one option per node, at least cost, within a memory limit.

This is the problem of the ASPLOS / EuroSys 2025 contest on intra-operator parallelism (iopddl): five small
structs and `evaluate`. One generalisation: a node may hold several `Usage` items, because one choice of
signature lays out several tensors that live at different times (and, when repeated layers are folded, in
several layers). Costs and usages are integers; intervals are half-open; `FORBIDDEN` marks a pair that may
not be chosen together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FORBIDDEN = 10**18


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory that a node holds during [`begin`, `end`): one amount in bytes per choice."""

    begin: int
    end: int
    amounts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """One decision: `costs[c]` is the price of choice `c`."""

    name: str
    costs: tuple[int, ...]
    usages: tuple[Usage, ...] = ()


@dataclass(frozen=True, slots=True)
class Edge:
    """A price on pairs: `costs[t * head_choices + h]` when `tail` takes `t` and `head` takes `h`."""

    tail: int
    head: int
    costs: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Problem:
    """Nodes, edges and the limit on the memory held at any one time (None: unlimited)."""

    name: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]
    limit: int | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What one full choice costs and the most memory that it holds at any time."""

    cost: int
    peak: int


def evaluate(problem: Problem, choice: Sequence[int]) -> Evaluation:
    """Exact cost and peak of `choice`, in Python integers; a cost of `FORBIDDEN` or more is illegal."""
    cost = sum(node.costs[pick] for node, pick in zip(problem.nodes, choice, strict=True))
    for edge in problem.edges:
        width = len(problem.nodes[edge.head].costs)
        cost += edge.costs[choice[edge.tail] * width + choice[edge.head]]
    change: dict[int, int] = {}
    for node, pick in zip(problem.nodes, choice, strict=True):
        for usage in node.usages:
            if usage.begin < usage.end:
                change[usage.begin] = change.get(usage.begin, 0) + usage.amounts[pick]
                change[usage.end] = change.get(usage.end, 0) - usage.amounts[pick]
    live = peak = 0
    for time in sorted(change):
        live += change[time]
        peak = max(peak, live)
    return Evaluation(cost=cost, peak=peak)
