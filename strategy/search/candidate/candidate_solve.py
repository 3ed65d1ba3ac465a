"""Candidate solve: what solving one candidate exactly says: its best layout, and a bound on all of them.

Bounds are statements about the objective, for a candidate's layouts x:

    a candidate's objective   max over paths through the schedule of the path's length under the times of x
    its bound                 max over means of paths of  min over x of  the mean of their lengths under the times of x

with the mean of paths that pass all stages about alike, and with the critical path of the layout found, alone. So a
layout that is best along its own critical path is proved best. Where memory is scarce, the mean of both counts, so that
the critical path is short and others stay so.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import InfeasibleError, OutOfTimeError
from strategy.bounds.layout_bound import LayoutBound
from strategy.bounds.path_mix import EVEN, PathMix
from strategy.bounds.quick_bound import quick_bound_ns
from strategy.graph.signature import Signature
from strategy.layout.config import PlanConfig
from strategy.layout.convert import lay_out
from strategy.layout.layout import Layout
from strategy.layout.objective import Priced
from strategy.layout.step_times import MeanPath, StepTimes
from strategy.lowering.lifetime_peak import lifetime_peaks
from strategy.search.candidate.path_mix import longest_mix
from strategy.search.candidate.weighted_problem import WeightedAnswer, WeightedProblem
from strategy.space.candidate_space import space_of
from strategy.space.deduce import Deduction, deduce
from strategy.space.request import Request
from strategy.space.space import SearchSpace

NEGLIGIBLE = 1e-3
"""A part of the objective that it is not worth looking at a second layout for, where any gap is allowed."""
MOST_MIXES = 8
"""So many mixes of paths are counted."""


@dataclass(frozen=True, slots=True)
class Solved:
    """A candidate with a layout: its objective and a proved bound on every layout's, in nanoseconds.

    `peaks` are bytes on the rank of each stage that holds most, as the search counts them (`lifetime_peak`). `why` is
    the proof of the bound, where there is one.
    """

    config: PlanConfig
    layout: Layout
    objective_ns: int
    bound_ns: int
    peaks: tuple[int, ...]
    times: StepTimes
    why: LayoutBound | None = None


@dataclass(frozen=True, slots=True)
class CandidateBound:
    """What is known of a candidate: bounds without and with the memory limit, and its best layout, if one is known.

    `bound_ns` is None where no layout fits. Bounds end at the cutoff. `free_why` and `why` are their proofs.
    """

    free_bound_ns: int
    bound_ns: int | None
    solved: Solved | None
    free_why: LayoutBound | None = None
    why: LayoutBound | None = None


def solve_candidate(
    request: Request,
    config: PlanConfig,
    *,
    rules: Sequence[str],
    budget: Budget = UNLIMITED,
    cutoff_ns: int | None = None,
) -> Solved | None:
    """The best layout of one candidate under one rule per axis; None if none fits the memory limit.

    With a cutoff, layouts that are no better are of no interest: None, or one of them, if none is better.

    Raises:
        InfeasibleError: the pins leave some op without signature.
        OutOfTimeError: the time ran out before there was any layout.
    """
    return examine(request, config, rules, budget, cutoff_ns).solved


def examine(
    request: Request,
    config: PlanConfig,
    rules: Sequence[str],
    budget: Budget,
    cutoff_ns: int | None,
    *,
    gap: float = 0.0,
) -> CandidateBound:
    """Solve without the memory limit; with it if that does not fit; then see what the critical path alone says.

    With a gap, bounds may be below the layouts found, or below the cutoff, by this part.

    Raises:
        InfeasibleError: the pins leave some op without signature.
        OutOfTimeError: the time ran out before there was any layout.
    """
    space = space_of(request, config, rules)
    if request.deduction is not None:
        quick_ns = quick_bound_ns(request, config)
        deduced = _deduced(config, space, request.deduction, request.memory_limit_bytes, quick_ns)
        return CandidateBound(quick_ns, deduced.bound_ns, deduced)
    return _Examination(
        config, space, request.memory_limit_bytes, budget, cutoff_ns, gap, min(NEGLIGIBLE, request.gap)
    ).examined()


@dataclass(frozen=True, slots=True)
class _Examination:
    """A candidate that is being solved."""

    config: PlanConfig
    space: SearchSpace
    memory_limit_bytes: int
    budget: Budget
    cutoff_ns: int | None
    gap: float
    negligible: float

    def examined(self) -> CandidateBound:
        """What can be said within the budget.

        Raises:
            OutOfTimeError: there is no layout by then.
        """
        free = WeightedProblem.of(self.space, None, self.budget, self.cutoff_ns, self.gap)
        rule_based = free.rule_based()
        answer = free.solve(*([] if rule_based is None else [rule_based]))
        bound, why = answer.bound_ns, answer.why
        found = None if answer.signatures is None else self._evaluated(answer.signatures, bound, why)
        if found is not None and self._has_paths and not self._is_beaten(bound):
            found = self._focus_on_critical(found, None)
            bound, why = found.bound_ns, found.why
        if found is not None and self._fits(found):
            return CandidateBound(bound, found.bound_ns, self._no_worse_than_deduced(found), why, found.why)
        if self._is_beaten(bound):
            return CandidateBound(bound, bound, None, why, why)
        limited, best = self._within_memory(bound, why, rule_based, found)
        if best is None:
            unknown = limited.signatures is not None and not self._is_beaten(limited.bound_ns)
            none_fits = limited.nothing_legal or unknown
            return CandidateBound(bound, None if none_fits else limited.bound_ns, None, why, limited.why)
        if self._has_paths and not self._is_beaten(best.bound_ns):
            best = best if self._is_close(best) else self._focus_on_critical(best, self.memory_limit_bytes, found)
        best = self._no_worse_than_deduced(best)
        return CandidateBound(bound, best.bound_ns, best, why, best.why)

    def _evaluated(self, signatures: Mapping[str, Signature], bound_ns: int, why: LayoutBound | None) -> Solved:
        return replace(evaluated(self.config, self.space, signatures, bound_ns), why=why)

    def _is_beaten(self, bound_ns: int) -> bool:
        return self.cutoff_ns is not None and bound_ns >= (1 - self.gap) * self.cutoff_ns

    def _is_close(self, found: Solved) -> bool:
        """Whether next to nothing could be gained, or no more than is of interest."""
        return found.objective_ns - found.bound_ns <= max(self.negligible, self.gap) * found.objective_ns

    def _fits(self, found: Solved) -> bool:
        return max(found.peaks) <= self.memory_limit_bytes

    def _path(self, point: StepTimes | None) -> MeanPath:
        """A path: the longest at a point, the critical one of the layout with these times."""
        return PathMix((point,), (1,)).mean(self.space.pipeline, self.config.pp, self.space.cost)

    @property
    def _has_paths(self) -> bool:
        """Whether which path is critical depends on the layout."""
        return self.config.pp > 1 or self.space.pipeline.overlaps

    def _focus_on_critical(self, found: Solved, limit: int | None, *others: Solved | None) -> Solved:
        """Count critical paths: further bounds, and perhaps a better layout that holds no more than may be.

        First that of the layout alone, then mixes of those of all layouts that are known, weighed so that the least of
        these is as long as it can be: the next layout is shorter, or the bound is as high as it gets.
        """
        layouts = [one for one in (found, *others) if one is not None]
        points: list[StepTimes | None] = [None]
        best, mix = found, PathMix((found.times,), (1,))
        for _ in range(MOST_MIXES):
            points += [one.times for one in layouts[len(points) - 1 :]]
            known = [one.layout.signatures for one in layouts]
            try:
                problem = WeightedProblem.of(self.space, limit, self.budget, self.cutoff_ns, self.gap, mix)
                answer = problem.solve(*known)
            except OutOfTimeError:
                break
            if answer.bound_ns > best.bound_ns:
                best = replace(best, bound_ns=min(answer.bound_ns, best.objective_ns), why=answer.why)
            if answer.signatures is None or self._is_close(best) or self._is_beaten(best.bound_ns):
                break
            other = self._evaluated(answer.signatures, best.bound_ns, best.why)
            if other.objective_ns < best.objective_ns and (self._fits(other) or not self._fits(best)):
                best = other
            if any(other.layout.signatures == one.layout.signatures for one in layouts):
                break
            layouts.append(other)
            mix = self._longest_mix([*points, other.times], [one.times for one in layouts])
        return best

    def _longest_mix(self, points: Sequence[StepTimes | None], known: Sequence[StepTimes]) -> PathMix:
        """The mix of paths under which the shortest of some steps is longest."""
        shares = longest_mix([self._path(point) for point in points], known)
        passed = [(point, share) for point, share in zip(points, shares, strict=True) if share]
        return PathMix(tuple(point for point, _ in passed), tuple(share for _, share in passed))

    def _within_memory(
        self,
        bound_ns: int,
        why: LayoutBound | None,
        rule_based: Mapping[str, Signature] | None,
        found: Solved | None,
    ) -> tuple[WeightedAnswer, Solved | None]:
        """(bound, best layout) under the memory limit, from what is known without it, and from there on.

        Where the rule-based one fits, there is an answer however little time there is.

        Raises:
            OutOfTimeError: the time ran out, and nothing that is known fits.
        """
        known, mix = [] if rule_based is None else [rule_based], EVEN
        if found is not None:
            known.append(found.layout.signatures)
            if self._has_paths:
                mix = PathMix((None, found.times), (1, 1))
        try:
            problem = WeightedProblem.of(
                self.space, self.memory_limit_bytes, self.budget, self.cutoff_ns, self.gap, mix
            )
            answer = problem.solve(*known)
        except OutOfTimeError:
            best = None if rule_based is None else self._evaluated(rule_based, bound_ns, why)
            if best is None or not self._fits(best):
                raise
            return WeightedAnswer(bound_ns, why, None), best
        if not answer.nothing_legal and bound_ns >= answer.bound_ns:
            answer = replace(answer, bound_ns=bound_ns, why=why)
        best = None if answer.signatures is None else self._evaluated(answer.signatures, answer.bound_ns, answer.why)
        return answer, best if best is not None and self._fits(best) else None

    def _no_worse_than_deduced(self, found: Solved) -> Solved:
        """Paths are weighed against one another, which is no proof; so look at what no search would give.

        Not where it could gain next to nothing, nor when the time is up.
        """
        if self.config.pp == 1 or self._is_beaten(found.bound_ns) or self._is_close(found):
            return found
        if self.budget.is_over():
            return found
        try:
            deduced = _deduced(self.config, self.space, Deduction.MATCH_ALL, self.memory_limit_bytes, found.bound_ns)
        except InfeasibleError:
            return found
        return replace(deduced, why=found.why) if deduced.objective_ns < found.objective_ns else found


def _deduced(config: PlanConfig, space: SearchSpace, rule: Deduction, memory_limit_bytes: int, bound_ns: int) -> Solved:
    """The layout that a rule deduces.

    Raises:
        InfeasibleError: the pins leave an op without signature, or the layout needs more memory than there is.
    """
    signatures = deduce(space.graph, space.stages, space.converter, space.allows, rule=rule, owned=space.owned)
    found = evaluated(config, space, signatures, bound_ns)
    if max(found.peaks) > memory_limit_bytes:
        needed = f"{max(found.peaks)} bytes per device needed, {memory_limit_bytes} are there"
        raise InfeasibleError(f"the deduced layout does not fit: {needed}", hint="pin splits, or search")
    return found


def evaluated(config: PlanConfig, space: SearchSpace, signatures: Mapping[str, Signature], bound_ns: int) -> Solved:
    """A candidate with these signatures."""
    layout = lay_out(space.graph, space.stages, signatures, space.converter)
    return solved_as(config, Priced(space.graph, layout, space.pipeline, space.cost), bound_ns)


def solved_as(config: PlanConfig, priced: Priced, bound_ns: int, budget: Budget = UNLIMITED) -> Solved:
    """What a layout of a candidate takes and holds, next to a bound on all layouts.

    Raises:
        OutOfTimeError: there is not enough time.
    """
    arrangement = priced.arrangement
    budget.check()
    peaks = lifetime_peaks(priced.graph, priced.layout.stages, arrangement)
    budget.check()
    objective_ns = priced.objective_ns
    return Solved(config, priced.layout, objective_ns, min(bound_ns, objective_ns), peaks, priced.times)
