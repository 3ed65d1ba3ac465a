"""The solver: a relaxation bounds the cost, local search finds choices, branch and bound closes the gap between them.

Every bound is in exact integers and comes with its derivation (`Solution.proof`), which
`strategy.ilp.certificate.check` replays without this package.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import InternalError, OutOfTimeError
from strategy.base.status import Status
from strategy.ilp.certificate.proof import Empty, Proof
from strategy.ilp.problem import Problem
from strategy.ilp.solve.branch_and_bound import BranchAndBound
from strategy.ilp.solve.build import build_core, validate
from strategy.ilp.solve.core import NoChoiceError
from strategy.ilp.solve.memory_feasibility import find_legal
from strategy.ilp.solve.packed_arrays import lifetime_rank
from strategy.ilp.solve.progress import Progress, Report
from strategy.ilp.solve.solution import Solution


def solve(
    problem: Problem,
    *,
    budget: Budget = UNLIMITED,
    cutoff: int | None = None,
    gap: float = 0.0,
    enough: int | None = None,
    starts: Sequence[Sequence[int]] = (),
    progress: Report | None = None,
) -> Solution:
    """The cheapest legal choice, with a proof or with a bound.

    Args:
        problem: what to solve.
        budget: the time and the work after which the best choice and bound so far are returned with status `limit`;
            a stop by work is the same on any machine.
        cutoff: only choices cheaper than this are wanted: once none is proved to exist, the status is `cutoff`.
        gap: part of the cost that the bound may be below it: the work ends there, with status `feasible`.
        enough: a bound of so much is all that is wanted: the work ends there, once there is a choice, with status
            `feasible`.
        starts: known choices; the answer is never worse than the legal ones among them.
        progress: called whenever bound or cost move, with seconds, lower bound and cost (None: none yet).

    Returns:
        Status, choice, exact cost, lower bound and its proof. Without a time limit, the same problem has the same
        answer. Interrupted (Ctrl-C), it is the best so far, with status `interrupted`.

    Raises:
        InputError: the problem is malformed.
    """
    started_s = time.monotonic()
    validate(problem)
    known = Progress(problem, started_s, budget, cutoff, progress)
    stopped: Status | None = None
    search = None
    try:
        for choice in starts:
            known.offer(choice)
        core = build_core(problem, budget=budget)
        search = BranchAndBound(core, lifetime_rank(problem), known, gap, enough)
        known.raise_bound(core.constant, "reductions")
        search.run()
    except OutOfTimeError:
        stopped = Status.LIMIT
    except KeyboardInterrupt:
        stopped = Status.INTERRUPTED
    except NoChoiceError:
        return _nothing_left(known, Proof((), Empty()))
    if search is None:
        known.raise_bound(_sum_of_least(problem), known.method)
        return _solution(known, stopped, None)
    bound = search.root.proved_bound()
    proof = search.root.proof()
    if (bound is None or bound > core.cost_ceiling) and stopped is None:
        return _nothing_left(known, proof)
    if bound is not None:
        known.raise_bound(bound, known.method)
    return _solution(known, stopped, proof)


def _sum_of_least(problem: Problem) -> int:
    """What no choice is cheaper than: the least entry of every node and every table."""
    own = sum(min(node.costs) for node in problem.nodes)
    return own + sum(min(edge.costs) for edge in problem.edges)


def _nothing_left(known: Progress, proof: Proof) -> Solution:
    """Nothing is cheaper than what is known; if nothing is known, nothing is legal, which is asked again."""
    if known.upper_bound is None:
        answer = find_legal(known.problem, budget=known.budget)
        if answer.choice is not None:
            raise InternalError(f"problem {known.problem.name!r}: CP-SAT found a choice where there is none")
        if answer.infeasible:
            return _solution(known, Status.INFEASIBLE, proof)
        return _solution(known, Status.LIMIT, None)
    known.lower_bound = known.upper_bound
    return _solution(known, None, proof)


def _solution(known: Progress, stopped: Status | None, proof: Proof | None) -> Solution:
    closed = known.upper_bound is not None and known.upper_bound == known.lower_bound
    if known.cost is not None and known.cost == known.lower_bound:
        status = Status.OPTIMAL
    elif closed:
        status = Status.CUTOFF
    else:
        status = Status.FEASIBLE if stopped is None else stopped
    return Solution(
        status=status,
        choice=known.choice,
        cost=known.cost,
        lower_bound=known.lower_bound or 0,
        peak=known.peak,
        solve_time_s=time.monotonic() - known.started_s,
        first_feasible_s=known.first_feasible_s,
        method=known.method,
        proof=proof,
    )
