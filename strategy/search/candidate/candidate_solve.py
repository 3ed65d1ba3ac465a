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
from strategy.bounds.quick_bound import quick_bound_ns
from strategy.graph.signature import Signature
from strategy.layout.config import PlanConfig
from strategy.layout.convert import lay_out
from strategy.layout.critical_path import critical_path
from strategy.layout.layout import Layout
from strategy.layout.objective import Priced
from strategy.layout.step_times import MeanPath, StepTimes, in_ticks, mean_path
from strategy.lowering.lifetime_peak import lifetime_peaks
from strategy.search.candidate.path_mix import longest_mix, mixed
from strategy.search.candidate.weighted_problem import WeightedProblem
from strategy.space.candidates import Request, space_of
from strategy.space.deduce import Deduction, deduce
from strategy.space.space import SearchSpace

NEGLIGIBLE = 1e-3
"""A part of the objective that it is not worth looking at a second layout for, where any gap is allowed."""
MOST_MIXES = 8
"""So many mixes of paths are counted."""


@dataclass(frozen=True, slots=True)
class Solved:
    """A candidate with a layout: its objective and a proved bound on every layout's, in nanoseconds.

    `peaks` are bytes on the rank of each stage that holds most, as the search counts them (`lifetime_peak`).
    """

    config: PlanConfig
    layout: Layout
    objective_ns: int
    bound_ns: int
    peaks: tuple[int, ...]
    times: StepTimes


@dataclass(frozen=True, slots=True)
class CandidateBound:
    """What is known of a candidate: bounds without and with the memory limit, and its best layout, if one is known.

    `bound_ns` is None where no layout fits. Bounds end at the cutoff.
    """

    free_bound_ns: int
    bound_ns: int | None
    solved: Solved | None


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
        bound, signatures = free.solve(*([] if rule_based is None else [rule_based]))
        found = None if signatures is None else self._evaluated(signatures, bound)
        if found is not None and self._has_paths and not self._is_beaten(bound):
            found = self._focus_on_critical(found, None)
            bound = found.bound_ns
        if found is not None and self._fits(found):
            return CandidateBound(bound, found.bound_ns, self._no_worse_than_deduced(found))
        if self._is_beaten(bound):
            return CandidateBound(bound, bound, None)
        limited_bound, best = self._within_memory(bound, rule_based, found)
        if best is None:
            return CandidateBound(bound, limited_bound if self._is_beaten(limited_bound) else None, None)
        if self._has_paths and not self._is_beaten(best.bound_ns):
            best = best if self._is_close(best) else self._focus_on_critical(best, self.memory_limit_bytes, found)
        best = self._no_worse_than_deduced(best)
        return CandidateBound(bound, best.bound_ns, best)

    def _evaluated(self, signatures: Mapping[str, Signature], bound_ns: int) -> Solved:
        return evaluated(self.config, self.space, signatures, bound_ns)

    def _is_beaten(self, bound_ns: int) -> bool:
        return self.cutoff_ns is not None and bound_ns >= (1 - self.gap) * self.cutoff_ns

    def _is_close(self, found: Solved) -> bool:
        """Whether next to nothing could be gained, or no more than is of interest."""
        return found.objective_ns - found.bound_ns <= max(self.negligible, self.gap) * found.objective_ns

    def _fits(self, found: Solved) -> bool:
        return max(found.peaks) <= self.memory_limit_bytes

    def _critical(self, found: Solved) -> MeanPath:
        """The critical path of a layout."""
        schedule, times = self.config.schedule, found.times
        path = critical_path(schedule, self.config.num_micro_batches, in_ticks(schedule, times))
        return mean_path(schedule, times, path)

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
        paths, best, mix = [self.space.paths], found, self._critical(found)
        for _ in range(MOST_MIXES):
            paths += [self._critical(one) for one in layouts[len(paths) - 1 :]]
            known = [one.layout.signatures for one in layouts]
            try:
                problem = WeightedProblem.of(
                    replace(self.space, along=mix), limit, self.budget, self.cutoff_ns, self.gap
                )
                bound, signatures = problem.solve(*known)
            except OutOfTimeError:
                break
            best = replace(best, bound_ns=min(max(bound, best.bound_ns), best.objective_ns))
            if signatures is None or self._is_close(best) or self._is_beaten(best.bound_ns):
                break
            other = self._evaluated(signatures, best.bound_ns)
            if other.objective_ns < best.objective_ns and (self._fits(other) or not self._fits(best)):
                best = other
            if any(other.layout.signatures == one.layout.signatures for one in layouts):
                break
            layouts.append(other)
            mix = longest_mix([*paths, self._critical(other)], [one.times for one in layouts])
        return best

    def _within_memory(
        self, bound_ns: int, rule_based: Mapping[str, Signature] | None, found: Solved | None
    ) -> tuple[int, Solved | None]:
        """(bound, best layout) under the memory limit, from what is known without it, and from there on.

        Where the rule-based one fits, there is an answer however little time there is.

        Raises:
            OutOfTimeError: the time ran out, and nothing that is known fits.
        """
        space = self.space
        known = [] if rule_based is None else [rule_based]
        if found is not None:
            known.append(found.layout.signatures)
            if self._has_paths:
                space = replace(space, along=mixed([space.paths, self._critical(found)], [1, 1]))
        try:
            limited = WeightedProblem.of(space, self.memory_limit_bytes, self.budget, self.cutoff_ns, self.gap)
            bound, signatures = limited.solve(*known)
        except OutOfTimeError:
            best = None if rule_based is None else self._evaluated(rule_based, bound_ns)
            if best is None or not self._fits(best):
                raise
            return bound_ns, best
        bound = max(bound, bound_ns)
        best = None if signatures is None else self._evaluated(signatures, bound)
        return bound, best if best is not None and self._fits(best) else None

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
        return deduced if deduced.objective_ns < found.objective_ns else found


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


def solved_as(config: PlanConfig, priced: Priced, bound_ns: int) -> Solved:
    """What a layout of a candidate takes and holds, next to a bound on all layouts."""
    peaks = lifetime_peaks(priced.graph, priced.layout.stages, priced.arrangement)
    objective_ns = priced.objective_ns
    return Solved(config, priced.layout, objective_ns, min(bound_ns, objective_ns), peaks, priced.times)
