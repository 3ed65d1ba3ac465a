"""Intervals: how far measurements lay from predictions of runs like these that the fit had not seen.

Split conformal prediction with a scale (Lei et al., 2018, section 5.2): a job's half-width is the scale of what it is
like times one quantile, of |log(predicted / measured)| over scale, of runs whose group the fit had not seen. The scale
is the mean error of a stratum (framework and kind of model), drawn towards that of the framework and of all runs where
its groups are few; a run's own group has no say in the scale that it is judged by, and sources have the same say in the
quantile. A job of no known framework takes the quantile of runs whose whole source the fit had not seen, and one of a
kind that its framework did not run, no less. The further a job lies beyond the runs (another device, other sizes), the
wider its interval.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np

from strategy.closed_form.job import Job
from strategy.closed_form.products import Floats

COVERAGE = 0.9
_OWN = 5
"""Groups of runs with which a stratum's own mean error counts as much as that of what contains it.

With `_LARGEST` it has the least mean interval score (Gneiting and Raftery, 2007, section 6.2) of held-out runs, over
families, of 2 to 15 groups and errors of 1.5 to any number of times the mean; of these no pair's is 4 % more.
"""
_LARGEST = 4.0
"""In a scale an error counts at most as so many times the mean of all: a slow node does not decide."""
_SMALLEST = 1e-6
"""Scale of runs that are met exactly."""
_UNSEEN = 1.5
"""Half-width on a device that no run was on, over that with."""
_DOUBLING = 0.05
"""Share that the half-width grows by for each doubling beyond the runs' sizes."""
_NO_GUESSES: Mapping[str, float] = MappingProxyType({})
_SLACK = 2.0
"""Sizes up to so many times beyond the runs' are no extrapolation."""


@dataclass(frozen=True, slots=True)
class Stratum:
    """Half-width of the interval on the log scale, and the runs that it rests on: their number, GPUs and ranges."""

    half_width: float
    runs: int
    devices: tuple[str, ...]
    ranges: Mapping[str, tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Residual:
    """A measured run, whom it is from, which runs are like it, and the log ratios of its predictions.

    `near` by a fit without its group, `far` by one without its source.
    """

    job: Job
    source: str
    group: Hashable
    near: float
    far: float


def kind_of(job: Job) -> str:
    """What a model is made of, as far as errors differ by it."""
    shape = job.shape
    kinds = (
        ("images", shape.conv_flop > 0), ("hybrid", shape.mamba_layers > 0), ("adapted", job.frozen),
        ("encoder", shape.decoder_layers > 0), ("latent", shape.kv_rank > 0), ("routed", shape.moe_layers > 0),
    )  # fmt: skip
    return next((name for name, there in kinds if there), "dense")


def stratum_of(job: Job) -> str:
    """Which runs a job is like."""
    if job.framework in _VISION_LIKE or job.framework == "megatron-fork":
        family = "graph" if job.framework in _VISION_LIKE else job.framework
        return f"{family}/{kind_of(job)}/{'node' if job.gpus <= job.gpus_per_node else 'cluster'}"
    return f"{job.framework}/{kind_of(job)}"


def framework_of(stratum: str) -> str:
    """The stratum of all kinds of one framework."""
    return stratum.partition("/")[0]


_VISION_LIKE = frozenset(
    ("mxnet-ngc", "mxnet", "tensorflow", "tensorflow-xla", "tensorflow2", "pytorch-ngc", "pytorch", "paddle",
     "paddle-dali", "oneflow", "oneflow-noclip")
)  # fmt: skip


def features(job: Job) -> dict[str, float]:
    """What a stratum's range of validity is about."""
    return {"gpus": float(job.gpus), "hidden": float(job.shape.hidden), "seq": float(job.seq)}


def strata(residuals: Sequence[Residual]) -> dict[str, Stratum]:
    """Strata of runs; "" holds all runs, a framework's name all of its kinds."""
    sources = Counter(one.source for one in residuals)
    weights = np.array([1 / sources[one.source] for one in residuals])
    near, far = (np.abs([getattr(one, way) for one in residuals]) for way in ("near", "far"))
    near_mean = float(np.average(near, weights=weights)) if len(near) else 0.0
    counted = np.minimum(near, _LARGEST * near_mean)
    overall = float(np.average(counted, weights=weights)) if len(near) else 0.0

    members: dict[str, list[Residual]] = {}
    errors: dict[str, dict[Hashable, list[float]]] = {}
    for one, error in zip(residuals, counted.tolist(), strict=True):
        for name in _names(one.job):
            members.setdefault(name, []).append(one)
            errors.setdefault(name, {}).setdefault(one.group, []).append(error)
    judged = [(_names(one.job), one.group) for one in residuals]
    scales = {key: drawn_scale(*key, errors, overall) for key in set(judged)}
    quantile = weighted_quantile(near / np.array([scales[key] for key in judged]), weights)
    found = {"": _stratum(weighted_quantile(far, weights), residuals)}
    for name, mine in sorted(members.items()):
        chain = tuple(dict.fromkeys((framework_of(name), name)))
        found[name] = _stratum(quantile * drawn_scale(chain, None, errors, overall), mine)
    return found


def _names(job: Job) -> tuple[str, str]:
    """The strata that a job is in, the wider one first."""
    name = stratum_of(job)
    return framework_of(name), name


def drawn_scale(
    names: Sequence[str], without: Hashable, errors: Mapping[str, Mapping[Hashable, Sequence[float]]], overall: float
) -> float:
    """Mean error of the last of some nested strata, each drawn towards the one before; `without` one group's runs."""
    scale = overall
    for name in names:
        others = [mine for group, mine in errors[name].items() if group != without]
        if others:
            own = sum(map(sum, others)) / sum(map(len, others))
            scale = (len(others) * own + _OWN * scale) / (len(others) + _OWN)
    return max(scale, _SMALLEST)


def half_width(job: Job, known: Mapping[str, Stratum], guesses: Mapping[str, float] = _NO_GUESSES) -> float:
    """Half-width of a job's interval on the log scale; what was guessed of it adds as independent errors do."""
    costs = [guesses.get(name, max(guesses.values(), default=0.0)) for name in job.guessed]
    return math.hypot(_half_width(job, known), *costs)


def _half_width(job: Job, known: Mapping[str, Stratum]) -> float:
    name = stratum_of(job)
    found = known.get(name) or known.get(framework_of(name))
    half = found.half_width if found else known[""].half_width
    why = extrapolated(job, known)
    if "kind of model" in why:
        half = max(half, known[""].half_width)
    if "device" in why:
        half *= _UNSEEN
    return half * (1 + _DOUBLING * _doublings(job, found or known[""]))


def extrapolated(job: Job, known: Mapping[str, Stratum]) -> tuple[str, ...]:
    """Why no run was like a job: its device, framework or kind of model, sizes twice beyond theirs, what is guessed."""
    name = stratum_of(job)
    reasons = []
    if job.device.name not in known[""].devices:
        reasons.append("device")
    if framework_of(name) not in known:
        reasons.append("framework")
    elif name not in known:
        reasons.append("kind of model")
    ranges = (known.get(name) or known.get(framework_of(name)) or known[""]).ranges
    beyond = [size for size, value in features(job).items() if _beyond(value, ranges[size]) > _SLACK]
    return (*reasons, *beyond, *(f"{name} guessed" for name in job.guessed))


def _beyond(value: float, interval: tuple[float, float]) -> float:
    """How many times a size lies outside of an interval; 1 inside."""
    low, high = (max(bound, 1.0) for bound in interval)
    return max(low / max(value, 1.0), max(value, 1.0) / high, 1.0)


def _doublings(job: Job, stratum: Stratum) -> float:
    return sum(
        math.log2(max(_beyond(value, stratum.ranges[name]) / _SLACK, 1.0)) for name, value in features(job).items()
    )


def _stratum(half: float, residuals: Sequence[Residual]) -> Stratum:
    jobs = [one.job for one in residuals]
    devices = tuple(sorted({job.device.name for job in jobs}))
    return Stratum(half, len(jobs), devices, _ranges(jobs))


def weighted_quantile(values: Floats, weights: Floats) -> float:
    """The conformal quantile of weighted values: with the correction for a sample of this size, at most the largest."""
    if not len(values):
        return 0.0
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) / weights.sum()
    wanted = min(COVERAGE * (1 + 1 / len(values)), 1.0)
    place = min(int(np.searchsorted(reached, wanted - 1e-9)), len(values) - 1)
    return float(values[order][place])


def _ranges(jobs: Sequence[Job]) -> dict[str, tuple[float, float]]:
    rows = [features(job) for job in jobs]
    return {name: (min(row[name] for row in rows), max(row[name] for row in rows)) for name in rows[0]} if rows else {}
