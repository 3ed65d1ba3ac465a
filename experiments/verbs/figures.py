"""Draw the figures of the papers: schedules and scaling by closed form, and with --all those of the runs in a store."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.command.arguments import add_json
from experiments.command.console import emit, say
from experiments.command.outputs import RUNS, check_output_path, csv_text, make_folder
from strategy.base.errors import InputError
from strategy.base.files import write_atomic

if TYPE_CHECKING:
    from experiments.store.results import ExperimentResult

COMPUTED = ("schedules", "scaling")
"""Need no runs."""
STORED: Mapping[str, str] = {
    "bubbles": "schedules",
    "in_flight": "schedules",
    "exchange_steps": "exchange",
    "exchange_gain": "exchange",
    "frameworks": "frameworks",
    "sc21_steps": "sc21",
    "sc21_causes": "sc21",
    "zero_memory": "memory",
    "zero_tradeoff": "memory",
    "scaling_rate": "scaling",
    "scaling_causes": "scaling",
    "search_ratios": "search",
    "search_times": "search",
    "held_out": "published",
    "held_out_errors": "published",
    "predicted_measured": "executor",
    "timelines": "executor",
}
"""Figure -> the suite whose runs it shows."""
SUFFIXES = (".png", ".pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan figures` takes."""
    parser.add_argument("--all", action="store_true", help="every figure, also those of the runs in the store")
    parser.add_argument("--store", type=Path, default=RUNS, metavar="DIR", help="the store of 'sbplan run' (runs)")
    parser.add_argument("--out", type=Path, default=Path("figures"), metavar="DIR", help="folder (figures)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Draw each figure as PNG and as PDF, and write what it shows as CSV.

    Raises:
        InputError: there are no runs to draw.
    """
    results = _results(args.store) if args.all else ()
    make_folder(args.out, "--out")
    written, without = [], []
    for name in (*COMPUTED, *(STORED if args.all else ())):
        module = import_module(f"experiments.figures.{name}")
        rows = module.data(latest(results, STORED[name])) if name in STORED else module.data()
        if not rows:
            without.append(name)
            continue
        written += [str(path) for path in _drawn(module, rows, args.out / name)]
        say(f"{args.out / name}.png, .pdf and .csv: {str(module.__doc__).splitlines()[0]}")
    for suite in dict.fromkeys(STORED[name] for name in without):
        missing = ", ".join(name for name in without if STORED[name] == suite)
        say(f"no runs for {missing}: 'sbplan run {suite}.toml --out {args.store}' makes them")
    if args.json:
        emit({"figures": written, "without_runs": without})
    return 0


def _results(store: Path) -> tuple[ExperimentResult, ...]:
    from experiments.store.results import read_results
    from experiments.store.store import RunStore

    hint = f"type 'sbplan run all.toml --quick --out {store}' first"
    try:
        found = read_results(RunStore(store))
    except InputError as error:
        if error.problem != "no runs here":
            raise
        raise InputError(error.problem, where=error.where, expected=error.expected, hint=hint) from None
    if not found:
        raise InputError("no finished experiments here", where=str(store), hint=hint)
    return found


def latest(results: Sequence[ExperimentResult], suite: str) -> list[ExperimentResult]:
    """Of each experiment of a suite the newest result, in the order in which they were first done."""
    found = {one.name: one for one in results if one.suite == suite}
    return list(found.values())


def _drawn(module: Any, rows: Sequence[Any], path: Path) -> Iterator[Path]:
    import matplotlib

    from experiments.figures.picture import save
    from experiments.figures.style import SETTINGS

    with matplotlib.rc_context(SETTINGS):
        picture = module.figure(rows)
        for suffix in SUFFIXES:
            check_output_path(path.with_suffix(suffix), "--out")
            save(picture, path.with_suffix(suffix))
            yield path.with_suffix(suffix)
    shown = module.table(rows) if hasattr(module, "table") else rows
    write_atomic(path.with_suffix(".csv"), as_csv(shown))
    yield path.with_suffix(".csv")


def as_csv(rows: Sequence[Any]) -> str:
    """A line per row, a column per field of it that is a figure, a word or a list of them; the run's id is first."""
    names = [one.name for one in fields(rows[0])]
    columns = [name for name in sorted(names, key=lambda name: name != "run") if _is_plain(getattr(rows[0], name))]
    return csv_text([columns, *([_text(getattr(row, name)) for name in columns] for row in rows)])


def _is_plain(value: object) -> bool:
    return isinstance(value, str | int | float | tuple | None)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else json.dumps(value, default=asdict)
