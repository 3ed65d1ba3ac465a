"""The same problem again: other hash seeds and other folders never change an answer that a proof or work ends.

A case is one run of `sbplan solve` in a process of its own, on a random problem, a ladder, a ladder with so little
memory that a limit of work ends it, and the contest's G, in turn; its answer must be the first run's, to the byte.
"""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from experiments.bench.search_problems import INSTANCES
from strategy.ilp.problem import Node, Usage
from strategy.ilp.problem_file import write_problem
from strategy.ilp.solve import brute_force, smallest_limit
from tests.campaigns.outcome import Outcome
from tests.campaigns.solve_command import Solved, run_solve
from tests.strategy.ilp.problems import ladder, random_problem

LIMITED = "a limit of work"
WORK_LIMIT = 5
QUOTAS = {"a random problem": 0.2, "a ladder": 0.2, "an instance": 0.2, LIMITED: 0.2}


def run(cases: int, seed: int) -> Outcome:
    """Make `cases` runs."""
    outcome = Outcome(QUOTAS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        paths = _problems(folder, seed)
        firsts: dict[str, Solved] = {}
        kinds = list(paths)
        for number in range(cases):
            kind = kinds[number % len(kinds)]
            cwd = folder / f"run{number}"
            cwd.mkdir()
            limit = ("--work-limit", WORK_LIMIT) if kind == LIMITED else ()
            said = run_solve(paths[kind], *limit, cwd=cwd, env={"PYTHONHASHSEED": str(number)})
            found = _differences(firsts.setdefault(kind, said), said, "limit" if kind == LIMITED else "optimal")
            outcome.add(f"run {number} of {kind}", found, [kind])
    return outcome


def _differences(first: Solved, said: Solved, end: str) -> Iterator[str]:
    if said != first:
        yield f"{said}, but the first run said {first}"
    if said.status != end:
        yield f"it ended by {said.status}, not {end}"


def _problems(folder: Path, seed: int) -> dict[str, Path]:
    """A file of each kind; ties are what order could decide."""
    rng = random.Random(seed)
    drawn = (random_problem(rng) for _ in range(1000))
    small = next(p for p in drawn if len(p.nodes) == 8 and all(len(n.usages) < 2 for n in p.nodes) and brute_force(p))
    tied = Node("tied", (1, 1, 1), (Usage(0, 0, (0, 0, 0)),))
    problems = {"a random problem": replace(small, nodes=(*small.nodes, tied)), "a ladder": ladder(rungs=12, seed=seed)}
    tight = ladder(rungs=60, seed=seed)
    problems[LIMITED] = replace(tight, limit=int(1.1 * (smallest_limit(tight) or 0)))
    paths = {"an instance": INSTANCES / "asplos-2025-iopddl-G.json.gz"}
    for number, (kind, problem) in enumerate(problems.items()):
        paths[kind] = folder / f"problem{number}.json"
        write_problem(problem, paths[kind])
    return paths
