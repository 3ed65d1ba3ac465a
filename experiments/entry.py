#!/usr/bin/env python3
"""The console script's first step: are the four packages found ours?

`strategy`, `simulator`, `executor` and `experiments` are generic names; a folder of the same name that comes earlier
on the module path would be imported in place of ours. This file is installed as the script `sbplan`, uses the standard
library alone, and looks for the packages without importing them.
"""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

PACKAGES = ("strategy", "simulator", "executor", "experiments")
EXIT_ENVIRONMENT_LACKS = 5  # strategy.base.errors.EnvironmentLacks, which may not be imported before the check


def package_parent(name: str) -> Path | None:
    """The folder in which the package or module `name` would be found, or None."""
    spec = find_spec(name)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve().parent
    return Path(spec.origin).resolve().parent if spec.origin else None


def shadowed_packages() -> list[str]:
    """One line for each package that is missing or that a stranger's shadows; empty when all share one parent."""
    parents = {name: package_parent(name) for name in PACKAGES}
    if len(set(parents.values())) == 1 and None not in parents.values():
        return []
    ours = next(
        (
            parent
            for parent in parents.values()
            if parent is not None and all((parent / name / "py.typed").is_file() for name in PACKAGES)
        ),
        None,
    )
    return [
        f"{name!r} was not found" if parent is None else f"{name!r} in {parent} shadows ours"
        for name, parent in parents.items()
        if parent is None or parent != ours
    ]


def main() -> int:
    """Run the command `sbplan`; returns its exit code."""
    problems = shadowed_packages()
    if problems:
        print(
            f"sbplan: {'; '.join(problems)} (expected {', '.join(PACKAGES)} in one folder); "
            "remove the other folder from PYTHONPATH, or start from another folder",
            file=sys.stderr,
        )
        return EXIT_ENVIRONMENT_LACKS
    from experiments.cli import main as command
    from experiments.command.gc_threshold import raise_gc_threshold

    raise_gc_threshold()
    return command(sys.argv[1:])


def leave(code: int) -> NoReturn:
    """End the process once all that was registered for that is done, without freeing every object one by one.

    After a search that takes seconds. Ranks of MPI end the usual way: its library wants a word of its own then.
    """
    if "mpi4py.MPI" in sys.modules:
        sys.exit(code)
    atexit._run_exitfuncs()
    with suppress(OSError, ValueError):  # what is closed or has no reader was told of before
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
