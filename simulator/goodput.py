"""Goodput: what failures and checkpoints leave of a cluster's time.

Training saves every `interval_s` of work; a save stops it for `stall_s`. Failures come at random, one per `mtbf_s` on
average, whatever has gone before; each costs a restart and the work since the last save. A segment, from the end of one
save to the end of the next, takes in expectation (Daly 2006, equation 13: failures may strike restarts too)

    M e^(R / M) (e^((T + C) / M) - 1)        M mtbf, R restart, T interval, C stall

so the goodput is T over that, and the best interval has (1 - T / M) e^((T + C) / M) = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from strategy.base.errors import InputError


@dataclass(frozen=True, slots=True)
class Failures:
    """Of a whole job. `stall_s`: what a save takes from training; `restart_s`: from a failure to training again."""

    mtbf_s: float
    restart_s: float
    stall_s: float

    def __post_init__(self) -> None:
        for name, least in (("mtbf_s", 0.0), ("restart_s", -1.0), ("stall_s", -1.0)):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > least and value >= 0):
                wanted = "seconds above zero" if least == 0 else "seconds, zero or more"
                raise InputError("not a duration", where=f"failures: {name}", got=value, expected=wanted)


def of_cluster(device_mtbf_s: float, devices: int) -> float:
    """Mean seconds between failures of any of many devices that fail independently."""
    return device_mtbf_s / devices


def goodput(failures: Failures, interval_s: float) -> float:
    """Share of the time that becomes progress which is kept, in expectation.

    Raises:
        InputError: the interval is no time above zero.
    """
    if not (math.isfinite(interval_s) and interval_s > 0):
        raise InputError("not an interval", where="checkpoint interval", got=interval_s, expected="seconds above zero")
    return interval_s / _segment_s(failures, interval_s)


def _segment_s(failures: Failures, interval_s: float) -> float:
    m = failures.mtbf_s
    exponent = (interval_s + failures.stall_s) / m
    if exponent + failures.restart_s / m > 700:  # beyond floats: nothing is ever finished
        return math.inf
    return m * math.exp(failures.restart_s / m) * math.expm1(exponent)


def best_interval_s(failures: Failures) -> float:
    """The interval of the greatest goodput; where saving costs nothing, save at once (0).

    With T = M (1 + w), the condition above is w e^w = -e^(-1 - C / M): the upper branch of Lambert's function.
    """
    from scipy.special import lambertw

    w = lambertw(-math.exp(-1 - failures.stall_s / failures.mtbf_s))
    return float(failures.mtbf_s * (1 + w.real))


def simulate_goodput(failures: Failures, interval_s: float, *, segments: int, seed: int) -> float:
    """The same share in one random history of so many saves."""
    draws = np.random.default_rng(seed)
    wall_s = 0.0
    for _ in range(segments):
        while True:
            until_failure_s = draws.exponential(failures.mtbf_s)
            if until_failure_s >= interval_s + failures.stall_s:
                wall_s += interval_s + failures.stall_s
                break
            wall_s += until_failure_s + _restart_s(failures, draws)
    return segments * interval_s / wall_s


def _restart_s(failures: Failures, draws: np.random.Generator) -> float:
    """From a failure until training runs again; a failure on the way begins the restart anew."""
    spent_s = 0.0
    while (until_failure_s := draws.exponential(failures.mtbf_s)) < failures.restart_s:
        spent_s += until_failure_s
    return spent_s + failures.restart_s
