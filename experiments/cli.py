"""The command `sbplan`: finds the verb, runs it, and turns every ending into one message and one exit code.

Only the module of the chosen verb is imported, so that `sbplan --help` answers at once. A verb is a module of
`experiments.verbs` with `add_arguments(parser)` and `run(args) -> int`.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from experiments.command.console import open_standard_streams, say, silence, write_out
from experiments.command.exit_codes import EXIT_INTERRUPTED, EXIT_READER_GONE, EXIT_TERMINATED
from experiments.command.stopping import unwinding
from experiments.version import VERSION
from strategy.base.errors import EnvironmentLacks, InputError, InternalError, RunError, SbplanError, did_you_mean
from strategy.base.interruption import raised_again

VERBS = {
    "demo": "the main job, end to end, on this machine",
    "search": "find the best plan for a model on a cluster",
    "price": "price a trainer's configuration, and what the search would do instead",
    "export": "write a plan as a trainer's configuration",
    "verify": "check a plan: legality, memory, admission, certificate",
    "simulate": "predict a plan's timeline, step time and memory",
    "explain": "why a plan takes as long as it does, and why not another",
    "report": "one page for the browser: a plan or a run, and why it is so",
    "train": "train by a plan, under mpiexec or with --launch",
    "profile": "measure ops and collectives on this machine, under mpiexec",
    "refine": "fit the time model to measured runs",
    "predict": "predict rows of published measurements",
    "validate": "recompute the shipped published numbers",
    "solve": "solve one optimisation problem in the contest's format",
    "bench": "measure ours against others: search, solver, exchange of gradients; how fast the simulator is",
    "run": "run a suite of experiments that a TOML file lists; goes on where it was stopped",
    "runs": "list, show, compare, export and delete the runs in a store",
    "figures": "draw the figures of the papers, from the runs in a store",
    "cite": "BibTeX of the methods that a plan uses",
    "doctor": "check this machine: what is there, what is missing",
    "completion": "what bash, zsh or fish needs to complete verbs and flags",
}


ABORT_DELAY_S = 0.2  # mpiexec drops what a rank wrote just before an abort; by then it has passed it on


class Parser(argparse.ArgumentParser):
    """A parser whose complaint is an `InputError`, raised rather than printed."""

    def error(self, message: str) -> NoReturn:
        """Raise what argparse would have printed."""
        raise InputError(message, hint=f"see '{self.prog} --help'")


def usage() -> str:
    """The page that `sbplan --help` prints."""
    verbs = "\n".join(f"  {verb:<11}{text}" for verb, text in VERBS.items())
    return (
        "usage: sbplan VERB ...\n\n"
        "Finds how to train a model on a cluster, proves how good the answer is, shows what will happen,\n"
        "makes it happen, and learns from the difference.\n\n"
        f"verbs:\n{verbs}\n\n"
        "'sbplan VERB --help' says what a verb takes; 'sbplan --version' prints the version.\n"
        "exit codes: 0 done; 2 bad input; 3 proved infeasible; 4 limit reached; 5 environment lacks something;\n"
        "6 the run failed; 70 a bug; 130 interrupted; 143 terminated\n"
    )


def parse(verb: str, argv: Sequence[str]) -> tuple[Callable[[argparse.Namespace], int], argparse.Namespace]:
    """The verb's `run` and its parsed arguments.

    Raises:
        InputError: no such verb, no such flag, or a bad value.
    """
    if verb not in VERBS:
        raise InputError("no such verb", got=verb, hint=did_you_mean(verb, VERBS))
    module = import_module(f"experiments.verbs.{verb}")
    # No abbreviations: a script that says --glob today must not change its meaning when a flag is added.
    parser = Parser(prog=f"sbplan {verb}", description=module.__doc__, allow_abbrev=False)
    module.add_arguments(parser)
    # argparse would first complain about what is missing, which is often only misspelt.
    known = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", parser.format_help()))
    for word in argv:
        flag = word.partition("=")[0]
        if flag == "--":
            break
        if flag.startswith("--") and flag not in known:
            raise InputError("no such flag", where=parser.prog, got=flag, hint=did_you_mean(flag, known))
    return module.run, parser.parse_args(argv)


def dispatch(argv: Sequence[str]) -> int:
    """Run the verb that `argv` names; returns its exit code."""
    if not argv or argv[0] in {"-h", "--help", "help"}:
        write_out(usage())
        return 0 if argv else InputError.exit_code
    if argv[0] == "--version":
        write_out(f"sbplan {VERSION}\n")
        return 0
    run, args = parse(argv[0], argv[1:])
    check_folder()
    return run(args)


def check_folder() -> None:
    """Refuse to work in a folder that is gone: relative paths lead nowhere, and libraries fail as they load.

    Raises:
        EnvironmentLacks: it is.
    """
    try:
        Path.cwd()
    except OSError as error:
        raise EnvironmentLacks(
            f"the working folder cannot be used: {error.strerror}; change to a folder that is there"
        ) from None


def guarded(job: Callable[[], int], argv: Sequence[str]) -> int:
    """Run `job`; whatever way it ends, one message on stderr at most, and the exit code that says how."""

    def whole() -> int:
        try:
            return job()
        finally:
            write_out()  # what waits in the buffer, also after --help, which ends by SystemExit

    try:
        code = whole()
    except InternalError as error:
        code = _report_bug(error, argv)
    except SbplanError as error:
        code = _report(str(error), error.exit_code)
    except KeyboardInterrupt:
        code = _report("interrupted", EXIT_INTERRUPTED)
    except SystemExit as stop:
        if stop.code != EXIT_TERMINATED:  # argparse, after --help
            raise
        code = _report("terminated", EXIT_TERMINATED)
    except BrokenPipeError:
        # The reader of stdout has gone; nothing more can be said there, not even by the interpreter as it ends.
        silence(sys.stdout)
        code = EXIT_READER_GONE
    except MemoryError:
        code = _report("out of memory", RunError.exit_code)
    except Exception as error:  # noqa: BLE001 - the one place where a bug ends
        code = _report_bug(error, argv)
    else:
        return code
    _stop_other_ranks(code)
    return code


def main(argv: Sequence[str]) -> int:
    """The command: `argv` without the program's name; returns the exit code."""
    open_standard_streams()
    with unwinding(), raised_again():
        return guarded(lambda: dispatch(argv), argv)


def _report(message: str, code: int) -> int:
    say(f"sbplan: {message}")
    return code


def _report_bug(error: Exception, argv: Sequence[str]) -> int:
    from experiments.command.crash import write_crash

    summary = f"{type(error).__name__}: {error}"
    try:
        where = f"attach {write_crash(error, argv)}"
    except SbplanError as unwritten:
        where = f"no crash file ({unwritten})"
    return _report(f"{summary}\nthis is a bug, please report it; {where}", InternalError.exit_code)


def _stop_other_ranks(code: int) -> None:
    """A rank that leaves alone would let the others wait for it for ever: end the whole MPI job."""
    mpi = sys.modules.get("mpi4py.MPI")
    if mpi is None or not mpi.Is_initialized() or mpi.Is_finalized() or mpi.COMM_WORLD.Get_size() == 1:
        return
    sys.stdout.flush()
    sys.stderr.flush()
    time.sleep(ABORT_DELAY_S)
    mpi.COMM_WORLD.Abort(code)
    os._exit(code)  # MPICH's Abort has been seen to return
