"""Copies of the contest's instances, permuted, renamed and with scaled costs: no copy is solved worse than another.

A case is one copy: of A, G, M and S in turn. Original and copy are solved by the command, each in a process of its own
and within the instance's time limit, so a case takes minutes; costs may differ by `TOLERANCE` at most, both ways.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

from experiments.bench.search_problems import INSTANCES
from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem, Usage
from strategy.ilp.problem_file import read_problem, write_problem
from tests.campaigns.outcome import Outcome
from tests.campaigns.solve_command import Solved, run_solve

LIMITS_S = {"A": 60, "G": 60, "M": 180, "S": 240}
TOLERANCE = 0.002
SCALES = (1, 2, 3, 7)
QUOTAS = {"nodes moved": 1.0, "choices moved": 1.0, "edges turned": 1.0, "scaled": 0.5}


def run(cases: int, seed: int) -> Outcome:
    """Solve `cases` copies."""
    outcome = Outcome(QUOTAS)
    letters = list(LIMITS_S)
    with tempfile.TemporaryDirectory() as folder:
        for number in range(seed, seed + cases):
            letter, rng = letters[number % len(letters)], random.Random(number)
            scale = rng.choice(SCALES) if number % 2 else rng.choice(SCALES[1:])
            copy = copied(read_problem(_path(letter)), rng, scale)
            path = Path(folder) / f"copy{number}.json.gz"
            write_problem(copy, path)
            exercised = ["nodes moved", "choices moved", "edges turned", *(["scaled"] * (scale > 1))]
            outcome.add(f"copy {number} of {letter}", _compare(letter, path, scale), exercised)
            path.unlink()
    return outcome


def copied(problem: Problem, rng: random.Random, scale: int) -> Problem:
    """The same problem with other names, another order of nodes, choices and edges, and `scale` times its costs."""
    order = rng.sample(range(len(problem.nodes)), len(problem.nodes))
    place = {old: new for new, old in enumerate(order)}
    picks = [rng.sample(range(len(node.costs)), len(node.costs)) for node in problem.nodes]

    def scaled(cost: int) -> int:
        return cost if cost >= FORBIDDEN else cost * scale

    def moved(old: int) -> Node:
        node = problem.nodes[old]
        usages = tuple(Usage(u.begin, u.end, tuple(u.amounts[c] for c in picks[old])) for u in node.usages)
        return Node(f"copy{place[old]}", tuple(scaled(node.costs[c]) for c in picks[old]), usages)

    edges = []
    for edge in problem.edges:
        width = len(problem.nodes[edge.head].costs)
        tail, head, across = edge.tail, edge.head, False
        if rng.random() < 0.5:
            tail, head, across = head, tail, True
        cells = [
            scaled(edge.costs[h * width + t] if across else edge.costs[t * width + h])
            for t in picks[tail]
            for h in picks[head]
        ]
        edges.append(Edge(place[tail], place[head], tuple(cells)))
    rng.shuffle(edges)
    nodes = tuple(moved(old) for old in order)
    return replace(problem, name=f"copy{rng.randrange(10**9)}", nodes=nodes, edges=tuple(edges))


def _compare(letter: str, path: Path, scale: int) -> Iterator[str]:
    original, copy = _solved(letter), run_solve(path, "--time-limit", LIMITS_S[letter])
    if original.cost is None or copy.cost is None:
        yield f"costs {original.cost} and {copy.cost}"
    elif abs(copy.cost / scale - original.cost) > TOLERANCE * original.cost:
        yield f"cost {copy.cost} / {scale} is not about {original.cost}"


@cache
def _solved(letter: str) -> Solved:
    return run_solve(_path(letter), "--time-limit", LIMITS_S[letter])


def _path(letter: str) -> Path:
    return INSTANCES / f"asplos-2025-iopddl-{letter}.json.gz"
