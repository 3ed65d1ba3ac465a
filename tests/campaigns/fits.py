"""Calibrations from corrupted measurements: known constants come back within ten per cent.

One row in ten is wrong by a factor of up to a thousand, upwards or downwards: a preempted process, a clock that jumped,
an act that did nothing. Samples of one size are corrupted in the same way before they become a row.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Sequence

from strategy.base.errors import InputError
from strategy.cost.calibrate import calibrate
from strategy.cost.data_sheet import Coefficients
from strategy.cost.measurement import LEAST_SAMPLES, Features, Measurement, summarise
from strategy.hardware.cluster import Cluster
from tests.campaigns.outcome import Outcome
from tests.support.small_plans import cluster

CORRUPTED = 0.1
TOLERANCE = 0.1
NOISE = 0.03
KINDS = ("matmul", "gelu", "all_reduce@intra")
SIZES = (10**3, 10**4, 10**5, 10**6)
QUOTAS = {"too slow": 0.5, "too fast": 0.5, "samples": 0.3, "rows": 0.3, "too few": 0.05, **dict.fromkeys(KINDS, 0.2)}


def run(cases: int, seed: int) -> Outcome:
    """Fit `cases` kinds of act."""
    outcome = Outcome(QUOTAS)
    where = cluster(8)
    for number in range(seed, seed + cases):
        exercised: list[str] = []
        outcome.add(
            f"fit {number}", check(random.Random(number), KINDS[number % len(KINDS)], where, exercised), exercised
        )
    return outcome


def check(rng: random.Random, kind: str, where: Cluster, exercised: list[str]) -> Iterator[str]:
    """What a fit predicts wrongly of the sizes that it was made of."""
    name, _, level = kind.partition("@")
    flop_s = 10 ** rng.uniform(-12, -10) if name == "matmul" else 0.0
    truth = Coefficients(10 ** rng.uniform(-6.5, -4.5), flop_s, 10 ** rng.uniform(-10, -8.5))
    sizes = [
        Features(name, nbytes * factor, nbytes, hops if level else 0, level)
        for nbytes, factor, hops in itertools.product(SIZES, (1, 10, 100), (1, 3, 7))
    ]
    by_sample = rng.random() < 0.5
    exercised += [kind, "samples" if by_sample else "rows"]
    rows = (_sampled if by_sample else _measured)(rng, sizes, truth, exercised)
    model = calibrate(rows, where).cost_model(where)
    for features in dict.fromkeys(sizes):
        error = model.seconds(features) / seconds_of(features, truth) - 1.0
        if abs(error) > TOLERANCE:
            yield f"{features} is predicted {error:+.0%} off"
    if rng.random() < 0.2:
        exercised.append("too few")
        few = rng.randrange(LEAST_SAMPLES)
        try:
            calibrate([*rows, Measurement(sizes[0], 1e-6, few, "few")], where)
            yield f"a row of {few} samples was taken"
        except InputError as error:
            if "few" not in str(error) or f"{few}" not in str(error):
                yield f"a row of {few} samples is refused without its source or count: {error}"


def seconds_of(features: Features, truth: Coefficients) -> float:
    """What an act takes."""
    fixed_s = truth.fixed_s * (features.hops or 1)
    return fixed_s + truth.s_per_flop * features.flop + truth.s_per_byte * features.nbytes


def _factor(rng: random.Random, exercised: list[str]) -> float:
    """By how much something is wrong."""
    exponent = rng.choice((-1, 1)) * rng.uniform(0.3, 3.0)
    exercised.append("too slow" if exponent > 0 else "too fast")
    return float(10**exponent)


def _noisy(rng: random.Random, features: Features, truth: Coefficients) -> float:
    return seconds_of(features, truth) * rng.lognormvariate(0.0, NOISE)


def _measured(
    rng: random.Random, sizes: Sequence[Features], truth: Coefficients, exercised: list[str]
) -> list[Measurement]:
    """One row per size; one in ten is wrong."""
    wrong = set(rng.sample(range(len(sizes)), round(CORRUPTED * len(sizes))))
    return [
        Measurement(
            one, _noisy(rng, one, truth) * (_factor(rng, exercised) if i in wrong else 1.0), LEAST_SAMPLES, "row"
        )
        for i, one in enumerate(sizes)
    ]


def _sampled(
    rng: random.Random, sizes: Sequence[Features], truth: Coefficients, exercised: list[str]
) -> list[Measurement]:
    """Rows of samples, of which up to two in seven, and one in ten of all, are wrong."""
    rows = []
    for one in sizes:
        times = [_noisy(rng, one, truth) for _ in range(7)]
        for at in rng.sample(range(7), rng.choice((0, 0, 1, 1, 1, 1))):
            times[at] *= _factor(rng, exercised)
        rows.append(summarise(one, times, "samples"))
    return rows
