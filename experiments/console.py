"""What the command says: one JSON document per line on stdout for programs, everything else on stderr for people."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping

from strategy.base.errors import EnvironmentLacks, printable


def emit(document: Mapping[str, object]) -> None:
    """Print one JSON document on one line of stdout.

    Raises:
        ValueError: the document holds a NaN or an infinity, which JSON does not know.
    """
    sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    sys.stdout.flush()


def say(text: str) -> None:
    """Print a line for people on stderr; names in it may be anybody's."""
    print(printable(text), file=sys.stderr, flush=True)


def not_there_yet(what: str) -> EnvironmentLacks:
    """The plain answer to a part of the contract that this version does not have."""
    return EnvironmentLacks(f"{what} is not there yet in this version; see 'sbplan --help' for what is")
