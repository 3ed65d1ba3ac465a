"""Check a plan without any search code: legality, memory, traffic, admission, and what follows from its claims."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.arguments import add_json
from experiments.console import emit, say
from strategy.errors import PlanError

if TYPE_CHECKING:
    from strategy.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan verify` takes."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a plan file")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Verify and say what was found."""
    from strategy.plan import read_plan
    from strategy.verify import verify

    plan = read_plan(args.plan)
    problems = verify(plan)
    if args.json:
        emit(document(plan, problems))
    if problems:
        raise refusal(args.plan, problems)
    say(f"{args.plan}: accepted, {len(plan.graph.ops)} ops on {plan.ranks} ranks; the bound is claimed, not re-proved")
    return 0


def document(plan: Plan, problems: list[str]) -> dict[str, object]:
    """The JSON document of a verification."""
    return {
        "accepted": not problems,
        "problems": problems,
        "plan_hash": plan.plan_hash,
        "status": plan.claims.status,
        "lower_bound_s": plan.claims.lower_bound_s,
        "bound": "claimed, not re-proved",
    }


def refusal(path: Path, problems: list[str]) -> PlanError:
    """One error with every problem, the first one first."""
    return PlanError("\n  ".join([f"refused: {problems[0]}", *problems[1:]]), where=str(path))
