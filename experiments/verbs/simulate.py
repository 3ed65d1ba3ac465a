"""Predict the timeline, step time and memory of a plan."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.command.arguments import add_json, positive_int
from experiments.command.console import emit, say
from experiments.command.outputs import check_output_path
from experiments.studies.studies import EXCHANGES, SCHEDULES
from strategy.base.errors import InputError

if TYPE_CHECKING:
    from experiments.studies.studies import Study
    from experiments.studies.unevenness import Unevenness
    from simulator.simulate import Simulation
    from strategy.cost.cost import CostModel
    from strategy.plan.plan import Plan
    from strategy.program.program import Program


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan simulate` takes."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a plan file")
    parser.add_argument("--calibration", type=Path, metavar="F", help="a calibration that 'sbplan refine' wrote")
    for flag, metavar, text in (
        (
            "--set",
            "FIELD=FIGURE",
            "what if the cluster were another: inter.bandwidth=2x, device.compute=500TFLOP/s, ...",
        ),
        ("--straggler", "RANK=FACTORx", "what if a rank computed slower: 3=1.5x; then no rank stands for others"),
        ("--slow-link", "RANK=FACTORx", "what if the bytes that a rank sends took longer: 3=2x; likewise"),
    ):
        parser.add_argument(flag, nargs="+", action="extend", default=[], metavar=metavar, help=text)
    parser.add_argument("--jitter", metavar="SHARE", help="what if acts took longer at random, by up to so much: 5%%")
    parser.add_argument("--seed", type=int, metavar="N", help="of the jitter (0)")
    for flag, what in (("--read", "reading"), ("--decode", "decoding")):
        text = f"what if {what} each input of a micro-batch took so long, ahead of the steps: 20ms"
        parser.add_argument(flag, metavar="TIME", help=text)
    for flag, choices, nargs, text in (
        ("--exchange", EXCHANGES, "+", "what if gradients were exchanged as these systems do it (data-parallel plans)"),
        ("--schedule", SCHEDULES, None, "what if the stages followed this schedule, which plans do not have"),
    ):
        metavar = "SYSTEM" if nargs else "NAME"
        parser.add_argument(flag, nargs=nargs, choices=choices, metavar=metavar, help=f"{text}: {', '.join(choices)}")
    text = "what if workers might lack the updates of so many steps (data-parallel plans)"
    parser.add_argument("--staleness", type=positive_int, metavar="STEPS", help=text)
    parser.add_argument("--mtbf", metavar="TIME", help="mean time between failures of one device, such as 50000h")
    parser.add_argument("--restart", default="5 min", metavar="TIME", help="from a failure to training again (5 min)")
    parser.add_argument("--save", metavar="TIME", help="how long a checkpoint stops training (a copy to the host)")
    parser.add_argument("--trace", type=Path, metavar="F.json.gz", help="write the timeline for Perfetto")
    parser.add_argument("--figure", type=Path, metavar="F.png", help="draw the timeline, and F-memory.png")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Verify, lower, simulate, and write what is asked for."""
    from experiments.figures.picture import check_format
    from experiments.planning.prices import extrapolated, program_of, read_calibration_of
    from experiments.studies.unevenness import unevenness
    from experiments.studies.what_if import what_if
    from simulator.simulate import simulate
    from strategy.base.units import format_seconds
    from strategy.plan.plan import read_plan
    from strategy.plan.verify import Admitted, admitted, refusal
    from strategy.program.feed import fed

    check_output_path(args.trace, "--trace")
    check_output_path(args.figure, "--figure")
    check_format(args.figure)
    plan = read_plan(args.plan)
    calibration = None if args.calibration is None else read_calibration_of(plan.cluster, args.calibration)
    cost = what_if(plan.cost if calibration is None else calibration.cost_model(plan.cluster), args.set)
    peak_flop_per_s = cost.cluster.product_flop_per_s(plan.training.product_dtype)
    uneven = unevenness(args.straggler, args.slow_link, args.jitter, args.seed, ranks=plan.ranks)
    accepted = admitted(plan, partial(simulate, peak_flop_per_s=peak_flop_per_s))
    if not isinstance(accepted, Admitted):
        raise refusal(args.plan, accepted)
    program, found = accepted.program, accepted.result
    feed_ns = {what: _time_ns(getattr(args, what), f"--{what}") for what in ("read", "decode")}
    if cost != plan.cost or uneven or any(feed_ns.values()):
        program, jitter = uneven.applied(program_of(plan, cost, folds=not uneven))
        if any(feed_ns.values()):
            program = fed(program, read_ns=feed_ns["read"], decode_ns=feed_ns["decode"])
        found = simulate(program, peak_flop_per_s=peak_flop_per_s, jitter=jitter)
    studied = studies(args, plan, cost, uneven)
    lost = None
    if args.mtbf is not None:
        from experiments.studies.failures import lost_to_failures

        lost = lost_to_failures(program, cost, mtbf=args.mtbf, restart=args.restart, save=args.save)
    if args.trace is not None:
        write_trace_of(program, found, args.trace)
    if args.figure is not None:
        draw(plan, program, found, args.figure)
    if args.json:
        failures = {} if lost is None else asdict(lost)
        studies_of = {name: asdict(study) for name, study in studied.items()}
        emit({**document(found), **failures, **studies_of, "extrapolated": extrapolated(plan, calibration)})
    say(f"{args.plan}: {format_seconds(found.step_time_s)} a step, {found.idle_share:.1%} of it idle")
    for study in studied.values():
        say(str(study))
    if lost is not None:
        say(str(lost))
    return 0


def _time_ns(text: str | None, where: str) -> int:
    from strategy.base.units import parse_seconds, to_ns

    return 0 if text is None else to_ns(parse_seconds(text, where=where))


def studies(args: argparse.Namespace, plan: Plan, cost: CostModel, uneven: Unevenness) -> dict[str, Study]:
    """What else is asked for, by its flag.

    Raises:
        InputError: uneven ranks under a study of even ones.
    """
    from experiments.studies.studies import exchange_study, schedule_study, staleness_study

    found: dict[str, Study] = {}
    if uneven and (args.exchange or args.schedule):
        flag = "--exchange" if args.exchange else "--schedule"
        raise InputError("ranks are even there", where=flag, hint="leave out --straggler, --slow-link and --jitter")
    if args.exchange:
        found["exchange"] = exchange_study(plan, cost, args.exchange)
    if args.schedule:
        found["schedule"] = schedule_study(plan, cost, args.schedule)
    if args.staleness is not None:
        found["staleness"] = staleness_study(plan, cost, args.staleness, uneven)
    return found


def document(found: Simulation) -> dict[str, object]:
    """The JSON document of a simulation."""
    keys = ("step_time_s", "bubble_overhead", "idle_share", "exposed_communication_s", "tokens_per_s", "mfu", "hfu")
    return {
        **{key: getattr(found, key) for key in (*keys, "num_tasks", "simulate_time_s")},
        "peak_memory_bytes": list(found.peak_memory_bytes),
    }


def write_trace_of(program: Program, found: Simulation, path: Path) -> None:
    """The acts of every rank that is there, and, where not too many, its memory, for Perfetto."""
    from simulator.memory_timeline import memory_timelines
    from simulator.simulate import MOST_ACTS
    from simulator.trace import TracedRun, write_trace

    memory = memory_timelines(program, found.timeline) if found.num_tasks <= found.steps * MOST_ACTS else ()
    write_trace(path, [TracedRun.simulated(program, found.run.acts, memory)])


def draw(plan: Plan, program: Program, found: Simulation, path: Path) -> None:
    """The timeline into `path`, and the memory beside it into `NAME-memory.SUFFIX`.

    Raises:
        InputError: there are too many acts to draw.
    """
    from simulator.simulate import MOST_ACTS

    if found.num_tasks > found.steps * MOST_ACTS:
        raise InputError(
            "too many acts for a picture", where=f"--figure {path}", got=found.num_tasks, hint="use --trace"
        )
    from experiments.figures.picture import save
    from simulator.figures import memory_figure, timeline_figure
    from simulator.memory_timeline import memory_timelines
    from strategy.layout.arrangement import arrange

    actions = arrange(plan.graph, plan.layout, plan.pipeline).actions
    timeline = found.timeline
    save(timeline_figure([timeline], phases={action.name: action.phase for action in actions}), path)
    memories = memory_timelines(program, timeline)
    figure = memory_figure(memories, limit_bytes=plan.claims.memory_limit_bytes)
    save(figure, path.with_stem(f"{path.stem}-memory"))
