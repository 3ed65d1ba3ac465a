"""The exact solver: reductions, elimination, multipliers, and CP-SAT on what they leave.

1. Without memory, elimination gives the optimum; if it fits, it is the answer.
2. With memory, one price per row bounds the optimum; the choices met on the way, repaired by descent, are the
   incumbents; whatever cannot cost less than the incumbent is fixed away, and the smaller core is priced again.
3. CP-SAT proves on the remaining core that nothing is cheaper, or finds it.

Every bound is in exact integers; `optimal` is never said on the word of a floating-point tolerance.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from strategy.errors import InternalError
from strategy.problem import FORBIDDEN, Problem, evaluate
from strategy.solve.backends import solve_cp_sat, solve_highs
from strategy.solve.core import Core, NoChoiceError, build_core
from strategy.solve.descent import descend
from strategy.solve.elimination import Bucket, plan_elimination, sweep
from strategy.solve.linear import linearise
from strategy.solve.multipliers import raise_bound
from strategy.solve.peak import find_legal
from strategy.solve.reductions import reduce_core
from strategy.solve.solution import Solution, SolveStatus

# Cells of all joined tables of one elimination: 128 MB of int64.
ELIMINATION_CELLS = 1 << 24
# Above this many columns CP-SAT is slow to find a first choice and HiGHS goes first.
WIDE_COLUMNS = 20_000
# Share of the choices that a round of fixing must remove to be worth another.
WORTHWHILE = 0.1


@dataclass(slots=True)
class Incumbent:
    """The best legal choice so far, priced on the original problem."""

    problem: Problem
    started_s: float
    cost: int | None = None
    choice: tuple[int, ...] | None = None
    peak: int | None = None
    first_feasible_s: float | None = None
    tried: set[tuple[int, ...]] = field(default_factory=set)

    def offer(self, choice: Sequence[int]) -> None:
        """Takes `choice` if it is legal and cheaper."""
        value = evaluate(self.problem, choice)
        fits = self.problem.limit is None or value.peak <= self.problem.limit
        if fits and value.cost < FORBIDDEN and (self.cost is None or value.cost < self.cost):
            self.cost, self.peak, self.choice = value.cost, value.peak, tuple(choice)
            if self.first_feasible_s is None:
                self.first_feasible_s = time.perf_counter() - self.started_s

    def offer_picks(self, core: Core, picks: dict[int, int]) -> None:
        """Lifts the choice of a core's live nodes and takes it if it is legal and cheaper."""
        full = core.lift(picks)
        self.offer([full[node] for node in range(len(self.problem.nodes))])


def solve(
    problem: Problem, *, time_limit_s: float | None = None, starts: Sequence[Sequence[int]] = ()
) -> Solution:
    """The cheapest legal choice, with a proof or with a bound.

    Args:
        problem: what to solve; it is never changed.
        time_limit_s: wall time after which the best choice and bound so far are returned with status `limit`.
        starts: known choices; the answer is never worse than the legal ones among them.

    Returns:
        Status, choice, exact cost and lower bound. Same problem, no time limit: same answer.

    Raises:
        InputError: the problem is malformed.
    """
    started_s = time.perf_counter()
    deadline_s = math.inf if time_limit_s is None else started_s + time_limit_s
    incumbent = Incumbent(problem, started_s)
    for choice in starts:
        incumbent.offer(choice)
    proof = _Proof()
    infeasible = False
    try:
        _search(build_core(problem), incumbent, proof, deadline_s)
    except NoChoiceError:
        # Choices that cannot beat the incumbent were dropped on the way: nothing left means that it is optimal.
        if incumbent.cost is None:
            infeasible = _confirm_infeasible(problem, incumbent, deadline_s)
        elif proof.lower_bound is None or proof.lower_bound < incumbent.cost:
            proof.lower_bound = incumbent.cost
    return _solution(incumbent, proof, infeasible, deadline_s)


@dataclass(slots=True)
class _Proof:
    """The best bound so far and the step that gave it."""

    lower_bound: int | None = None
    method: str = ""

    def raise_to(self, bound: int, method: str) -> None:
        self.method = method
        if self.lower_bound is None or bound > self.lower_bound:
            self.lower_bound = bound


def _search(core: Core, incumbent: Incumbent, proof: _Proof, deadline_s: float) -> None:
    """Runs the steps until the bound meets the incumbent or the time is over."""
    proof.raise_to(core.constant, "reduction")
    if _solve_free(core, incumbent, proof, deadline_s):
        return
    reduce_core(core, deadline_s=deadline_s)
    proof.raise_to(core.constant, "reduction")
    if incumbent.cost is None:
        _find_first(core, incumbent, deadline_s)
    size = 0
    while incumbent.cost != proof.lower_bound and time.perf_counter() < deadline_s:
        before, size = size, sum(cost.size for cost in core.costs.values())
        if before and size > (1 - WORTHWHILE) * before:
            break
        buckets = plan_elimination(core, max_cells=ELIMINATION_CELLS)
        if buckets is None:
            break
        _price_and_fix(core, buckets, incumbent, proof, deadline_s)
    if incumbent.cost != proof.lower_bound and time.perf_counter() < deadline_s:
        _close(core, incumbent, proof, deadline_s)


def _solve_free(core: Core, incumbent: Incumbent, proof: _Proof, deadline_s: float) -> bool:
    """Solves the relaxation without memory by elimination; whether that settles the problem."""
    free = core.without_memory()
    reduce_core(free, deadline_s=deadline_s)
    buckets = plan_elimination(free, max_cells=ELIMINATION_CELLS)
    if buckets is None:
        return False
    run = sweep(buckets, free.costs)
    if run.cost >= FORBIDDEN:
        raise NoChoiceError
    proof.raise_to(run.cost + free.constant, "elimination")
    incumbent.offer_picks(free, run.picks)
    return incumbent.cost == proof.lower_bound


def _price_and_fix(
    core: Core, buckets: tuple[Bucket, ...], incumbent: Incumbent, proof: _Proof, deadline_s: float
) -> None:
    """Raises the bound by prices on memory, and drops the choices that cannot be part of anything cheaper."""

    def offer(picks: dict[int, int]) -> int | None:
        incumbent.offer_picks(core, picks)
        repaired = descend(core, picks, deadline_s=deadline_s, max_sweeps=8)
        if repaired is not None:
            incumbent.offer_picks(core, repaired)
        return incumbent.cost

    bound = raise_bound(core, buckets, offer=offer, deadline_s=deadline_s)
    proof.raise_to(bound.lower_bound, "multipliers")
    if incumbent.cost is None or bound.lower_bound >= incumbent.cost:
        return
    for node, by_choice in bound.by_choice.items():
        cheaper = np.flatnonzero(by_choice < incumbent.cost)
        if cheaper.size < by_choice.size:
            core.keep(node, cheaper)
    reduce_core(core, deadline_s=deadline_s)


def _find_first(core: Core, incumbent: Incumbent, deadline_s: float) -> None:
    """Looks for a legal choice from the cheapest and from the smallest options."""
    cheapest = {node: int(cost.argmin()) for node, cost in core.costs.items()}
    smallest = {
        node: int(np.lexsort((cost, sum((span.amounts for span in core.spans[node]), np.zeros(cost.size))))[0])
        for node, cost in core.costs.items()
    }
    for seed, start in enumerate((cheapest, smallest)):
        picks = descend(core, start, deadline_s=deadline_s, seed=seed)
        if picks is not None:
            incumbent.offer_picks(core, picks)


def _close(core: Core, incumbent: Incumbent, proof: _Proof, deadline_s: float) -> None:
    """Asks the solvers about the remaining core; raises NoChoiceError where nothing cheaper is left."""
    program = linearise(core)
    if incumbent.cost is None or program.objective.size > WIDE_COLUMNS:
        left_s = deadline_s - time.perf_counter()
        answer = solve_highs(program, time_limit_s=left_s if math.isinf(left_s) else 0.5 * left_s)
        if answer.infeasible:
            proof.method = "highs"
            raise NoChoiceError
        if answer.picks is not None:
            incumbent.offer_picks(core, answer.picks)
        if answer.bound is not None:
            bound = answer.bound + core.constant
            # A floating-point bound may support a gap, never a proof: CP-SAT has the last word.
            proof.raise_to(bound if incumbent.cost is None else min(bound, incumbent.cost - 1), "highs")
    below = None if incumbent.cost is None else incumbent.cost - core.constant
    if below is not None and below <= 0:
        raise NoChoiceError
    answer = solve_cp_sat(program, below=below, time_limit_s=deadline_s - time.perf_counter())
    proof.method = "cp-sat"
    if answer.infeasible:
        raise NoChoiceError
    if answer.picks is not None:
        incumbent.offer_picks(core, answer.picks)
    if answer.bound is not None:
        proof.raise_to(answer.bound + core.constant, "cp-sat")


def _confirm_infeasible(problem: Problem, incumbent: Incumbent, deadline_s: float) -> bool:
    """A second opinion from a model built from the problem itself; a choice that it finds is taken."""
    answer = find_legal(problem, time_limit_s=deadline_s - time.perf_counter())
    if answer.choice is not None:
        incumbent.offer(answer.choice)
        if incumbent.cost is None:
            raise InternalError(f"problem {problem.name!r}: CP-SAT's choice is not legal: {answer.choice}")
    return answer.infeasible


def _solution(incumbent: Incumbent, proof: _Proof, infeasible: bool, deadline_s: float) -> Solution:
    ended_s = time.perf_counter()
    lower_bound = proof.lower_bound or 0
    if infeasible:
        status = SolveStatus.INFEASIBLE
    elif incumbent.cost is not None and lower_bound >= incumbent.cost:
        status, lower_bound = SolveStatus.OPTIMAL, incumbent.cost
    else:
        status = SolveStatus.LIMIT if ended_s >= deadline_s else SolveStatus.FEASIBLE
    return Solution(
        status=status,
        choice=incumbent.choice,
        cost=incumbent.cost,
        lower_bound=lower_bound,
        peak=incumbent.peak,
        solve_time_s=ended_s - incumbent.started_s,
        first_feasible_s=incumbent.first_feasible_s,
        method=proof.method,
    )
