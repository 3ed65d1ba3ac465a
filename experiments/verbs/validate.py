"""Recompute the shipped published numbers: predictions of measured runs by fits without them, and sources' figures.

`--kernels` does the same for measured kernels; `--search` compares the plans that a search chooses with what others
trained with.
"""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.command.arguments import add_json, seconds
from experiments.command.console import emit, say
from experiments.command.outputs import check_output_path
from experiments.planning.request import TIME_LIMIT_S
from strategy.base.errors import InputError

if TYPE_CHECKING:
    from experiments.kernels.validation import KernelError
    from experiments.published.priced_configurations import PricedRun
    from experiments.published.scores import Choice, Score
    from experiments.published.source_figure import SourceFigure
    from experiments.published.validation import Validation


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan validate` takes."""
    parser.add_argument(
        "--choices", action="store_true", help="choose the way predicted fastest among those that others measured"
    )
    parser.add_argument(
        "--prices",
        action="store_true",
        help="also the errors of prices by trainer and cluster: of runs as their rows describe them, and of published "
        "configurations whose runs were published",
    )
    parser.add_argument(
        "--depths",
        action="store_true",
        help="instead, price the ten jobs of Megatron's SC'21 table by closed form and by acts, and say what differs",
    )
    parser.add_argument(
        "--kernels",
        action="store_true",
        help="instead, predict measured products, attention, experts and collectives by fits that have not seen them",
    )
    parser.add_argument(
        "--search",
        action="store_true",
        help="instead, compare the plans that a search chooses with configurations that others trained with",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="NAME",
        help="of --search: only configurations of this name or pattern; may be given several times",
    )
    parser.add_argument(
        "--time-limit",
        type=seconds,
        metavar="S",
        help=f"of --search: seconds for each search, of theirs and of ours (default: {TIME_LIMIT_S:g})",
    )
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="write the constants fitted to all open runs, or kernels, here"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Fit, hold out, score, and print the tables; or price jobs both ways; or search beside published plans."""
    _check_flags(args)
    if args.depths:
        return _price_both_ways(args)
    if args.kernels:
        return _predict_kernels(args)
    if args.search:
        return _search_beside_published(args)
    from experiments.published.fitting import open_rows
    from experiments.published.sources import all_figures, as_table
    from experiments.published.validation import FOLDS, validate
    from strategy.closed_form.calibration import DECLARED, write_constants

    check_output_path(args.out, "--out")
    found = validate()
    if args.out:
        provenance = {
            "fitted_to": list(open_rows()),
            "by": "sbplan validate --out",
            "method": "least squares on log ratios, soft L1, priors, families of nearly equal weight",
            "strata": f"residuals of {FOLDS} folds with groups kept whole, and of sources held out",
        }
        write_constants(args.out, found.fits, found.strata, found.memory, found.guesses, provenance)
    figures = all_figures()
    if args.json:
        emit(
            document(found, figures)
            | ({"choices": [asdict(one) for one in found.choices]} if args.choices else {})
            | ({"prices": [asdict(one) for one in found.priced]} if args.prices else {})
        )
    say(f"{len(DECLARED)} fitted parameters\n")
    for way, scores in ((f"group, {FOLDS} folds", found.within), ("source", found.across)):
        for name, part in by_set(scores, found.second).items():
            say(f"\nheld out by {way}: {name} set of sources\n" + table(part))
    say("\nheld out by source, with what other systems say where it alone tells a constant\n" + table(found.untold))
    say("\nall-reduces of at least 1 MiB, mean error")
    for setup, error in found.collective_error.items():
        say(f"  {setup:<12}{100 * error:6.1f} %")
    say("\nfigures that the sources print, simulated\n" + as_table(figures))
    if args.choices:
        say("\n" + choices(found.choices))
    if args.prices:
        say("\n" + prices(found.priced))
    return 0


def _check_flags(args: argparse.Namespace) -> None:
    """Refuse flags that would do nothing.

    Raises:
        InputError: which flag, and beside which one.
    """
    for alone, problem in (("depths", "fits nothing"), ("search", "fits nothing"), ("kernels", "fits no runs")):
        others = ("depths", "search", "kernels", "choices", "prices", *(() if alone == "kernels" else ("out",)))
        beside = [f"--{flag}" for flag in others if flag != alone and vars(args)[flag]]
        if vars(args)[alone] and beside:
            raise InputError(
                problem, where=f"--{alone}", got=f"with {' and '.join(beside)}", expected="alone, or --json"
            )
    for flag, value in (("--only", args.only), ("--time-limit", args.time_limit)):
        if value and not args.search:
            raise InputError("is of searches beside published plans", where=flag, hint="give --search too")


def _price_both_ways(args: argparse.Namespace) -> int:
    from experiments.published.depths import depths, header, line
    from experiments.published.depths import document as document_of
    from experiments.published.megatron import TABLE
    from strategy.closed_form.calibration import shipped

    say(header())
    found = []
    for name, job in TABLE.items():
        found.append(depths(name, job, shipped()))
        say(line(found[-1]))
    if args.json:
        emit({"depths": [document_of(one) for one in found]})
    return 0


def _predict_kernels(args: argparse.Namespace) -> int:
    from experiments.kernels.points import TABLES
    from experiments.kernels.validation import FOLDS, validate_kernels
    from strategy.kernels.calibration import write_kernels

    check_output_path(args.out, "--out")
    found = validate_kernels()
    if args.out:
        provenance = {
            "fitted_to": list(TABLES),
            "by": "sbplan validate --kernels --out",
            "method": "least squares on log ratios, soft L1, priors; every device, kind and precision by itself",
        }
        write_kernels(args.out, found.calibration.fitted, provenance)
    if args.json:
        emit({"folds": FOLDS, "kernels": [asdict(error) for error in found.errors]})
    say(f"relative error on withheld cells, {FOLDS} folds; sheet: on the device withheld whole, from its data sheet\n")
    say(kernel_table(found.errors))
    return 0


def kernel_table(errors: Sequence[KernelError]) -> str:
    """One line per kind, device and precision."""
    names = f"{'kernels':<22}{'device':<9}{'precision':<18}{'points':>7}"
    lines = [names + "".join(f"{name:>9}" for name in ("median", "p90", "sheet", "p90"))]
    for one in errors:
        figures = (one.median, one.p90, one.of_sheet, one.of_sheet_p90)
        cells = "".join(f"{'-':>9}" if value is None else f"{100 * value:>7.1f} %" for value in figures)
        lines.append(f"{one.kind:<22}{one.device:<9}{one.precision:<18}{one.judged:>7}{cells}")
    return "\n".join(lines)


def _search_beside_published(args: argparse.Namespace) -> int:
    from experiments.command.stopping import stopping
    from experiments.published import configurations
    from experiments.published.published_searches import compare, header, lines, summary
    from experiments.published.published_searches import document as document_of
    from strategy.closed_form.calibration import shipped

    time_limit_s = args.time_limit or TIME_LIMIT_S
    wanted = configurations.chosen(args.only, configurations.CONFIGURATIONS)
    say(header())
    found = []
    with stopping():
        for one in wanted:
            found.append(compare(one, time_limit_s, shipped()))
            say(lines(found[-1]))
    say(summary(found))
    if args.json:
        emit({"time_limit_s": time_limit_s, "searches": [document_of(one) for one in found]})
    return 0


def document(found: Validation, figures: Sequence[SourceFigure]) -> dict[str, object]:
    """The JSON document of a validation."""
    from experiments.published.scores import macro
    from experiments.published.validation import CALCULON
    from strategy.closed_form.calibration import DECLARED

    return {
        "parameters": len(DECLARED),
        "within": {name: asdict(item) for name, item in found.within.items()},
        "within_macro": {name: macro(part.values()) for name, part in by_set(found.within, found.second).items()},
        "across": {name: asdict(item) for name, item in found.across.items()},
        "across_macro": {name: macro(part.values()) for name, part in by_set(found.across, found.second).items()},
        "untold": {name: asdict(item) for name, item in found.untold.items()},
        "collectives": dict(found.collective_error),
        "calculon": CALCULON,
        "figures": [asdict(figure) for figure in figures],
    }


def prices(found: Sequence[PricedRun]) -> str:
    """Errors of prices by trainer and cluster, held out by group: of published configurations, and of all rows."""
    from experiments.published.priced_configurations import as_table, by_cluster

    files = [one for one in found if one.configuration]
    rows = [one for one in found if not one.configuration]
    return (
        "published configurations, priced as files, whose runs were published; held out by group\n"
        f"{as_table(by_cluster(files), of_files=True)}\n\nall published runs, priced as rows; held out by group\n"
        f"{as_table(by_cluster(rows), of_files=False)}"
    )


def choices(found: Sequence[Choice]) -> str:
    """One line per published search: the way chosen by predictions of a fit without it, what it lost to the fastest."""
    lines = [f"{'published search':<54}{'ways':>6}{'regret':>9}  chosen"]
    for one in found:
        name = f"{one.family}: {one.model}, {one.gpus} GPUs, batch {one.global_batch}"
        other = "" if one.chosen == one.fastest else f"  (fastest: {one.fastest})"
        lines.append(f"{name:<54}{one.ways:>6}{100 * one.regret:>7.1f} %  {one.chosen}{other}")
    best = sum(one.regret == 0 for one in found)
    mean = sum(one.regret for one in found) / len(found)
    lines.append(f"{best} of {len(found)} chosen as the fastest, mean regret {100 * mean:.1f} %")
    return "\n".join(lines)


def by_set(scores: Mapping[str, Score], second: Collection[str]) -> dict[str, dict[str, Score]]:
    """Scores of the families of the first set of sources, and of the second."""
    return {
        name: {family: item for family, item in scores.items() if (family in second) == there}
        for name, there in (("first", False), ("second", True))
    }


def table(scores: Mapping[str, Score]) -> str:
    """One line per family, and the means over families."""
    from experiments.published.scores import macro
    from experiments.published.validation import CALCULON

    columns = {
        "error": "error", "error_p90": "error_p90", "bias": "bias", "covered": "covered", "width": "width",
        "width_p90": "width_p90", "tau": "tau", "regret": "regret", "memory_error": "memory",
        "large_memory_error": "from 10 GiB",
    }  # fmt: skip
    head = f"{'family':<16}{'rows':>6}{'done':>6}" + "".join(f"{name:>13}" for name in columns.values())
    lines = [head + f"{'oom':>7}{'alarms':>8}{'calculon':>10}"]
    for name, item in scores.items():
        figures = "".join(_cell(getattr(item, column), column) for column in columns)
        oom = f"{item.out_of_memory_found}/{item.out_of_memory}"
        theirs = f"{100 * CALCULON[name]:>8.1f} %" if name in CALCULON else ""
        lines.append(f"{name:<16}{item.rows:>6}{item.predicted:>6}{figures}{oom:>7}{item.false_alarms:>8}{theirs:>10}")
    means = macro(scores.values())
    lines.append(f"{'mean':<28}" + "".join(_cell(means.get(column), column) for column in columns))
    return "\n".join(lines)


def _cell(value: float | None, column: str) -> str:
    if value is None:
        return f"{'-':>13}"
    return f"{value:>13.2f}" if column in ("width", "width_p90", "tau") else f"{100 * value:>11.1f} %"
