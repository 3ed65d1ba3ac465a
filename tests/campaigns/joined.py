"""Two of the contest's instances as one problem: sizes beyond each, up to 68,000 nodes and 11 million table cells.

In even cases the second begins when the first has ended, so that the cost of the whole is known: no more than the sum
of the parts' best. In odd ones they run beside each other and share their memory. A case takes `LIMIT_S`; it must find
something legal, with a gap of at most `MOST_GAP`, stop in time, and stay within `MOST_BYTES` of memory.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from experiments.bench.search_problems import INSTANCES
from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem, Usage
from strategy.ilp.problem_file import read_problem, write_problem
from tests.campaigns.outcome import Outcome
from tests.campaigns.solve_command import Solved, run_solve

LIMIT_S = 240
LATE_S = 0.05 * LIMIT_S
MOST_GAP = 0.08
MOST_BYTES = 2 * 2**30
TOLERANCE = 0.002
# The best known costs; the contest's best of twenty teams are up to 1.5 % above.
BEST = {"A": 6548553650, "G": 217039, "M": 49928157500, "S": 1511377982}
PAIRS = (("M", "A"), ("S", "A"), ("M", "S"), ("A", "G"), ("M", "G"), ("S", "G"))
QUOTAS = {"after": 0.5, "beside": 0.4}


def run(cases: int, seed: int) -> Outcome:
    """Solve `cases` joined problems."""
    outcome = Outcome(QUOTAS if cases > 1 else {})
    with tempfile.TemporaryDirectory() as folder:
        for number in range(seed, seed + cases):
            letters = random.Random(number // 2).choice(PAIRS)
            how = "beside" if number % 2 else "after"
            scale = max(1, BEST[letters[0]] // BEST[letters[1]])
            path = Path(folder) / f"joined{number}.json.gz"
            write_problem(joined(*map(_instance, letters), scale=scale, beside=how == "beside"), path)
            known = BEST[letters[0]] + scale * BEST[letters[1]] if how == "after" else None
            said = run_solve(path, "--time-limit", LIMIT_S)
            outcome.add(f"case {number}: {letters} {how}", _faults(said, known), [how])
            path.unlink()
    return outcome


def joined(one: Problem, other: Problem, *, scale: int, beside: bool) -> Problem:
    """Both problems, the second with `scale` times its costs, later than the first or beside it.

    Memory is brought to the larger limit, rounded down: what is legal apart is legal together.
    """
    if one.limit is None or other.limit is None:
        raise ValueError("both need a limit")
    limit = max(one.limit, other.limit)
    ended = max(usage.end for node in one.nodes for usage in node.usages)
    late = _moved(other, scale=scale, later=0 if beside else ended, limit=limit)
    first = _moved(one, scale=1, later=0, limit=limit)
    count = len(one.nodes)
    edges = (replace(edge, tail=edge.tail + count, head=edge.head + count) for edge in late.edges)
    both = limit * 2 if beside else limit
    return Problem("joined", first.nodes + late.nodes, (*first.edges, *edges), both)


def _moved(problem: Problem, *, scale: int, later: int, limit: int) -> Problem:
    own = problem.limit or 1

    def scaled(costs: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(cost if cost >= FORBIDDEN else cost * scale for cost in costs)

    def moved(usage: Usage) -> Usage:
        return Usage(usage.begin + later, usage.end + later, tuple(a * limit // own for a in usage.amounts))

    nodes = tuple(Node(node.name, scaled(node.costs), tuple(map(moved, node.usages))) for node in problem.nodes)
    edges = tuple(Edge(edge.tail, edge.head, scaled(edge.costs)) for edge in problem.edges)
    return Problem(problem.name, nodes, edges, limit)


def _faults(said: Solved, known: int | None) -> Iterator[str]:
    if said.cost is None:
        yield "nothing legal was found"
        return
    if said.cost - said.lower_bound > MOST_GAP * said.cost:
        yield f"cost {said.cost} is far above the bound of {said.lower_bound}"
    if known is not None and said.cost > (1 + TOLERANCE) * known:
        yield f"cost {said.cost}, while {known} is known"
    if said.seconds > LIMIT_S + LATE_S:
        yield f"it took {said.seconds:.1f} s"
    if said.peak_rss_bytes > MOST_BYTES:
        yield f"it took {said.peak_rss_bytes} bytes"


def _instance(letter: str) -> Problem:
    return read_problem(INSTANCES / f"asplos-2025-iopddl-{letter}.json.gz")
