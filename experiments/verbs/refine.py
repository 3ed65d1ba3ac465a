"""Fit the time model to measured runs, ours or those that another trainer logged.

A run is a folder with plan.json, measurements.json and timeline.json.gz, as `sbplan train` leaves it. Kinds of acts
that no run measured keep their constants. A log says how long steps took: all that was not measured by itself is
corrected by one factor.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.command.arguments import add_json
from experiments.command.console import emit, say
from experiments.command.outputs import check_output_path
from strategy.base.errors import InputError

if TYPE_CHECKING:
    from experiments.logs.corrections import LoggedRun
    from strategy.cost.calibrate import Calibration
    from strategy.cost.measurement import Measurement
    from strategy.hardware.cluster import Cluster
    from strategy.plan.plan import Plan
    from strategy.program.timeline import Timeline


@dataclass(frozen=True)
class MeasuredRun:
    """What a run's folder holds."""

    folder: Path
    plan: Plan
    measurements: tuple[Measurement, ...]
    timeline: Timeline


@dataclass(frozen=True, slots=True)
class Misprediction:
    """Predicted over measured step time of a run, less one, under the old and the new calibration."""

    run: str
    measured_s: float
    before: float
    after: float

    def document(self) -> dict[str, object]:
        """The entry of the JSON document."""
        return {
            "run": self.run,
            "measured_step_time_s": self.measured_s,
            "error_before": self.before,
            "error_after": self.after,
        }


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan refine` takes."""
    parser.add_argument("runs", metavar="RUN", nargs="*", type=Path, help="folders of measured runs")
    parser.add_argument(
        "--log",
        nargs=2,
        action="append",
        default=[],
        type=Path,
        metavar=("PLAN", "LOG"),
        help="a plan, and of what trained in the same way a log of Megatron-LM, torchtitan or NeMo, or a trace of "
        "PyTorch's profiler",
    )
    parser.add_argument(
        "--collectives",
        nargs=2,
        action="append",
        default=[],
        metavar=("RANKS", "FILE"),
        help="output of nccl-tests' all_reduce_perf, or of all_reduce_bench.py, on so many ranks (beside --log)",
    )
    text = "the calibration to start from (default: the data sheet of the plans' cluster)"
    parser.add_argument("--calibration", type=Path, metavar="F", help=text)
    parser.add_argument("--out", type=Path, required=True, metavar="F", help="write the new calibration here")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Fit, write, and say how wrong each run's prediction was and is."""
    from experiments.logs.corrections import corrected, errors_of, of_data_sheet
    from experiments.planning.prices import read_calibration_of
    from strategy.base.units import format_seconds
    from strategy.cost.calibrate import write_calibration

    check_output_path(args.out, "--out")
    _check_sources(args)
    runs, logged = [read_run(folder) for folder in args.runs], read_logged(args.log)
    plans = {str(found.folder): found.plan for found in runs} | {str(one.log.path): one.plan for one in logged}
    check_one_cluster(plans)
    cluster = next(iter(plans.values())).cluster
    collectives = [row for ranks, name in args.collectives for row in _collectives(ranks, Path(name), cluster)]
    old = None if args.calibration is None else read_calibration_of(cluster, args.calibration)
    if logged:
        sheet = of_data_sheet([one.plan for one in logged])
        old = sheet if old is None else replace(old, fitted={**sheet.fitted, **old.fitted})
    old = of_data_sheet(list(plans.values())) if old is None else old
    new = refined(old, runs) if runs else old
    errors_of_logs = []
    if logged:
        base, new = new, corrected(new, logged, collectives, cluster)
        errors_of_logs = errors_of(base, new, logged, collectives)
    write_calibration(new, args.out)
    errors = [error_of(found, old, new) for found in runs]
    for found in errors:
        measured = format_seconds(found.measured_s)
        say(f"{found.run}: {measured} a step, error {found.before:+.1%} before, {found.after:+.1%} after")
    for one in errors_of_logs:
        held_out = "" if one.error_held_out is None else f", {one.error_held_out:+.1%} by the other logs alone"
        measured = format_seconds(one.measured_step_time_s)
        errors_said = f"error {one.error_before:+.1%} before, {one.error_after:+.1%} after{held_out}"
        say(f"{one.log} ({one.trainer}): {measured} a step, {errors_said}")
    say(f"{args.out}: {len(new.fitted)} kinds, {len(new.fitted.keys() - old.fitted.keys())} of them new")
    if args.json:
        emit(
            {
                "calibration": str(args.out),
                "kinds": sorted(map(str, new.fitted)),
                "runs": [found.document() for found in errors],
                "logs": [asdict(one) for one in errors_of_logs],
            }
        )
    return 0


def _check_sources(args: argparse.Namespace) -> None:
    """Refuse to refine by nothing.

    Raises:
        InputError: no runs and no logs, or collectives without a log.
    """
    if not args.runs and not args.log:
        raise InputError(
            "nothing to refine by", expected="RUN..., or --log PLAN LOG", hint="see 'sbplan refine --help'"
        )
    if args.collectives and not args.log:
        raise InputError("of which cluster?", where="--collectives", expected="--log PLAN LOG beside it")


def read_logged(pairs: Sequence[Sequence[Path]]) -> list[LoggedRun]:
    """Plans, and logs of what trained in the same way; a plan of several logs is read once.

    Raises:
        InputError: one is missing or damaged, or a plan is refused.
    """
    from experiments.logs.corrections import LoggedRun
    from experiments.logs.trainer_log import read_trainer_log
    from strategy.plan.plan import read_plan
    from strategy.plan.verify import refusal, verify

    plans: dict[Path, Plan] = {}
    for path in dict.fromkeys(path for path, _ in pairs):
        plans[path] = read_plan(path)
        problems = verify(plans[path])
        if problems:
            raise refusal(path, problems)
    return [LoggedRun(plans[path], read_trainer_log(log)) for path, log in pairs]


def _collectives(ranks: str, path: Path, cluster: Cluster) -> list[Measurement]:
    from experiments.logs.collective_log import measurements_of, read_collective_log

    if not ranks.isascii() or not ranks.isdigit():
        raise InputError("not a number of ranks", where="--collectives", got=ranks, expected="RANKS FILE")
    return measurements_of(read_collective_log(path), int(ranks), cluster, str(path))


def read_run(folder: Path) -> MeasuredRun:
    """The files of a run.

    Raises:
        InputError: one is missing or damaged, the plan is refused, or nothing was measured.
    """
    from strategy.cost.calibrate import read_measurements
    from strategy.plan.plan import read_plan
    from strategy.plan.verify import refusal, verify
    from strategy.program.timeline import read_timeline

    if not folder.is_dir():
        raise InputError("no such run", where=str(folder), expected="the folder of a run of 'sbplan train'")
    found = MeasuredRun(
        folder,
        read_plan(folder / "plan.json"),
        tuple(read_measurements(folder / "measurements.json")),
        read_timeline(folder / "timeline.json.gz"),
    )
    problems = verify(found.plan)
    if problems:
        raise refusal(folder / "plan.json", problems)
    if not found.measurements:
        raise InputError("nothing was measured", where=str(folder / "measurements.json"))
    return found


def check_one_cluster(plans: Mapping[str, Plan]) -> None:
    """Refuse runs of several clusters: their constants have nothing to do with each other, unless nodes are alike.

    Raises:
        InputError: two runs are of different clusters.
    """
    (first, plan), *others = plans.items()
    for where, other in others:
        if other.cluster.name != plan.cluster.name and not _of_alike_nodes(other.cluster, plan.cluster):
            got, expected = other.cluster.name, plan.cluster.name
            raise InputError(f"not of the same cluster as {first}", where=where, got=got, expected=expected)


def _of_alike_nodes(one: Cluster, other: Cluster) -> bool:
    """Whether two clusters differ by their number of nodes alone."""
    return not one.groups and replace(one, name=other.name, nodes=other.nodes) == other


def refined(old: Calibration, runs: Sequence[MeasuredRun]) -> Calibration:
    """The old calibration, corrected by what the runs measured."""
    from experiments.loop.refinement import Observation, refine_by
    from strategy.plan.observe import act_overhead_s

    observations = [
        Observation(found.plan, found.measurements, act_overhead_s(found.timeline), measured_step_s(found))
        for found in runs
    ]
    return refine_by(old, observations, runs[0].plan.cluster)


def error_of(found: MeasuredRun, old: Calibration, new: Calibration) -> Misprediction:
    """How wrong a run's prediction was and is."""
    from experiments.loop.refinement import predict_s

    measured_s = measured_step_s(found)
    before_s, after_s = (predict_s(found.plan, calibration) for calibration in (old, new))
    return Misprediction(str(found.folder), measured_s, before_s / measured_s - 1, after_s / measured_s - 1)


def measured_step_s(found: MeasuredRun) -> float:
    """Median time of steps that were not recorded, else from the end of a step to the end of the next.

    Raises:
        InputError: fewer than two steps were measured.
    """
    from itertools import pairwise
    from statistics import median

    from experiments.jobs.step_time import read_step_time
    from strategy.program.timeline import step_ends_ns

    left_alone_s = read_step_time(found.folder)
    if left_alone_s is not None:
        return left_alone_s
    times_ns = [after - before for before, after in pairwise(step_ends_ns(found.timeline)) if before > 0]
    if not times_ns or median(times_ns) <= 0:
        raise InputError("too few steps to say what one takes", where=str(found.folder), expected="two at least")
    return float(median(times_ns)) / 1e9
