"""The exact solver: reductions, elimination, multipliers, messages, and CP-SAT on what they leave.

1. Without memory, elimination gives the optimum; if it fits, it is the answer.
2. With memory, one price per row bounds the optimum; the choices met on the way, repaired by descent, are the
   incumbents. First we aim close to the bound: what could be that cheap is a small core, and CP-SAT finds the optimum
   there or proves the aim a bound. Else what cannot beat the incumbent is fixed away, and the rest is priced again.
3. Where elimination is too wide, messages bound the optimum, and their choices, repaired, are incumbents; what cannot
   beat them is fixed away.
4. CP-SAT proves on the remaining core that nothing is cheaper, or finds it.

Every bound is in exact integers; `optimal` is never said on the word of a floating-point tolerance.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from strategy.errors import InternalError
from strategy.problem import FORBIDDEN, Problem, evaluate
from strategy.solve.backends import solve_cp_sat, solve_highs
from strategy.solve.build import build_core
from strategy.solve.core import Core, NoChoiceError, OutOfTimeError
from strategy.solve.descent import descend
from strategy.solve.elimination import Bucket, plan_elimination, sweep
from strategy.solve.linear import Linear, linearise
from strategy.solve.messages import pass_messages
from strategy.solve.multipliers import Bound, raise_bound
from strategy.solve.peak import find_legal
from strategy.solve.reductions import drop_forbidden, reduce_core
from strategy.solve.solution import Solution, SolveStatus

# Cells of all joined tables of one elimination: 128 MB of int64.
ELIMINATION_CELLS = 1 << 24
# Above this many columns CP-SAT is slow to find a first choice and HiGHS goes first.
WIDE_COLUMNS = 20_000
# Shares of the time left: the relaxation without memory, the reductions with it, HiGHS before CP-SAT,
# and each turn of messages.
FREE_SHARE = 0.25
REDUCTION_SHARE = 0.4
HIGHS_SHARE = 0.5
MESSAGE_SHARE = 0.3
# The aim lies at this part (1 / AIM) of the way from the bound to the incumbent.
AIM = 2
# Visits of each node when a choice met by the multipliers is repaired.
REPAIR_SWEEPS = 8
# Turns of messages, repair and fixing before CP-SAT has the word, and passes of messages in each.
MESSAGE_TURNS = 3
MESSAGE_ROUNDS = 20
# Share of the choices that a round of fixing must remove to be worth another.
WORTHWHILE = 0.1


@dataclass(slots=True)
class Progress:
    """The best legal choice and the best bound so far, both in exact integers of the original problem."""

    problem: Problem
    started_s: float
    deadline_s: float
    cutoff: int | None = None
    cost: int | None = None
    choice: tuple[int, ...] | None = None
    peak: int | None = None
    first_feasible_s: float | None = None
    lower_bound: int | None = None
    method: str = "reductions"

    @property
    def left_s(self) -> float:
        """Time left."""
        return self.deadline_s - time.perf_counter()

    def share(self, part: float) -> float:
        """The deadline of a step that may use this part of the time left."""
        return time.perf_counter() + part * self.left_s

    @property
    def below(self) -> int | None:
        """Only answers that cost less than this are of interest: the incumbent's cost or the cutoff."""
        known = [limit for limit in (self.cost, self.cutoff) if limit is not None]
        return min(known, default=None)

    @property
    def closed(self) -> bool:
        """Whether nothing of interest is left."""
        return self.below is not None and self.below == self.lower_bound

    @property
    def done(self) -> bool:
        """Whether nothing of interest is left, or no time."""
        return self.closed or self.left_s <= 0

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

    def raise_bound(self, bound: int, method: str) -> None:
        """Takes a bound on what is of interest; cut off where that ends, it bounds everything."""
        bound = bound if self.below is None else min(bound, self.below)
        if self.lower_bound is None or bound > self.lower_bound:
            self.lower_bound, self.method = bound, method


def solve(
    problem: Problem,
    *,
    time_limit_s: float | None = None,
    cutoff: int | None = None,
    starts: Sequence[Sequence[int]] = (),
) -> Solution:
    """The cheapest legal choice, with a proof or with a bound.

    Args:
        problem: what to solve.
        time_limit_s: wall time after which the best choice and bound so far are returned with status `limit`.
        cutoff: only choices cheaper than this are wanted: once none is proved to exist, the status is `cutoff`.
        starts: known choices; the answer is never worse than the legal ones among them.

    Returns:
        Status, choice, exact cost and lower bound. Without a time limit, the same problem has the same answer.

    Raises:
        InputError: the problem is malformed.
    """
    started_s = time.perf_counter()
    deadline_s = math.inf if time_limit_s is None else started_s + time_limit_s
    progress = Progress(problem, started_s, deadline_s, cutoff)
    infeasible = False
    try:
        core = build_core(problem)
        for choice in starts:
            progress.offer(choice)
        _search(core, progress)
    except OutOfTimeError:
        pass  # what was found so far is the answer
    except NoChoiceError:
        # Choices that are of no interest were dropped on the way: nothing left means that there is none.
        if progress.below is None:
            infeasible = _confirm_infeasible(progress)
        else:
            progress.lower_bound = progress.below
    return _solution(progress, infeasible=infeasible)


def _search(core: Core, progress: Progress) -> None:
    """Runs the steps until the bound meets the incumbent or the cutoff, or the time is over.

    Raises:
        NoChoiceError: nothing is legal, or nothing is of interest.
    """
    progress.raise_bound(core.constant, "reductions")
    if progress.done:
        return
    free = _solve_free(core, progress)
    if progress.done:
        return
    if len(core.room):
        reduce_core(core, deadline_s=progress.share(REDUCTION_SHARE))
        progress.raise_bound(core.constant, "reductions")
    else:
        core = free
    if progress.cost is None:
        _find_first(core, progress)
    exchanged = False
    while not progress.done:
        buckets = plan_elimination(core, max_cells=ELIMINATION_CELLS)
        if buckets is None and not exchanged:
            _exchange(core, progress)
            exchanged = True
            continue
        if buckets is None:
            break
        bound = _price(core, buckets, progress)
        if progress.below is None or progress.done:
            break
        _aim(core, bound, progress.below, progress)
        if progress.done:
            return
        smaller = _fixed(core, bound, progress.below, progress)
        stalled = _size(smaller) > (1 - WORTHWHILE) * _size(core)
        core = smaller
        if stalled:
            break
    if not progress.done:
        _ask_solvers(core, progress)


def _size(core: Core) -> int:
    return sum(cost.size for cost in core.costs.values())


def _solve_free(core: Core, progress: Progress) -> Core:
    """Solves the relaxation without memory by elimination; its choice may fit, and then it is the answer.

    Returns:
        The reduced relaxation.
    """
    free = core.without_memory()
    reduce_core(free, deadline_s=progress.share(FREE_SHARE))
    progress.raise_bound(free.constant, "reductions")
    buckets = None if progress.done else plan_elimination(free, max_cells=ELIMINATION_CELLS)
    if buckets is None:
        return free
    run = sweep(buckets, free.costs)
    if run.cost >= FORBIDDEN:
        raise NoChoiceError
    progress.raise_bound(run.cost + free.constant, "elimination")
    progress.offer_picks(free, run.picks)
    return free


def _price(core: Core, buckets: tuple[Bucket, ...], progress: Progress) -> Bound:
    """Raises the bound by prices on memory; the choices met on the way, repaired, are offered."""

    def offer(picks: dict[int, int]) -> int | None:
        progress.offer_picks(core, picks)
        repaired = descend(core, picks, deadline_s=progress.deadline_s, max_sweeps=REPAIR_SWEEPS)
        if repaired is not None:
            progress.offer_picks(core, repaired)
        return progress.below

    bound = raise_bound(core, buckets, offer=offer, deadline_s=progress.deadline_s)
    progress.raise_bound(bound.lower_bound, "multipliers")
    return bound


def _fixed(core: Core, bound: Bound, below: int, progress: Progress) -> Core:
    """The core without the choices that no answer cheaper than `below` can take."""
    smaller = core.copy()
    for node, by_choice in bound.by_choice.items():
        cheaper = np.flatnonzero(by_choice < below)
        if cheaper.size < by_choice.size:
            smaller.keep(node, cheaper)
    reduce_core(smaller, deadline_s=progress.deadline_s)
    return smaller


def _exchange(core: Core, progress: Progress) -> None:
    """Raises the bound by messages, offers the choices that they lead to, and fixes `core` against the best answer."""
    for _ in range(MESSAGE_TURNS):
        deadline_s = progress.share(MESSAGE_SHARE)
        picks = pass_messages(core, below=progress.below, deadline_s=deadline_s, max_rounds=MESSAGE_ROUNDS)
        progress.raise_bound(core.constant, "messages")
        progress.offer_picks(core, picks)
        repaired = descend(core, picks, deadline_s=progress.deadline_s)
        if repaired is not None:
            progress.offer_picks(core, repaired)
        if progress.done:
            return
        for node, cost in list(core.costs.items()):
            kept = np.flatnonzero(cost < FORBIDDEN if progress.below is None else cost < progress.below - core.constant)
            if kept.size < cost.size:
                core.keep(node, kept)
        reduce_core(core, deadline_s=progress.share(MESSAGE_SHARE))
        progress.raise_bound(core.constant, "messages")
        if progress.done:
            return


def _aim(core: Core, bound: Bound, below: int, progress: Progress) -> None:
    """Asks for an answer close to the bound and cheaper than `below`, which leaves few choices.

    What is found is the optimum, since whatever is cheaper than the aim is in that core; otherwise the aim is a bound.
    """
    assert progress.lower_bound is not None, "aiming needs a bound"
    aim = progress.lower_bound + max((below - progress.lower_bound) // AIM, 1)
    try:
        near = _fixed(core, bound, aim, progress)
        _ask_cp_sat(linearise(near), near, aim, progress)
    except NoChoiceError:
        progress.raise_bound(aim, "cp-sat")


def _find_first(core: Core, progress: Progress) -> None:
    """Looks for a legal choice from the cheapest and from the smallest options."""
    cheapest = {node: int(cost.argmin()) for node, cost in core.costs.items()}
    smallest = {}
    for node, cost in core.costs.items():
        held = sum(core.spans[node].values(), start=np.zeros(cost.size, np.int64))
        smallest[node] = int(np.lexsort((cost, held))[0])
    for start in (cheapest, smallest):
        picks = descend(core, start, deadline_s=progress.deadline_s)
        if picks is not None:
            progress.offer_picks(core, picks)


def _ask_solvers(core: Core, progress: Progress) -> None:
    """Asks HiGHS and CP-SAT about the remaining core; raises NoChoiceError where nothing cheaper is left."""
    core.deadline_s = progress.deadline_s
    drop_forbidden(core)
    program = linearise(core)
    if progress.below is None or program.objective.size > WIDE_COLUMNS:
        _ask_highs(program, core, progress)
    _ask_cp_sat(program, core, progress.below, progress)


def _ask_cp_sat(program: Linear, core: Core, below: int | None, progress: Progress) -> None:
    """The exact word on what is cheaper than `below`; raises NoChoiceError where nothing is."""
    room = None if below is None else below - core.constant
    if room is not None and room <= 0:
        raise NoChoiceError
    answer = solve_cp_sat(program, below=room, time_limit_s=progress.left_s)
    if answer.infeasible:
        progress.method = "cp-sat"
        raise NoChoiceError
    if answer.picks is not None:
        progress.offer_picks(core, answer.picks)
    if answer.bound is not None:
        bound = answer.bound + core.constant
        progress.raise_bound(bound if below is None else min(bound, below), "cp-sat")


def _ask_highs(program: Linear, core: Core, progress: Progress) -> None:
    """A first choice and a bound for a wide core. Floating point may support a gap; CP-SAT has the last word."""
    answer = solve_highs(program, time_limit_s=HIGHS_SHARE * progress.left_s)
    if answer.infeasible and progress.below is None:
        raise NoChoiceError
    if answer.picks is not None:
        progress.offer_picks(core, answer.picks)
    if answer.bound is not None:
        bound = answer.bound + core.constant
        progress.raise_bound(bound if progress.below is None else min(bound, progress.below - 1), "highs")


def _confirm_infeasible(progress: Progress) -> bool:
    """A second opinion from a model built from the problem itself; a choice that it finds is taken."""
    answer = find_legal(progress.problem, time_limit_s=progress.left_s)
    if answer.choice is not None:
        progress.offer(answer.choice)
        if progress.cost is None:
            raise InternalError(f"problem {progress.problem.name!r}: CP-SAT's choice is not legal: {answer.choice}")
    return answer.infeasible


def _solution(progress: Progress, *, infeasible: bool) -> Solution:
    if infeasible:
        status = SolveStatus.INFEASIBLE
    elif progress.cost is not None and progress.cost == progress.lower_bound:
        status = SolveStatus.OPTIMAL
    elif progress.closed:
        status = SolveStatus.CUTOFF
    else:
        status = SolveStatus.LIMIT if progress.left_s <= 0 else SolveStatus.FEASIBLE
    return Solution(
        status=status,
        choice=progress.choice,
        cost=progress.cost,
        lower_bound=progress.lower_bound or 0,
        peak=progress.peak,
        solve_time_s=time.perf_counter() - progress.started_s,
        first_feasible_s=progress.first_feasible_s,
        method=progress.method,
    )
