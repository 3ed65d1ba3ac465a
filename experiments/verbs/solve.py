"""Solve one optimisation problem in the format of the ASPLOS / EuroSys 2025 contest.

The last line of stdout is the list of chosen indices, one per node; it is empty when there is no choice to show.
"""

from __future__ import annotations

import argparse
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.arguments import add_json, seconds
from experiments.console import emit, not_there_yet, say
from strategy.errors import InfeasibleError

if TYPE_CHECKING:
    from strategy.problem import Problem
    from strategy.solve import Solution

EXIT_LIMIT = 4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan solve` takes."""
    parser.add_argument("problem", metavar="PROBLEM.json[.gz]", type=Path, help="the problem")
    parser.add_argument("--time-limit", type=seconds, metavar="S", help="stop after so many seconds, reading included")
    parser.add_argument("--certificate", type=Path, metavar="F", help="write the proof of the bound here")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Read, solve, print.

    Every time counts from here, reading and imports included: that is the time that a user waits.
    """
    started = time.perf_counter()
    from experiments.outputs import clean_stdout
    from strategy.problem_file import read_problem
    from strategy.solve import solve

    problem = read_problem(args.problem)
    reading_s = time.perf_counter() - started
    limit_s = None if args.time_limit is None else max(0.0, args.time_limit - reading_s)
    with clean_stdout():
        solution = solve(problem, time_limit_s=limit_s)
    solve_time_s = time.perf_counter() - started

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
    print(list(solution.choice or ()), flush=True)
    if args.certificate is not None:
        write_proof(args.certificate, problem, solution)
    if solution.status == "infeasible":
        raise infeasible(problem)
    answer = "no choice found" if gap is None else f"cost {cost}, gap {gap:.3%}"
    say(f"{problem.name}: {solution.status}, {answer}, lower bound {bound}, {solve_time_s:.1f} s")
    return EXIT_LIMIT if solution.status == "limit" else 0


def write_proof(path: Path, problem: Problem, solution: Solution) -> None:
    """Write the certificate of an answer, for `sbplan verify --certificate`."""
    from strategy.certificate.digest import problem_digest
    from strategy.certificate.file import write_certificate
    from strategy.certificate.proof import Certificate

    if solution.proof is None:
        raise not_there_yet(f"a certificate of a bound by {solution.method}")
    bound = None if solution.status == "infeasible" else solution.lower_bound
    claim = Certificate(problem_digest(problem), solution.choice, solution.cost, bound, solution.proof)
    write_certificate(path, claim)


def infeasible(problem: Problem) -> InfeasibleError:
    """What is wrong with the limit, and the smallest one that works."""
    from strategy.solve import smallest_limit

    if problem.limit is None:
        return InfeasibleError(f"{problem.name}: the forbidden pairs leave no choice")
    smallest = smallest_limit(problem)
    if smallest is None:
        return InfeasibleError(f"{problem.name}: the forbidden pairs leave no choice, whatever the limit")
    return InfeasibleError(
        f"{problem.name}: no choice fits in {problem.limit} bytes",
        smallest_limit=smallest,
        hint=f"the smallest limit that works is {smallest} bytes",
    )


def peak_rss_bytes() -> int:
    """The most memory that this process has held."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
