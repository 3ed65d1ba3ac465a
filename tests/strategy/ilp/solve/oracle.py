"""What tests of the solver compare with: every choice of a core, the checker, and a problem worked by hand."""

from __future__ import annotations

import itertools
import random

import numpy as np

from strategy.base.status import Status
from strategy.ilp.certificate.check import CheckedCertificate, check
from strategy.ilp.certificate.digest import problem_digest
from strategy.ilp.certificate.proof import Certificate
from strategy.ilp.problem import FORBIDDEN, Edge, Node, Problem, Usage
from strategy.ilp.solve import Solution, brute_force
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.certified_bound import CertifiedBound
from strategy.ilp.solve.core import Core
from strategy.ilp.solve.memory_rows import drop_oversized
from strategy.ilp.solve.reductions import drop_forbidden
from tests.strategy.ilp.problems import random_problem

# Held, 0 costs nothing and takes 5 bytes; 1 costs 10 and takes none; 3 bytes are there. At a price p of a byte the
# relaxation is min(5 p, 10) - 3 p: at most 4, at p = 2, where both are alike. The optimum is 10.
DILEMMA = Problem("dilemma", (Node("a", (0, 10), (Usage(0, 1, (5, 0)),)),), (), limit=3)


def replayed(problem: Problem, answer: Solution) -> CheckedCertificate:
    """What the checker says about an answer's proof."""
    assert answer.proof is not None
    bound = None if answer.status is Status.INFEASIBLE else answer.lower_bound
    claim = Certificate(problem_digest(problem), answer.choice, answer.cost, bound, answer.proof)
    return check(problem, claim)


def feasible_cases(seed: int, count: int) -> list[tuple[Problem, Core, tuple[int, tuple[int, ...]]]]:
    """Random problems with a legal choice, arc-consistent but otherwise as they are, and their optima."""
    rng = random.Random(seed)
    found = []
    while len(found) < count:
        problem = random_problem(rng)
        oracle = brute_force(problem)
        if oracle is not None:
            core = build_core(problem)
            drop_forbidden(core)
            drop_oversized(core)
            drop_forbidden(core)
            found.append((problem, core, oracle))
    return found


def bound_holds(found: CertifiedBound, core: Core, oracle: tuple[int, tuple[int, ...]]) -> None:
    """The bound is one, and an optimal choice survives fixing against a higher cost."""
    assert found.lower_bound <= oracle[0]
    kept = found.choices_below(oracle[0] + 1)
    picks = {node: oracle[1][node] for node in core.costs}
    for lift in core.trail:
        picks[lift.node] = int(np.flatnonzero(lift.picks == picks[lift.node])[0])
    assert all(picks[node] in few for node, few in kept.items())


def optimum(core: Core) -> tuple[int, dict[int, int]] | None:
    """The oracle on the working form: every choice of the live nodes."""
    best: tuple[int, dict[int, int]] | None = None
    for values in itertools.product(*(range(cost.size) for cost in core.costs.values())):
        picks = dict(zip(core.costs, values, strict=True))
        cells = [int(core.costs[node][pick]) for node, pick in picks.items()]
        cells += [
            int(table[picks[one], picks[other]])
            for one, row in core.tables.items()
            for other, table in row.items()
            if one < other
        ]
        cost = core.constant + sum(cells)
        legal = max(cells, default=0) < FORBIDDEN and bool((core.load(picks) <= core.room).all())
        if legal and (best is None or cost < best[0]):
            best = (cost, picks)
    return best


def lifted(core: Core, picks: dict[int, int], problem: Problem) -> list[int]:
    full = core.lift(picks)
    return [full[node] for node in range(len(problem.nodes))]


def shared_copies(rng: random.Random, *, values: int, layouts: int = 3, held: bool = False) -> Problem:
    """A chain of values, each read by two others in one of several layouts; a copy is paid once for both.

    With `held`, those who read and write hold memory, which is bounded.
    """

    def op(i: int) -> Node:
        costs = tuple(rng.randrange(60) for _ in range(layouts))
        return Node(f"op{i}", costs, (Usage(i, i + 2, tuple(rng.randrange(1, 9) for _ in costs)),) if held else ())

    nodes = [op(i) for i in range(values + 2)]
    edges = []
    for i, layout in itertools.product(range(values), range(layouts)):
        prices = [0 if home == layout else rng.randrange(5, 60) for home in range(layouts)]
        copy = len(nodes)
        nodes.append(Node(f"{i}>{layout}", (0, 0)))
        edges.append(Edge(i, copy, tuple(cell for price in prices for cell in (0, price))))
        need = tuple(cell for wanted in range(layouts) for cell in (FORBIDDEN if wanted == layout else 0, 0))
        edges.extend(Edge(reader, copy, need) for reader in (i + 1, i + 2))
    return Problem("copies", tuple(nodes), tuple(edges), limit=3 * 6 if held else None)
