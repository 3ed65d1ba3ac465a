"""BibTeX of the methods that a plan uses: schedule, ZeRO, parallelism, recomputing, precision, optimiser, bound."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from experiments.command.arguments import add_json
from experiments.command.console import emit, say, write_out


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan cite` takes."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a plan file")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Print the entries on stdout, and on stderr what each stands for."""
    from experiments.citations import bibliography, citations
    from strategy.plan.plan import read_plan

    found, entries = citations(read_plan(args.plan)), bibliography()
    if args.json:
        emit({"citations": [asdict(one) | {"bibtex": entries[one.key]} for one in found]})
    else:
        write_out("\n\n".join(entries[one.key] for one in found) + "\n")
    for one in found:
        say(f"{one.key}: {one.method}")
    return 0
