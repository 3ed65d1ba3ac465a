"""Synthetic problems of the shape that our own search makes: a ladder of ops, joined by conversions."""

from __future__ import annotations

import random

from strategy.problem import FORBIDDEN, Edge, Node, Problem, Usage


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
        for consumer in consumers:
            edges.append(Edge(conversion, consumer, tuple(_transposed(_classes(rng, sizes[consumer], native), 3))))

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
