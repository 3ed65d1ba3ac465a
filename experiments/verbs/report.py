"""Write one page that shows a plan, or a run of one: the answer, why not others, timeline, memory, layouts, proof.

Or what a trainer's configuration was priced at.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.command.arguments import MOST_OTHERS, add_calibration, add_json, seconds
from experiments.command.console import emit, say
from experiments.command.outputs import check_output_path
from strategy.base.errors import CertificateError, InputError, PlanError
from strategy.base.files import write_atomic

if TYPE_CHECKING:
    from experiments.explanation.certainty import Certainty, Unknown
    from experiments.reporting.others import OtherPlan
    from experiments.reporting.report import TimedRun
    from strategy.plan.plan import Plan

OTHERS_LIMIT_S = 60.0
MOST_UNFOLDED = 64
"""Ranks of a run that are simulated each for itself, to be drawn above what they did."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan report` takes."""
    parser.add_argument(
        "plan",
        metavar="PLAN|RUN|PRICE",
        type=Path,
        help="a plan file, the folder of a training run, or what 'sbplan price --json' printed",
    )
    parser.add_argument("--out", type=Path, default=Path("report.html"), metavar="F.html", help="(%(default)s)")
    parser.add_argument(
        "--others",
        type=int,
        choices=range(MOST_OTHERS + 1),
        default=4,
        metavar="N",
        help="search for the best plans with other degrees, so many at most, to say what they lose by or lack "
        "(default: %(default)s; 0 for none)",
    )
    parser.add_argument(
        "--time-limit",
        type=seconds,
        default=OTHERS_LIMIT_S,
        metavar="S",
        help="for these searches together (default: %(default)g)",
    )
    add_calibration(parser)
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Read, verify, simulate, look at other plans, and write the page."""
    from experiments.command.outputs import clean_stdout
    from experiments.explanation.certainty import ALONE, certainty_among, intervals_of
    from experiments.explanation.simulated import read_simulated
    from experiments.explanation.step_interval import step_interval
    from experiments.reporting.others import other_plans
    from experiments.reporting.price_report import read_price
    from experiments.reporting.report import report_document
    from experiments.reporting.web_page import Template, web_page
    from experiments.verbs.simulate import document as simulation_document
    from experiments.verbs.verify import bound_text
    from experiments.verbs.verify import document as verification_document
    from strategy.base.budget import UNLIMITED, Budget
    from strategy.plan.replayed_bound import replayed_bound

    check_output_path(args.out, "--out")
    price = read_price(args.plan)
    if price is not None:
        _write(web_page(price, Template.PRICE), args, price["step_time_s"])
        return 0
    path, measured = plan_and_run(args.plan)
    one = read_simulated(path)
    plan = one.plan
    if measured is not None:
        check_run(plan, measured)
    try:
        proved = replayed_bound(plan)
    except CertificateError as error:
        raise PlanError(f"refused: lower_bound_s: {error}", where=str(path)) from None
    calibration = intervals_of(plan, args.calibration)
    others: list[OtherPlan] | None = None
    certainty: Certainty | Unknown = ALONE
    if args.others:
        with clean_stdout():
            others = list(other_plans(one, args.others, Budget.of(args.time_limit)))
        compared = [plan, *(other.plan for other in others if other.plan is not None)]
        certainty = certainty_among(compared, calibration, UNLIMITED)
    simulation = simulation_document(one.found)
    if measured is not None and one.program.alike and plan.ranks <= MOST_UNFOLDED:
        from experiments.planning.prices import program_of
        from simulator.simulate import simulate

        # Every rank is drawn above what it did; the figures are those of the folded program.
        program = program_of(plan, plan.cost, folds=False)
        one = replace(one, program=program, found=simulate(program, peak_flop_per_s=plan.peak_flop_per_s))
    known = bound_text(proved, {} if plan.certificate is None else plan.certificate["pinned"])
    text = web_page(
        report_document(
            str(args.plan),
            one,
            simulation=simulation,
            verification=verification_document(plan, [], proved),
            bound=known,
            others=others,
            certainty=certainty,
            interval=step_interval(plan, calibration),
            run=measured,
        ),
        Template.REPORT,
    )
    _write(text, args, simulation["step_time_s"])
    return 0


def _write(text: str, args: argparse.Namespace, step_time_s: object) -> None:
    write_atomic(args.out, text)
    if args.json:
        emit({"page": str(args.out), "nbytes": len(text.encode()), "step_time_s": step_time_s})
    say(f"{args.out}: {len(text.encode()) / 1e6:.2f} MB; open it in a browser, no network is needed")


def plan_and_run(path: Path) -> tuple[Path, TimedRun | None]:
    """The plan's file, and the run where a folder of one is given.

    Raises:
        InputError: the folder is not of a training run that has ended.
    """
    from experiments.reporting.report import TimedRun
    from strategy.program.timeline import read_timeline

    if not path.is_dir():
        return path, None
    plan, timeline = path / "plan.json", path / "timeline.json.gz"
    if not (plan.exists() and timeline.exists()):
        expected = "plan.json and timeline.json.gz, as 'sbplan train' leaves them under runs"
        raise InputError("not a run with a timeline", where=str(path), expected=expected)
    return plan, TimedRun(path.name, read_timeline(timeline))


def check_run(plan: Plan, measured: TimedRun) -> None:
    """Refuse a timeline of another plan.

    Raises:
        InputError: it has other ranks.
    """
    ranks = measured.timeline.ranks
    if ranks != plan.ranks:
        expected = f"{plan.ranks} ranks"
        raise InputError("the timeline is of another plan", where=measured.name, got=ranks, expected=expected)
