"""Bounds on the makespan under random splits, many of them extreme; now and then the recurrence in plain Python."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from strategy.layout.makespan import PipelineTimes, makespans_ns
from strategy.layout.makespan_bound import makespan_bound_ns
from strategy.layout.schedule import Schedule
from tests.campaigns.outcome import Outcome
from tests.support.stage_by_stage import makespan_by_chunks, random_pipeline

IntArray = npt.NDArray[np.int64]
SPLITS = 50
"""Per case."""
EACH = 1 / len(Schedule)
FEW = 0.1 * EACH
QUOTAS = {
    **{f"{schedule}": EACH for schedule in Schedule},
    **{f"{schedule}, m < p": FEW for schedule in Schedule if schedule is not Schedule.INTERLEAVED},
    **{f"{schedule}, m = p": FEW for schedule in Schedule},
    **{f"{schedule}, p < m <= 2 p": FEW for schedule in Schedule},
    **{f"{schedule}, m > 2 p": FEW for schedule in Schedule},
    **{"messages": 0.2, "steps": 0.4, "plain": 0.1, "of unknown pass": 0.2, "within 5 %": 0.1},
}


def run(cases: int, seed: int) -> Outcome:
    """Each case is `SPLITS` splits of a schedule."""
    outcome = Outcome(QUOTAS)
    for number in range(seed, seed + cases):
        exercised: list[str] = []
        schedule = list(Schedule)[number % len(Schedule)]
        outcome.add(f"case {number}", check(random.Random(number), schedule, exercised), exercised)
    return outcome


def check(rng: random.Random, schedule: Schedule, exercised: list[str]) -> Iterator[str]:
    """Splits whose makespan is below the bound."""
    p, laps, m = random_pipeline(rng, schedule, most_stages=12, most=100)
    if schedule is not Schedule.INTERLEAVED and p > 1 and rng.random() < 0.3:
        m = rng.randint(1, p - 1)
    times = random_splits(rng, p, laps)
    regime = "m < p" if m < p else "m = p" if m == p else "p < m <= 2 p" if m <= 2 * p else "m > 2 p"
    exercised += [f"{schedule}", f"{schedule}, {regime}"]
    if times.forward_message_ns.any():
        exercised.append("messages")
    if times.after_ns.any():
        exercised.append("steps")
    found = makespans_ns(schedule, m, times)
    totals = np.array([getattr(times, name).sum((1, 2)) for name in ("forward_ns", "backward_ns", "weight_ns")])
    unknown = np.zeros_like(totals)
    if rng.random() < 0.4:
        exercised.append("of unknown pass")
        unknown[rng.choice(([0], [1], [2], [0, 1, 2]))] = (rng.random() * totals).astype(np.int64)[0]
        unknown = np.minimum(unknown, totals)
    known = totals - unknown
    bounds = makespan_bound_ns(
        *(schedule, p, m, laps),
        forward_ns=known[0],
        backward_ns=known[1],
        weight_ns=known[2],
        step_ns=times.before_ns.sum(1) + times.after_ns.sum(1),
        more_ns=unknown.sum(0),
    )
    if (found <= 1.05 * bounds).any():
        exercised.append("within 5 %")
    for at in np.flatnonzero(bounds > found):
        yield f"{schedule} p {p} laps {laps} m {m}: {found[at]} is below {bounds[at]}: {one(times, int(at))}"
    if rng.random() < 0.2:
        exercised.append("plain")
        at = rng.randrange(SPLITS)
        plain = makespan_by_chunks(schedule, m, one(times, at))
        if plain != found[at]:
            yield f"{schedule} p {p} laps {laps} m {m}: {found[at]}, not {plain}: {one(times, at)}"


def random_splits(rng: random.Random, p: int, laps: int) -> PipelineTimes:
    """Splits of random totals: nearly equal, growing or shrinking along the stages, uneven, all on a few stages."""
    draw = np.random.default_rng(rng.randrange(2**32))
    like = rng.choice(("equal", "slope", "uneven", "few"))

    def split(*shape: int, most: float) -> IntArray:
        total = most * draw.random((SPLITS, *(1 for _ in shape)))
        shares = draw.gamma({"equal": 1000.0, "uneven": 1.0, "few": 0.1}.get(like, 20.0), size=(SPLITS, *shape))
        if like == "slope":
            growth = draw.uniform(-1.5, 1.5, (SPLITS, 1)) / max(1, rng.choice((1, p - 1)))
            slope = np.exp(growth * np.arange(shape[0]))
            shares *= slope.reshape(SPLITS, shape[0], *(1 for _ in shape[1:]))
        shares /= shares.sum(axis=tuple(range(1, shares.ndim)), keepdims=True) + 1e-300
        return np.asarray(np.rint(total * shares), np.int64)

    message = rng.choice((0, 0, 10**6))
    step = rng.choice((0, 10**5, 10**7, 10**8))
    return PipelineTimes(
        split(p, laps, most=10**6),
        split(p, laps, most=2 * 10**6),
        split(p, laps, most=rng.choice((0, 10**6, 10**7))),
        *(draw.integers(0, message + 1, (SPLITS, p * laps - 1)) for _ in range(2)),
        split(p, most=step * rng.choice((0, 1))),
        split(p, most=step),
        split(p, most=step),
        *(split(p, laps, most=10**6 * rng.choice((0, 1))) for _ in range(3)),
        *(split(p, laps, most=step * rng.choice((0, 1))) for _ in range(2)),
        split(p, most=step),
        overlaps=rng.random() < 0.5,
    )


def one(times: PipelineTimes, at: int) -> PipelineTimes:
    """One case of many."""
    arrays = (getattr(times, name)[at] for name in PipelineTimes.__slots__ if name != "overlaps")
    return PipelineTimes(*arrays, overlaps=times.overlaps)
