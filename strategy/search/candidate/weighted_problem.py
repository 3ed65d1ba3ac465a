"""Weighted problem: one layout problem, in which choices cost the length of some paths, solved from what is known.

Far from any good choice, a bound says little about which choices are worse; near one, it rules nearly all of them out.
So solving begins with the best of what a person would choose from, and with what was found for other weights or limits.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from strategy.base.budget import Budget
from strategy.base.errors import OutOfTimeError
from strategy.base.status import Status
from strategy.bounds.layout_bound import LayoutBound
from strategy.bounds.path_mix import EVEN, PathMix
from strategy.graph.signature import Signature
from strategy.ilp.problem import FORBIDDEN, evaluate
from strategy.ilp.solve import MAX_TOTAL_COST, largest_cost, solve
from strategy.ilp.solve.solution import Solution
from strategy.space.layout_problem import LayoutProblem, layout_problem
from strategy.space.restriction import restrict
from strategy.space.space import SearchSpace

MOST_BITS = 22
"""Of what a step counts: finer bounds would not be seen, and a single cost might be taken for one that is forbidden."""
START_SHARE = 0.5
"""Share of the time that is left for the choice that solving begins with."""


@dataclass(frozen=True, slots=True)
class WeightedAnswer:
    """A bound on the objective, with its proof if there was time for one, and the signatures that were found.

    `nothing_legal` says that no choice of signatures is; the bound means nothing then.
    """

    bound_ns: int
    why: LayoutBound | None
    signatures: Mapping[str, Signature] | None
    nothing_legal: bool = False


@dataclass(frozen=True, slots=True)
class WeightedProblem:
    """The layout problem of a space, the budget for solving it, and below which cost answers are wanted."""

    space: SearchSpace
    mix: PathMix
    problem: LayoutProblem
    budget: Budget
    cutoff: int | None
    gap: float = 0.0

    @staticmethod
    def of(
        space: SearchSpace,
        limit: int | None,
        budget: Budget,
        cutoff_ns: int | None,
        gap: float = 0.0,
        mix: PathMix = EVEN,
    ) -> WeightedProblem:
        """The problem of some paths, built; bounds may be below costs by the part `gap`.

        Where costs are too large to be added exactly (long pipelines of large models), the paths are coarser.

        Raises:
            OutOfTimeError: the time ran out before.
        """
        if budget.is_over():
            raise OutOfTimeError("the time is up; raise the time limit")
        through = space.pipeline, len(space.stages.placements), space.cost
        left_out = max(0, mix.mean(*through).number.bit_length() - MOST_BITS)
        while True:
            mix = replace(mix, coarse=mix.coarse + left_out)
            space = replace(space, along=mix.mean(*through))
            problem = layout_problem(space, limit=limit, budget=budget)
            left_out = (largest_cost(problem.problem) // (MAX_TOTAL_COST + 1)).bit_length()
            if not left_out:
                break
        cutoff = None if cutoff_ns is None else (cutoff_ns - 1) * space.paths.number + 1
        return WeightedProblem(space, mix, problem, budget, cutoff, gap)

    def rule_based(self) -> dict[str, Signature] | None:
        """The best of the signatures that a person would choose from, if some are found in a part of the time."""
        if self.space.rule_based is None:
            return None
        choice = self._among(self.problem.kept_by(self.space.rule_based, self.space.graph))
        return None if choice is None else self.problem.signatures(choice)

    def _is_legal(self, choice: Sequence[int]) -> bool:
        value, limit = evaluate(self.problem.problem, choice), self.problem.problem.limit
        return value.cost < FORBIDDEN and (limit is None or value.peak <= limit)

    def _among(self, few: Sequence[Sequence[int]]) -> tuple[int, ...] | None:
        """The best choice among few of every class, if one is found in a part of the time."""
        restricted = restrict(self.problem.problem, few)
        found = solve(restricted.problem, budget=self.budget.share(START_SHARE), cutoff=self.cutoff, gap=self.gap)
        _go_on(found)
        return None if found.choice is None else restricted.choice(found.choice)

    def solve(self, *known: Mapping[str, Signature]) -> WeightedAnswer:
        """What is no worse than what is known as far as that is legal.

        Solving begins with the best choice that takes every signature from one of several known answers, or with a
        rule-based one where memory forbids all that. No signatures if there are none, or if nothing beats the cutoff by
        more than the gap; then the bound is at least that.

        Raises:
            OutOfTimeError: neither a choice nor the proof that there is none was found in time.
        """
        starts = [self.problem.choice_of(signatures) for signatures in known]
        mixed = self._among(self.problem.choices_in(known)) if len(known) > 1 else None
        starts += [] if mixed is None else [mixed]
        if self.problem.problem.limit is not None and not any(map(self._is_legal, starts)):
            rule_based = self.rule_based()
            starts += [] if rule_based is None else [self.problem.choice_of(rule_based)]
        solution = solve(self.problem.problem, budget=self.budget, cutoff=self.cutoff, gap=self.gap, starts=starts)
        _go_on(solution)
        if solution.choice is None and solution.status not in (Status.INFEASIBLE, Status.CUTOFF, Status.FEASIBLE):
            raise OutOfTimeError("the layout problem found no choice in time; raise the time limit")
        bound_ns = -(-solution.lower_bound // self.space.paths.number)
        signatures = None if solution.choice is None else self.problem.signatures(solution.choice)
        return WeightedAnswer(bound_ns, self._why(solution), signatures, solution.status is Status.INFEASIBLE)

    def _why(self, solution: Solution) -> LayoutBound | None:
        """The solver's proof, as one of the candidate."""
        if solution.proof is None:
            return None
        least = None if solution.status is Status.INFEASIBLE else solution.lower_bound
        return LayoutBound(self.mix, self.problem.problem.limit is not None, least, solution.proof)


def _go_on(solution: Solution) -> None:
    """Let an interruption, which the solver answers with the best so far, end more than the solver's work."""
    if solution.status is Status.INTERRUPTED:
        raise KeyboardInterrupt
