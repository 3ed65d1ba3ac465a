"""Infeasibility: where the search finds no plan for the memory limit, the layouts that hold least are looked at.

One of them may fit although its lifetimes do not, for blocks share memory better than those say. If none does, the
smallest of their limits is named, and what fills it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import InfeasibleError
from strategy.base.units import format_bytes
from strategy.bounds.quick_bound import quick_bound_ns
from strategy.ilp.solve.memory_feasibility import least_peak
from strategy.layout.config import PlanConfig
from strategy.layout.convert import lay_out
from strategy.layout.objective import Priced
from strategy.lowering.lower import lower_priced
from strategy.lowering.memory import fullest, memory_nbytes
from strategy.program.program import Program
from strategy.search.candidate.candidate_solve import Solved, solved_as
from strategy.space.candidate_space import free_rules, space_of
from strategy.space.layout_problem import layout_problem
from strategy.space.request import Request


@dataclass(frozen=True, slots=True)
class Tightest:
    """A layout that holds least, of one candidate: as a plan would have it, and what its ranks hold."""

    solved: Solved
    program: Program
    nbytes: int


def tightest(
    request: Request, candidates: Sequence[PlanConfig], budget: Budget = UNLIMITED, *, rules: Sequence[str] = ()
) -> tuple[Tightest | None, bool]:
    """The first layout of least memory that fits the limit, or the one that comes nearest; and whether all were tried.

    Args:
        request: what is searched for.
        candidates: none of which the search has found a plan for.
        budget: when to stop; every candidate that is begun has a second at least.
        rules: one per axis; without them, layouts are as free as in a search.
    """
    nearest: Tightest | None = None
    complete = True
    for config in candidates:
        enough = Budget.of(max(1.0, budget.left_s()))
        found, proved = _of_candidate(request, config, rules or free_rules(config), enough)
        complete = complete and proved
        if found is not None and (nearest is None or found.nbytes < nearest.nbytes):
            nearest = found
            if found.nbytes <= request.memory_limit_bytes:
                break
        if budget.is_over():
            complete = False
            break
    return nearest, complete


def nothing_fits(
    request: Request, nearest: Tightest | None, *, complete: bool, about: int | None = None, otherwise: str = ""
) -> InfeasibleError:
    """No layout was found that fits. Names the smallest limit that would do, and its biggest item.

    Where the time was over before `nearest` was found, the lightest layout by lifetimes holds `about` so many bytes.
    `otherwise`: what else may be tried.
    """
    problem_text = f"no plan fits {format_bytes(request.memory_limit_bytes)} per device"
    otherwise = f"; or {otherwise}" if otherwise else ""
    if nearest is None:
        lightest = (
            "" if about is None else f"; the lightest layout that was looked at holds about {format_bytes(about)}"
        )
        return InfeasibleError(
            problem_text, hint=f"the time ran out before a limit that works was found{lightest}{otherwise}"
        )
    config = nearest.solved.config
    groups = f" in groups of {config.zero_group}" * (config.zero_group > 0)
    degrees = (
        f"dp {config.dp}{groups}, ep {config.ep}, cp {config.cp}, tp {config.tp}, pp {config.pp}, "
        f"micro-batches: {config.num_micro_batches}"
    )
    peaks = memory_nbytes(nearest.program)
    name, nbytes = fullest(nearest.program, peaks.index(nearest.nbytes)).tensors[0]
    word = "the smallest limit that works is" if complete else "a limit that works, not proved to be the smallest, is"
    item = f"{degrees}; the biggest item is then {name} with {format_bytes(nbytes)}"
    hint = f"{word} {nearest.nbytes} bytes ({format_bytes(nearest.nbytes)}), with {item}{otherwise}"
    return InfeasibleError(problem_text, smallest_limit=nearest.nbytes, hint=hint)


def _of_candidate(
    request: Request, config: PlanConfig, rules: Sequence[str], budget: Budget
) -> tuple[Tightest | None, bool]:
    """The layout of one candidate whose lifetimes hold least, and whether that is proved."""
    space = space_of(request, config, rules)
    limited = layout_problem(space, limit=request.memory_limit_bytes)
    answer = least_peak(limited.problem, budget=budget)
    if answer.choice is None:
        return None, answer.infeasible
    layout = lay_out(space.graph, space.stages, limited.signatures(answer.choice), space.converter)
    priced = Priced(space.graph, layout, space.pipeline, space.cost)
    solved = solved_as(config, priced, quick_bound_ns(request, config))
    program = lower_priced(priced)
    return Tightest(solved, program, max(memory_nbytes(program))), answer.peak_bound >= max(solved.peaks)
