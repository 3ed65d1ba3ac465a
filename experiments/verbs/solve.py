"""Solve one optimisation problem in the format of the ASPLOS / EuroSys 2025 contest.

The last line of stdout is the list of chosen indices, one per node; it is empty when there is no choice to show.
"""

from __future__ import annotations

import argparse
import math
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.command.arguments import add_json, positive_int, seconds
from experiments.command.console import emit, say, write_out
from experiments.command.exit_codes import EXIT_LIMIT
from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError
from strategy.base.status import Status

if TYPE_CHECKING:
    from strategy.ilp.problem import Problem
    from strategy.ilp.solve import Solution


PROGRESS_S = 1.0
"""Least time between two lines of progress."""
CONFLICT_S = 10.0
"""Time to look for the times that bind, where none binds by itself."""
TIMES_NAMED = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan solve` takes."""
    parser.add_argument("problem", metavar="PROBLEM.json[.gz]", type=Path, help="the problem")
    parser.add_argument("--time-limit", type=seconds, metavar="S", help="stop after so many seconds, reading included")
    parser.add_argument(
        "--work-limit",
        type=positive_int,
        metavar="N",
        help="stop after so much work: the same answer on any machine",
    )
    parser.add_argument("--certificate", type=Path, metavar="F", help="write the proof of the bound here")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Read, solve, print.

    Every time counts from here, reading and imports included: that is the time that a user waits.
    """
    started, budget = time.perf_counter(), Budget.of(args.time_limit, args.work_limit)
    from experiments.command.outputs import check_output_path, clean_stdout
    from experiments.command.stopping import exit_code, stopping
    from strategy.ilp.certificate.digest import problem_digest
    from strategy.ilp.problem_file import read_problem
    from strategy.ilp.solve import solve

    check_output_path(args.certificate, "--certificate")
    problem = read_problem(args.problem)
    digest = "" if args.certificate is None else problem_digest(problem)
    reading_s = time.perf_counter() - started
    with clean_stdout(), stopping() as stopped_by:
        solution = solve(problem, budget=budget, progress=reporter(already_s=reading_s))
    solve_time_s = time.perf_counter() - started
    if args.certificate is not None:  # first of all: whoever reads stdout may close it early
        write_proof(args.certificate, digest, solution)

    cost, bound, found_s = solution.cost, solution.lower_bound, solution.first_feasible_s
    gap = None if cost is None else (cost - bound) / cost if cost else 0.0
    if args.json:
        emit(
            {
                "status": solution.status,
                "cost": cost,
                "lower_bound": bound,
                "gap": gap,
                "solve_time_s": solve_time_s,
                "first_feasible_s": None if found_s is None else reading_s + found_s,
                "peak_rss_bytes": peak_rss_bytes(),
            }
        )
    write_out(f"{list(solution.choice or ())}\n")
    if solution.status == Status.INFEASIBLE:
        raise infeasible(problem, budget)
    answer = "no choice found" if gap is None else f"cost {cost}, gap {gap:.3%}"
    said = f"{problem.name}: {solution.status}, {answer}, lower bound {bound}, {solve_time_s:.1f} s"
    say(f"{said}: {solution.status.message}")
    if solution.status == Status.INTERRUPTED:
        return exit_code(stopped_by)
    return EXIT_LIMIT if solution.status == Status.LIMIT else 0


def reporter(*, already_s: float) -> Callable[[float, int | None, int | None], None]:
    """Says on stderr how bound and cost move, once in `PROGRESS_S` at most; times count from the start."""
    last_s = 0.0

    def report(elapsed_s: float, lower_bound: int | None, cost: int | None) -> None:
        nonlocal last_s
        if elapsed_s - last_s >= PROGRESS_S:
            last_s = elapsed_s
            gap = f", gap {(cost - lower_bound) / cost:.3%}" if cost and lower_bound is not None else ""
            say(f"{already_s + elapsed_s:.0f} s: cost {cost}, lower bound {lower_bound}{gap}")

    return report


def infeasible(problem: Problem, budget: Budget) -> InfeasibleError:
    """What is wrong: when too much is held, by how much, and the smallest limit that works if it is found in time."""
    from strategy.ilp.solve import PeakLimitError, smallest_limit
    from strategy.ilp.solve.conflict import overfull_times

    if problem.limit is None:
        return InfeasibleError(f"{problem.name}: the forbidden pairs leave no choice")
    smallest, hint = None, ""
    try:
        smallest = smallest_limit(problem, budget=budget)
        if smallest is None:
            return InfeasibleError(f"{problem.name}: the forbidden pairs leave no choice, whatever the limit")
        hint = f"the smallest limit that works is {smallest} bytes"
    except PeakLimitError as error:
        hint = str(error)
    times = overfull_times(problem, budget=budget if budget.left_s() < math.inf else Budget.of(CONFLICT_S))
    said = "; ".join(f"{span}, {span.least - problem.limit} too many" for span in times[:TIMES_NAMED])
    more = f"; and {len(times) - TIMES_NAMED} more times" if len(times) > TIMES_NAMED else ""
    what = f"no choice fits in {problem.limit} bytes" + (f": {said}{more}" if said else "")
    return InfeasibleError(f"{problem.name}: {what}", smallest_limit=smallest, hint=hint)


def peak_rss_bytes() -> int:
    """The most memory that this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def write_proof(path: Path, digest: str, solution: Solution) -> None:
    """Write the certificate of an answer to the problem of that digest, for `sbplan verify --certificate`."""
    from strategy.ilp.certificate.file import write_certificate
    from strategy.ilp.certificate.proof import Certificate

    if solution.proof is None:
        say(f"{path}: not written, since no bound was proved")
        return
    bound = None if solution.status == Status.INFEASIBLE else solution.lower_bound
    claim = Certificate(digest, solution.choice, solution.cost, bound, solution.proof)
    write_certificate(path, claim)
