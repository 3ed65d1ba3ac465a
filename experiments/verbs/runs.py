"""List, show, compare, export and delete the runs in a store: one folder each, and a row in SQLite."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.command.arguments import add_json, positive_int
from experiments.command.console import emit, say, write_out
from experiments.command.outputs import RUNS, check_output_path, csv_text
from strategy.base.errors import InputError, printable
from strategy.base.files import write_atomic

if TYPE_CHECKING:
    from experiments.store.store import RunRecord, RunStore

ACTIONS = ("list", "show", "compare", "export", "delete")
EXPORTS = (".csv", ".json")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan runs` takes."""
    parser.add_argument(
        "action", choices=ACTIONS, nargs="?", default="list", metavar="ACTION", help=f"{', '.join(ACTIONS)} (list)"
    )
    parser.add_argument(
        "ids", type=positive_int, nargs="*", metavar="ID", help="runs by their number (list, export: all)"
    )
    parser.add_argument("--store", type=Path, default=RUNS, metavar="DIR", help="the folder of the store (runs)")
    parser.add_argument("--out", type=Path, metavar="F", help="of export: the file, .csv or .json")
    parser.add_argument(
        "--unfinished",
        action="store_true",
        help="of delete: also runs that stand as running; a run whose process was killed stays so",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Do what is asked for with the runs that are named."""
    from experiments.store.store import RunStore

    _check(args)
    store = RunStore(args.store)
    if args.action == "delete":
        return _delete(store, args.ids, unfinished=args.unfinished, json=args.json)
    runs = _chosen(store, args.ids)
    if args.action == "export":
        return _export(runs, args.out, json=args.json)
    if args.action == "compare":
        compared = comparison(runs)
        if args.json:
            emit({"runs": [run.id for run in runs], "differences": compared})
        else:
            write_out(_table(["", *(str(run.id) for run in runs)], [[key, *row] for key, row in compared.items()]))
        return 0
    if args.json:
        emit({"runs": [document(run, whole=args.action == "show") for run in runs]})
    elif args.action == "show":
        write_out("".join(_shown(run) for run in runs))
    else:
        rows = [[str(run.id), run.verb, run.status, run.started, _duration(run), run.folder.name] for run in runs]
        write_out(_table(["id", "verb", "status", "started", "seconds", "folder"], rows))
    return 0


def _check(args: argparse.Namespace) -> None:
    """Refuse what an action has no use for.

    Raises:
        InputError: flags of another action, or too few runs.
    """
    fewest = {"show": 1, "compare": 2, "delete": 1}.get(args.action, 0)
    if len(args.ids) < fewest:
        hint = "'sbplan runs' lists them"
        raise InputError("too few runs", where=args.action, got=len(args.ids), expected=f"{fewest} or more", hint=hint)
    if args.action == "export" and (args.out is None or args.out.suffix not in EXPORTS):
        raise InputError("no such format", where="--out", got=str(args.out), expected=f"a file, {' or '.join(EXPORTS)}")
    for flag, given, action in (("--out", args.out, "export"), ("--unfinished", args.unfinished, "delete")):
        if given and args.action != action:
            raise InputError(f"is of {action!r}", where=flag, got=args.action)
    check_output_path(args.out, "--out")


def _chosen(store: RunStore, ids: Sequence[int]) -> list[RunRecord]:
    """The runs that are named, or all; damaged rows are told in one message."""
    if ids:
        return [store.get(number) for number in ids]
    found = store.read()
    if found.damaged:
        numbers = " ".join(map(str, found.damaged))
        say(f"warning: damaged rows: {numbers}; 'sbplan runs delete {numbers}' removes them")
    return list(found.runs)


def _delete(store: RunStore, ids: Sequence[int], *, unfinished: bool, json: bool) -> int:
    from experiments.store.store import RunStatus

    running = [run.id for run in store.list() if run.id in ids and run.status is RunStatus.RUNNING]
    if running and not unfinished:
        hint = "give --unfinished if their processes are gone"
        raise InputError("runs that stand as running", where="delete", got=running, hint=hint)
    for number in ids:
        store.delete(number)
        say(f"deleted {number}")
    if json:
        emit({"deleted": list(ids)})
    return 0


def _export(runs: Sequence[RunRecord], path: Path, *, json: bool) -> int:
    documents = [document(run, whole=True) for run in runs]
    write_atomic(path, _as_csv(documents) if path.suffix == ".csv" else _as_json(documents))
    say(f"{path}: {len(runs)} runs")
    if json:
        emit({"runs": len(runs), "out": str(path)})
    return 0


def document(run: RunRecord, *, whole: bool) -> dict[str, object]:
    """A run as JSON knows it; `whole`, with what it was given and what it found."""
    found: dict[str, object] = {
        "id": run.id,
        "verb": run.verb,
        "status": str(run.status),
        "started": run.started,
        "finished": run.finished,
        "plan_hash": run.plan_hash,
        "folder": run.folder.name,
    }
    return found | ({"inputs": run.inputs(), "summary": run.summary} if whole else {})


def comparison(runs: Sequence[RunRecord]) -> dict[str, list[str]]:
    """Key -> its values by run, of what the runs were given and found, where they are not all the same."""
    columns = [flattened(document(run, whole=True)) for run in runs]
    keys = dict.fromkeys(key for column in columns for key in column if key not in ("id", "folder"))
    rows = {key: [column.get(key, "") for column in columns] for key in keys}
    return {key: row for key, row in rows.items() if len(set(row)) > 1}


def flattened(found: Mapping[str, object], prefix: str = "") -> dict[str, str]:
    """Objects inside of objects as `outer.inner`; every value as text, lists as JSON."""
    texts: dict[str, str] = {}
    for key, value in found.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            texts |= flattened(value, f"{name}.")
        else:
            texts[name] = value if isinstance(value, str) else "" if value is None else json.dumps(value)
    return texts


def _as_csv(documents: Sequence[Mapping[str, object]]) -> str:
    rows = [flattened(one) for one in documents]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    return csv_text([columns, *([row.get(column, "") for column in columns] for row in rows)])


def _as_json(documents: Sequence[Mapping[str, object]]) -> str:
    return json.dumps(documents, indent=2, sort_keys=True) + "\n"


def _shown(run: RunRecord) -> str:
    lines = (f"{key}: {value}" for key, value in flattened(document(run, whole=True)).items())
    return "\n".join(printable(line) for line in lines) + "\n\n"


def _duration(run: RunRecord) -> str:
    """Seconds from start to end, if it has ended."""
    from datetime import datetime

    if run.finished is None:
        return ""
    try:
        return f"{(datetime.fromisoformat(run.finished) - datetime.fromisoformat(run.started)).total_seconds():.0f}"
    except (ValueError, TypeError):  # no times, or one with and one without its zone
        return "?"


MOST_WIDE = 48
"""Characters of a cell; what is longer is cut, and whole with `--json`."""


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cut = [[printable(cell[:MOST_WIDE]).replace("\n", " ") for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*cut, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cut)
    return "\n".join(lines) + "\n"
