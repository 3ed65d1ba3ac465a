"""Argument types and flags that several verbs share."""

from __future__ import annotations

import argparse
import math

from strategy.base.errors import shortened

LARGEST_COUNT = 2**31 - 1


def positive_int(text: str) -> int:
    """A count of at least one."""
    try:
        value = int(text)
    except ValueError:  # no number, or one of thousands of digits
        value = 0
    if not 1 <= value <= LARGEST_COUNT:
        expected = f"a whole number of at least 1 and at most {LARGEST_COUNT}"
        raise argparse.ArgumentTypeError(f"got {shortened(text)}, expected {expected}")
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


def share(text: str) -> float:
    """A part of a whole: at least 0 and below 1."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"got {text!r}, expected a number of at least 0 and below 1")
    return value


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`, which every verb with figures has."""
    parser.add_argument("--json", action="store_true", help="put one JSON document on one line on stdout")
