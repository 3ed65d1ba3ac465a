"""Draw the figures of the papers."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

from experiments.arguments import add_json
from experiments.console import emit, say
from experiments.outputs import check_output_path, make_folder

QUICK = ("schedules", "scaling")
LONG = ("held_out",)
"""Those that fit models first."""
SUFFIXES = (".png", ".pdf")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan figures` takes."""
    parser.add_argument("--all", action="store_true", help="every figure, also those that take long")
    parser.add_argument("--out", type=Path, default=Path("figures"), metavar="DIR", help="folder (figures)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Draw each figure as PNG and as PDF."""
    from experiments.verbs.simulate import save

    make_folder(args.out, "--out")
    written = []
    for name in (*QUICK, *(LONG if args.all else ())):
        module = import_module(f"experiments.figures.{name}")
        picture = module.figure(module.data())
        for suffix in SUFFIXES:
            path = args.out / f"{name}{suffix}"
            check_output_path(path, "--out")
            save(picture, path)
            written.append(str(path))
        say(f"{args.out / name}.png and .pdf: {str(module.__doc__).splitlines()[0]}")
    if args.json:
        emit({"figures": written})
    return 0
