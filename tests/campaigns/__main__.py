"""The command: runs a campaign, prints one JSON line last, and exits 1 on a failure or an unmet quota."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
import time
from pathlib import Path

FILES = sorted(path for path in Path(__file__).parent.glob("*.py") if "\ndef run(" in path.read_text())
NAMES = tuple(path.stem.replace("_", "-") for path in FILES)


def main(arguments: list[str] | None = None) -> int:
    """Run the campaign that the arguments name."""
    parser = argparse.ArgumentParser(prog="python -m tests.campaigns", description=__doc__)
    parser.add_argument("name", choices=NAMES)
    parser.add_argument("--cases", type=int, default=100, metavar="N")
    parser.add_argument("--seed", type=int, default=0, metavar="S")
    parser.add_argument("--base", metavar="COMMIT", help="mutants: what the tests of a commit catch must be caught")
    parser.add_argument("--quick", action="store_true", help="mutants: ask the tests of `make quick` alone")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="mutants: where copies and what was recorded stay")
    parser.add_argument("--seconds", type=float, metavar="S", help="soak: how long it trains (default 300)")
    parser.add_argument("--json", action="store_true", help="nothing but the JSON line on stdout")
    args = parser.parse_args(arguments)
    for flag, value in {"base": args.base, "quick": args.quick or None, "keep": args.keep}.items():
        if value is not None and args.name != "mutants":
            parser.error(f"--{flag} is of mutants alone (got {args.name})")
    if args.seconds is not None and args.name != "soak":
        parser.error(f"--seconds is of soak alone (got {args.name})")
    given = {"base": args.base, "quick": args.quick or None, "keep": args.keep, "seconds": args.seconds}
    options = {name: value for name, value in given.items() if value is not None}
    start = time.monotonic()
    outcome = importlib.import_module(f"tests.campaigns.{args.name.replace('-', '_')}").run(
        args.cases, args.seed, **options
    )
    unmet = outcome.unmet()
    said = sys.stderr if args.json else sys.stdout
    for line in (*outcome.failures, *(f"quota unmet: {line}" for line in unmet)):
        print(line, file=said)
    summary = {
        "cases": outcome.cases,
        "failures": len(outcome.failures),
        "coverage": dict(sorted(outcome.coverage.items())),
        "seconds": round(time.monotonic() - start, 1),
    }
    print(json.dumps(summary))
    return int(bool(outcome.failures or unmet))


if __name__ == "__main__":
    sys.exit(main())
