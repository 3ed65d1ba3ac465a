"""Argument types and flags that several verbs share."""

from __future__ import annotations

import argparse
import math


def positive_int(text: str) -> int:
    """A count of at least one."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a whole number of at least 1")
    return value


def seconds(text: str) -> float:
    """A time limit in seconds: finite and above zero."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number of seconds above zero")
    return value


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`, which every verb with figures has."""
    parser.add_argument("--json", action="store_true", help="put one JSON document on one line on stdout")
