"""Fit the time model to measured runs.

A run is a folder with plan.json, measurements.json and timeline.json.gz, as `sbplan train` leaves it. Kinds of acts
that no run measured keep their constants.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.arguments import add_json
from experiments.console import emit, say
from experiments.outputs import check_output_path
from strategy.base.errors import InputError

if TYPE_CHECKING:
    from strategy.cost.calibrate import Calibration
    from strategy.cost.measurement import Measurement
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
    parser.add_argument("runs", metavar="RUN", nargs="+", type=Path, help="folders of measured runs")
    parser.add_argument("--calibration", type=Path, required=True, metavar="F", help="the calibration to start from")
    parser.add_argument("--out", type=Path, required=True, metavar="F", help="write the new calibration here")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Fit, write, and say how wrong each run's prediction was and is."""
    from experiments.prices import read_calibration_of
    from strategy.base.units import format_seconds
    from strategy.cost.calibrate import write_calibration

    check_output_path(args.out, "--out")
    runs = [read_run(folder) for folder in args.runs]
    check_one_cluster(runs)
    old = read_calibration_of(runs[0].plan.cluster, args.calibration)
    new = refined(old, runs)
    write_calibration(new, args.out)
    errors = [error_of(found, old, new) for found in runs]
    for found in errors:
        measured = format_seconds(found.measured_s)
        say(f"{found.run}: {measured} a step, error {found.before:+.1%} before, {found.after:+.1%} after")
    say(f"{args.out}: {len(new.fitted)} kinds, {len(new.fitted.keys() - old.fitted.keys())} of them new")
    if args.json:
        emit(
            {
                "calibration": str(args.out),
                "kinds": sorted(map(str, new.fitted)),
                "runs": [found.document() for found in errors],
            }
        )
    return 0


def read_run(folder: Path) -> MeasuredRun:
    """The files of a run.

    Raises:
        InputError: one is missing or damaged, the plan is refused, or nothing was measured.
    """
    from experiments.verbs.verify import refusal
    from strategy.cost.calibrate import read_measurements
    from strategy.plan.plan import read_plan
    from strategy.plan.verify import verify
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


def check_one_cluster(runs: Sequence[MeasuredRun]) -> None:
    """Refuse runs of several clusters: their constants have nothing to do with each other.

    Raises:
        InputError: two runs are of different clusters.
    """
    first = runs[0]
    for other in runs[1:]:
        if other.plan.cluster.name != first.plan.cluster.name:
            raise InputError(
                f"not of the same cluster as {first.folder}",
                where=str(other.folder),
                got=other.plan.cluster.name,
                expected=first.plan.cluster.name,
            )


def refined(old: Calibration, runs: Sequence[MeasuredRun]) -> Calibration:
    """The old calibration, corrected by what the runs measured."""
    from experiments.refinement import Observation, refine_by
    from strategy.plan.observe import act_overhead_s

    observations = [
        Observation(found.plan, found.measurements, act_overhead_s(found.timeline), measured_step_s(found))
        for found in runs
    ]
    return refine_by(old, observations, runs[0].plan.cluster)


def error_of(found: MeasuredRun, old: Calibration, new: Calibration) -> Misprediction:
    """How wrong a run's prediction was and is."""
    from experiments.refinement import predict_s

    measured_s = measured_step_s(found)
    before_s, after_s = (predict_s(found.plan, calibration) for calibration in (old, new))
    return Misprediction(str(found.folder), measured_s, before_s / measured_s - 1, after_s / measured_s - 1)


def measured_step_s(found: MeasuredRun) -> float:
    """Median time from the end of a step to the end of the next; the first step warms up.

    Raises:
        InputError: fewer than two steps were measured.
    """
    from itertools import pairwise
    from statistics import median

    from strategy.program.timeline import step_ends_ns

    times_ns = [after - before for before, after in pairwise(step_ends_ns(found.timeline)) if before > 0]
    if not times_ns or median(times_ns) <= 0:
        raise InputError("too few steps to say what one takes", where=str(found.folder), expected="two at least")
    return float(median(times_ns)) / 1e9
