"""Argument types and flags that several verbs share."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from strategy.base.errors import shortened

LARGEST_COUNT = 2**31 - 1
MOST_TOKENS = 1e18
TRAINERS = ("megatron", "torchtitan", "deepspeed")
"""Whose configurations plans are searched for and written as."""
MOST_OTHERS = 8
"""Plans next to a plan that are searched for."""
DEVICE_MTBF, RESTART, STORAGE = "50000 h", "5 min", "2 GB/s"
"""What is assumed of failures and checkpoints; `experiments.studies.job_failures` says on what grounds."""


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
    value = _number(text)
    if not (math.isfinite(value) and value > 0):
        raise argparse.ArgumentTypeError(f"got {shortened(text)}, expected a number of seconds above zero")
    return value


def share(text: str) -> float:
    """A part of a whole: at least 0 and below 1."""
    value = _number(text)
    if not 0 <= value < 1:
        raise argparse.ArgumentTypeError(f"got {shortened(text)}, expected a number of at least 0 and below 1")
    return value


def fit_probability(text: str) -> float:
    """A probability that errors of memory can tell."""
    from strategy.closed_form.memory_error import LEAST, MOST

    value = _number(text)
    if not LEAST <= value <= MOST:
        expected = f"a probability of at least {LEAST} and at most {MOST}, such as 0.95"
        raise argparse.ArgumentTypeError(f"got {shortened(text)}, expected {expected}")
    return value


def tokens(text: str) -> int:
    """A number of tokens, whole and at least one: `15T`, `300B`, `1e12`."""
    scale = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}.get(text[-1:].upper())
    value = _number(text) if scale is None else scale * _number(text[:-1])
    if not 1 <= value <= MOST_TOKENS:
        expected = f"a number of tokens of at least 1 and at most {MOST_TOKENS:.0e}, such as 15T, 300B or 1e12"
        raise argparse.ArgumentTypeError(f"got {shortened(text)}, expected {expected}")
    return round(value)


def gpu_range(text: str) -> tuple[int, int]:
    """The least and the most of a number of GPUs: `64`, or `64..1024`."""
    first, dots, last = text.partition("..")
    try:
        least, most = positive_int(first), positive_int(last if dots else first)
    except argparse.ArgumentTypeError:
        least, most = 1, 0
    if least > most:
        expected = "N or N..M, whole numbers from the least to the most, such as 64 or 64..1024"
        raise argparse.ArgumentTypeError(f"got {shortened(text)}, expected {expected}")
    return least, most


def add_failures(parser: argparse.ArgumentParser) -> None:
    """What the days of --tokens are counted with, besides the step."""
    parser.add_argument(
        "--mtbf",
        default=DEVICE_MTBF,
        metavar="TIME",
        help="for --tokens: mean time between failures of one GPU, or never (default: %(default)s)",
    )
    parser.add_argument(
        "--restart", default=RESTART, metavar="TIME", help="from a failure to training again (default: %(default)s)"
    )
    parser.add_argument(
        "--storage",
        default=STORAGE,
        metavar="RATE",
        help="what a node writes of a checkpoint, while training stands still (default: %(default)s)",
    )
    parser.add_argument("--save", metavar="TIME", help="how long a checkpoint stops training, instead of --storage")


def add_calibration(parser: argparse.ArgumentParser) -> None:
    """`--calibration` of verbs that ask how sure something is."""
    parser.add_argument(
        "--calibration",
        type=Path,
        metavar="F",
        help="the calibration that the plan was priced by, if it was: its intervals say how sure its time is",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`, which every verb with figures has."""
    parser.add_argument("--json", action="store_true", help="put one JSON document on one line on stdout")


def _number(text: str) -> float:
    """A floating-point figure; NaN, which is in no range, where there is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan
