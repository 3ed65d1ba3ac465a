"""What the command says: one JSON document per line on stdout for programs, everything else on stderr for people."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import TextIO

from strategy.base.errors import RunError, printable


def emit(document: Mapping[str, object]) -> None:
    """Print one JSON document on one line of stdout.

    Raises:
        ValueError: the document holds a NaN or an infinity, which JSON does not know.
        BrokenPipeError, RunError: as `write_out`.
    """
    write_out(json.dumps(document, allow_nan=False) + "\n")


def write_out(text: str = "") -> None:
    """Write to stdout, and all that waits to be written there.

    Raises:
        BrokenPipeError: its reader has gone.
        RunError: it cannot be written to: closed, or a file on a full disk.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        silence(sys.stdout)
        raise RunError(f"stdout cannot be written to: {error.strerror}") from error


def say(text: str) -> None:
    """Print a line for people on stderr, made printable; where nothing can be written, the exit code must do."""
    try:
        print(printable(text), file=sys.stderr, flush=True)
    except BrokenPipeError:
        raise
    except OSError:
        silence(sys.stderr)


def silence(stream: TextIO) -> None:
    """Let what is written to a stream vanish, what waits in its buffer too: the interpreter writes that as it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def open_standard_streams() -> None:
    """Put something in the place of standard streams that are closed, before a file gets their numbers.

    Nobody hears what is said on a closed stderr; a closed stdout refuses what is written to it.
    """
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, mode)  # gets the lowest number that is free: this one
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 (open for good)
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 (open for good)
