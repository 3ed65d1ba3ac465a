"""Check a plan without any search code: legality, memory, traffic, admission, and what follows from its claims.

With --certificate, check instead what `sbplan solve --certificate` wrote about a problem: its choice, and the proof of
its bound in exact integers.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.command.arguments import add_json
from experiments.command.console import emit, say
from strategy.base.errors import CertificateError

if TYPE_CHECKING:
    from strategy.bounds.candidate_replay import CandidatesReplayed
    from strategy.bounds.replay import Replayed
    from strategy.plan.plan import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan verify` takes."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a plan file; with --certificate, a problem file")
    parser.add_argument("--certificate", type=Path, metavar="F", help="check this certificate of the problem")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Verify and say what was found."""
    if args.certificate is not None:
        return verify_certificate(args.certificate, args.plan, json=args.json)
    from simulator import engine
    from strategy.exports.trainer_fit import fit_problems
    from strategy.plan.plan import read_plan
    from strategy.plan.replayed_bound import replayed_bound
    from strategy.plan.verify import Admitted, admitted, refusal

    plan = read_plan(args.plan)
    found = admitted(plan, lambda program: engine.run(program, 1))
    problems = fit_problems(plan) if isinstance(found, Admitted) else found
    proved = None
    if not problems:
        try:
            proved = replayed_bound(plan)
        except CertificateError as error:
            problems = [f"lower_bound_s: {error}"]
    if args.json:
        emit(document(plan, problems, proved))
    if problems:
        raise refusal(args.plan, problems)
    known = bound_text(proved, {} if plan.certificate is None else plan.certificate["pinned"])
    say(f"{args.plan}: accepted, {len(plan.graph.ops)} ops on {plan.ranks} ranks; {known}")
    return 0


def bound_text(proved: Replayed | CandidatesReplayed | None, pinned: Mapping[str, object]) -> str:
    """What is known of the bound, and of which space."""
    if proved is None:
        return "the bound is claimed, not re-proved"
    space = "".join(f", {name} = {value}" for name, value in pinned.items())
    return f"the bound is proved for all configurations{space}: {proved.summary}"


def verify_certificate(path: Path, problem_path: Path, *, json: bool) -> int:
    """Check a certificate and say what it shows."""
    from strategy.ilp.certificate.check import check
    from strategy.ilp.certificate.file import read_certificate
    from strategy.ilp.problem_file import read_problem

    problem = read_problem(problem_path)
    try:
        verdict = check(problem, read_certificate(path))
    except CertificateError as error:
        if json:
            emit({"accepted": False, "problems": [str(error)]})
        raise CertificateError(f"refused: {error}") from None
    gap = verdict.gap
    if json:
        emit(
            {
                "accepted": True,
                "problems": [],
                "cost": verdict.cost,
                "lower_bound": verdict.lower_bound,
                "gap": gap,
                "leaves": verdict.leaves,
                "steps": verdict.steps,
            }
        )
    claim = "nothing is legal" if verdict.lower_bound is None else f"nothing costs less than {verdict.lower_bound}"
    answer = "" if gap is None else f", the choice costs {verdict.cost}, gap {gap:.3%}"
    say(f"{path}: accepted, {claim}{answer} ({verdict.steps} steps, {verdict.leaves} leaves)")
    return 0


def document(plan: Plan, problems: list[str], proved: Replayed | CandidatesReplayed | None) -> dict[str, object]:
    """The JSON document of a verification."""
    return {
        "accepted": not problems,
        "problems": problems,
        "plan_hash": plan.plan_hash,
        "status": plan.claims.status,
        "lower_bound_s": plan.claims.lower_bound_s,
        "bound": "claimed, not re-proved" if proved is None else "proved",
        "fit_probability": None if plan.claims.fit is None else plan.claims.fit.probability,
        "configurations": None if proved is None else proved.configurations,
    }
