"""Compiles the hot loops once, so that the first problem does not wait: `python -m strategy.ilp.solve.warm`."""

from __future__ import annotations

import numpy as np

from strategy.ilp.problem import Edge, Node, Problem, Usage
from strategy.ilp.solve.build import build_core
from strategy.ilp.solve.dual_ascent import start_dual_ascent
from strategy.ilp.solve.message_bound import certify_messages
from strategy.ilp.solve.packed_arrays import lifetime_rank
from strategy.ilp.solve.primal import PrimalHeuristic
from strategy.ilp.solve.relaxation import relax


def warm() -> None:
    """Runs every compiled loop on a problem of four nodes, with the types that it always has."""
    nodes = tuple(Node(f"n{i}", (i, 3 - i), (Usage(i, i + 2, (2, 5)),) if i else ()) for i in range(4))
    edges = (*(Edge(0, i, (1, 2, 3, 0)) for i in (1, 2, 3)), Edge(1, 2, (0, 4, 2, 1)))
    problem = Problem("warm", nodes, edges, limit=10)
    relaxation = relax(build_core(problem), lifetime_rank(problem))
    ascent = start_dual_ascent(
        relaxation.relaxed.arrays, relaxation.relaxed.core.constant, np.zeros(relaxation.exact.room.size)
    )
    ascent.ascend(3)
    ascent.probe(0, 1, 1.0, 1)
    certify_messages(relaxation, ascent)
    primal = PrimalHeuristic(relaxation.full.arrays)
    primal.consider(relaxation.complete(ascent.decoded), ascent.best_prices, 1.0)
    primal.improve(ascent.best_prices, 1000)


if __name__ == "__main__":
    warm()
