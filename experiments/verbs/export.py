"""Write a plan as the configuration of a trainer, or as a program of DTensor or JAX with its layouts.

What a trainer's file cannot say is listed, and refused unless --lossy.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.command.arguments import TRAINERS, add_json
from experiments.command.console import emit, say
from experiments.command.outputs import check_output_path
from strategy.base.errors import InputError

PROGRAMS = ("dtensor", "jax")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `sbplan export` takes."""
    parser.add_argument("plan", metavar="PLAN", type=Path, help="a plan that 'sbplan search' wrote")
    parser.add_argument("--to", required=True, choices=(*TRAINERS, *PROGRAMS), help="whose configuration to write")
    parser.add_argument("--lossy", action="store_true", help="write it though it does not say all of the plan")
    parser.add_argument(
        "--out",
        type=Path,
        metavar="F",
        help="write it here (default: the plan's name with .sh, .toml, .json or .py); DeepSpeed's JSON has the "
        "arguments of its script beside it, as F__args.sh",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Read the plan, write the files, say what they leave out."""
    if args.to in PROGRAMS:
        return write_program(args)
    from strategy.base.files import write_atomic
    from strategy.exports.trainer_file import trainer_file
    from strategy.plan.plan import read_plan
    from strategy.trainers.trained import TrainerName
    from strategy.trainers.write import ENDINGS

    trainer = TrainerName(args.to)
    out = args.out or args.plan.with_suffix(ENDINGS[trainer])
    if out == args.plan:
        out = out.with_stem(f"{out.stem}-{trainer}")
    check_output_path(out, "--out")
    written = trainer_file(read_plan(args.plan), trainer, out.name)
    lines = "".join(f"\n  - {line}" for line in written.cannot_say)
    if written.cannot_say and not args.lossy:
        raise InputError(
            f"{trainer} cannot say all of this plan:{lines}\n"
            f"search for one that it can be told, with --for {trainer}, or write this one without that, with --lossy",
            where=str(args.plan),
        )
    for name, text in written.files.items():
        write_atomic(out.with_name(name), text)
    paths = [str(out.with_name(name)) for name in written.files]
    if args.json:
        emit({"to": args.to, "files": paths, "cannot_say": list(written.cannot_say)})
    left = f", without{lines}" if written.cannot_say else "; read back, it is the same plan"
    say(f"{' and '.join(paths)}: written{left}")
    return 0


def write_program(args: argparse.Namespace) -> int:
    """Write a program of DTensor or JAX, which says all of a plan's layouts or is refused."""
    from strategy.base.files import write_atomic
    from strategy.exports.step_layouts import written_program
    from strategy.plan.plan import read_plan

    out = args.out or args.plan.with_suffix(".py")
    check_output_path(out, "--out")
    write_atomic(out, written_program(read_plan(args.plan), args.to))
    if args.json:
        emit({"to": args.to, "files": [str(out)], "cannot_say": []})
    say(f"{out}: written; it says how every value of a step lies")
    return 0
