"""Problems for tests: small random ones for the oracle, and a ladder of the shape that our own search makes."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem, Usage, evaluate


def random_problem(rng: random.Random) -> Problem:
    """At most eight nodes, with everything that can be awkward.

    Forbidden pairs and choices, parallel edges both ways, loops, ties, equal rows, bijections, several usages per
    node, empty lifetimes, limits from impossible to slack. Costs range from a few units (ties) to 10^13.
    """
    count = rng.choice((1, 2, 3, 4, 5, 6, 7, 8, 8, 8))
    top = rng.choice((2, 10, 10**4, 10**9, 10**13))
    forbidden = rng.choice((0.0, 0.0, 0.1, 0.3))
    horizon = rng.randrange(1, 7)
    held = rng.choice((3, 100, 10**10))

    def price() -> int:
        return FORBIDDEN if rng.random() < forbidden else rng.randrange(top)

    nodes = []
    for i in range(count):
        choices = rng.choice((1, 2, 3, 3, 4))
        usages = []
        for _ in range(rng.choice((0, 1, 1, 1, 2))):
            begin = rng.randrange(horizon)
            usages.append(Usage(begin, rng.randrange(begin, horizon + 1), _amounts(rng, choices, held)))
        costs = tuple(FORBIDDEN if rng.random() < forbidden / 4 else rng.randrange(top) for _ in range(choices))
        nodes.append(Node(f"n{i}", costs, tuple(usages)))
    edges = []
    for _ in range(rng.randrange(3 * count)):
        tail, head = rng.randrange(count), rng.randrange(count)
        rows, columns = len(nodes[tail].costs), len(nodes[head].costs)
        kind = rng.randrange(4)
        if kind == 0 and rows == columns:
            order = rng.sample(range(rows), rows)
            cells = [price() if order[row] == column else FORBIDDEN for row in range(rows) for column in range(columns)]
        elif kind == 1:
            classes = [[price() for _ in range(columns)] for _ in range(2)]
            cells = [cell for _ in range(rows) for cell in rng.choice(classes)]
        else:
            cells = [price() for _ in range(rows * columns)]
        edges.append(Edge(tail, head, tuple(cells)))
    problem = Problem("random", tuple(nodes), tuple(edges), None)
    kind = rng.randrange(8)
    if kind == 0:
        return problem
    least = evaluate(problem, [min(range(len(node.costs)), key=_held(node)) for node in nodes]).peak
    likely = evaluate(problem, [rng.randrange(len(node.costs)) for node in nodes]).peak
    # One in four below what is possible, the rest mostly binding.
    limit = max(least - 1, 0) if kind <= 2 else rng.randint(min(least, likely), max(least, likely))
    return replace(problem, limit=limit)


def _held(node: Node) -> Callable[[int], int]:
    return lambda choice: sum(usage.amounts[choice] for usage in node.usages)


def _amounts(rng: random.Random, choices: int, held: int) -> tuple[int, ...]:
    return tuple(rng.choice((0, rng.randrange(held))) for _ in range(choices))


def ladder(*, rungs: int = 60, seed: int = 0, limit: int | None = None) -> Problem:
    """`rungs` forward ops, each linked to the next and to its backward op, 5 * rungs conversions in all.

    An op's choices are pairs of 1-D choices (3 to 7 per axis), hence 9 to 49. A conversion (unused, native,
    converted) stands between a producer and one to three consumers: the producer's layout decides whether the tensor
    is native or converted, a consumer's layout whether it is used. Memory: an op's output lives from its forward
    time to its backward time; a backward op's output lives for two instants.
    """
    rng = random.Random(seed)
    ops = 2 * rungs
    sizes = [rng.choice((3, 4, 5, 6, 7)) for _ in range(ops)]
    # Choice c of an op lays out its tensors as (c // size, c % size), one 1-D layout per mesh axis.
    nodes: list[Node] = []
    for op, size in enumerate(sizes):
        full_ns, full_bytes = rng.randrange(10**5, 10**8), rng.randrange(10**7, 10**9)
        shards = [rng.choice((1, 2, 4, 8)) for _ in range(size)]
        costs, held = [], []
        for pick in range(size * size):
            parts = shards[pick // size] * shards[pick % size]
            costs.append(full_ns // parts + rng.randrange(1_000, 10**6) * (parts - 1))
            held.append(full_bytes // min(parts, shards[pick // size] * 2))
        end = ops - op if op < rungs else op + 2
        nodes.append(Node(f"op{op}", tuple(costs), (Usage(op, max(end, op + 1), tuple(held)),)))
    edges: list[Edge] = []

    def link(producer: int, consumers: list[int]) -> None:
        conversion = len(nodes)
        native = rng.randrange(3)
        nodes.append(Node(f"conversion{conversion}", (0, rng.randrange(1_000, 10**5), rng.randrange(10**5, 10**8))))
        edges.append(Edge(producer, conversion, tuple(_classes(rng, sizes[producer], native))))
        edges.extend(
            Edge(conversion, consumer, tuple(_transposed(_classes(rng, sizes[consumer], native), 3)))
            for consumer in consumers
        )

    for op in range(ops - 1):
        link(op, [op + 1])
    for op in range(rungs):
        link(op, [ops - 1 - op] if op % 3 else [ops - 1 - op, min(op + 1, ops - 1)])
        link(op, [min(op + 2, ops - 1), ops - 1 - op])
    while len(nodes) < ops + 5 * rungs:
        op = rng.randrange(ops - 1)
        link(op, [op + 1])
    return Problem("ladder", tuple(nodes), tuple(edges), limit)


def _classes(rng: random.Random, size: int, native: int) -> list[int]:
    """A (size * size, 3) table whose row depends on one axis of the layout alone: few distinct rows."""
    axis = rng.randrange(2)
    lines = []
    for layout in range(size):
        matches = layout % 3 == native
        transfer_ns = rng.randrange(1_000, 10**7)
        lines.append((FORBIDDEN if matches else 0, 0 if matches else FORBIDDEN, transfer_ns))
    return [cell for pick in range(size * size) for cell in lines[pick // size if axis == 0 else pick % size]]


def _transposed(cells: list[int], columns: int) -> list[int]:
    rows = len(cells) // columns
    return [cells[row * columns + column] for column in range(columns) for row in range(rows)]
