"""All that a first device must show: python -m executor.gpu_acceptance --json OUT.

Parts run one after the other, each in a process of its own and in less than eight minutes; OUT is written after every
one. Run again, it goes on with those that have not passed. Exit 0: all passed or were left out with a reason; 1: a part
failed; 5: there is no device.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from executor.gpu_acceptance.bench import open_bench, require_device, run_command
from executor.gpu_acceptance.collectives import RANK_FLAG, run_rank
from executor.gpu_acceptance.outcome import PartOutcome, PartStatus, read_outcomes, write_outcomes
from executor.gpu_acceptance.parts import LIMIT_S, PARTS, outcome_of, run_parts
from executor.supervision.environment import find_mpiexec, find_rank
from strategy.base.errors import SbplanError


def main(argv: Sequence[str]) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m executor.gpu_acceptance", description=__doc__)
    parser.add_argument("--json", type=Path, metavar="OUT", help="outcomes, read first and written after every part")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="these alone")
    parser.add_argument("--here", action="store_true", help="in this process: what every part is run by")
    parser.add_argument(RANK_FLAG, type=int, metavar="NCCL", help="one rank of `collectives`, or two that are started")
    args = parser.parse_args(argv)
    try:
        if args.collectives_rank is not None:
            return _ranks(args.collectives_rank)
        if args.json is None:
            parser.error("--json OUT is needed")
        require_device()
        run = _here if args.here else _apart
        outcomes = run_parts(args.json, args.parts, run, lambda line: print(line, file=sys.stderr, flush=True))
    except SbplanError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    return int(any(outcomes[name].status is PartStatus.FAILED for name in args.parts))


def _here(name: str) -> PartOutcome:
    return outcome_of(name, open_bench)


def _apart(name: str) -> PartOutcome:
    """A part in a process of its own: what kills that is its outcome."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "part.json"
        write_outcomes(out, {})
        code, written = run_command(
            ("-m", "executor.gpu_acceptance", "--here", "--json", str(out), "--parts", name), LIMIT_S
        )
        found = read_outcomes(out).get(name)
    if found is not None:
        return found
    said = written.strip().splitlines()[-1:]
    return PartOutcome(PartStatus.FAILED, LIMIT_S if code == 124 else 0.0, f"ended with code {code}: {said}", "{}")


def _ranks(nccl: int) -> int:
    """Two ranks under mpiexec; this rank, where it is one."""
    if find_rank() is not None:
        return run_rank(require_device(), nccl)
    command = [str(find_mpiexec()), "-n", "2", sys.executable, "-m", "executor.gpu_acceptance", RANK_FLAG, str(nccl)]
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
