"""Intervals: how far measurements lay from predictions of runs like these that the fit had not seen.

Split conformal prediction (Vovk et al., 2005; Lei et al., 2018) in groups: jobs of one stratum (framework, kind of
model, one node or many) share the 90 % quantile of the held-out |log(predicted / measured)|. A stratum with few runs is
drawn towards the quantile of all runs, and a stratum without any takes that of all runs, widened; so is the
interval on a GPU that no run was on.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from strategy.closed_form.gemm import Floats
from strategy.closed_form.job import Job

COVERAGE = 0.9
_OWN = 12
"""Runs with which a stratum's own quantile counts as much as that of all runs."""
_UNSEEN = 1.5
"""Half-width without runs of such a stratum, or on such a GPU, over that with."""


@dataclass(frozen=True, slots=True)
class Stratum:
    """Half-width of the interval on the log scale, and the runs that it rests on: their number, GPUs and ranges."""

    half_width: float
    runs: int
    devices: tuple[str, ...]
    ranges: Mapping[str, tuple[float, float]]


def stratum_of(job: Job) -> str:
    """Which runs a job is like."""
    shape = job.shape
    kind = "images" if shape.conv_flop else "routed" if shape.moe_layers else "dense"
    framework = "graph" if job.framework in _VISION_LIKE else job.framework
    where = "node" if job.gpus <= job.gpus_per_node else "cluster"
    return f"{framework}/{kind}/{where}" if framework in ("megatron-fork", "graph") else f"{framework}/{kind}"


_VISION_LIKE = frozenset(
    ("mxnet-ngc", "mxnet", "tensorflow", "tensorflow-xla", "tensorflow2", "pytorch-ngc", "pytorch", "paddle",
     "paddle-dali", "oneflow", "oneflow-noclip")
)  # fmt: skip


def features(job: Job) -> dict[str, float]:
    """What a stratum's range of validity is about."""
    return {"gpus": float(job.gpus), "hidden": float(job.shape.hidden), "seq": float(job.seq)}


def strata(names: Iterable[str], log_ratios: Floats, jobs: Iterable[Job]) -> dict[str, Stratum]:
    """Strata from held-out log ratios of predicted to measured, one per run; "" holds all runs."""
    named, held = list(names), list(jobs)
    everything = _quantile(np.abs(log_ratios))
    found = {"": Stratum(everything, len(named), _devices(held), _ranges(held))}
    for name in sorted(set(named)):
        mine = np.array([name == other for other in named])
        runs = int(mine.sum())
        share = runs / (runs + _OWN)
        half = share * _quantile(np.abs(log_ratios[mine])) + (1 - share) * everything
        own_jobs = [job for job, own in zip(held, mine, strict=True) if own]
        found[name] = Stratum(half, runs, _devices(own_jobs), _ranges(own_jobs))
    return found


def half_width(job: Job, known: Mapping[str, Stratum]) -> float:
    """Half-width of a job's interval on the log scale."""
    found = known.get(stratum_of(job))
    half = found.half_width if found else known[""].half_width * _UNSEEN
    return half if job.device.name in known[""].devices else half * _UNSEEN


def extrapolates(job: Job, known: Mapping[str, Stratum]) -> bool:
    """Whether no run was like a job: none of its stratum or on its GPU, or it is twice beyond their ranges."""
    found = known.get(stratum_of(job))
    if found is None or job.device.name not in known[""].devices:
        return True
    return any(
        not low / 2 <= value <= high * 2
        for value, (low, high) in ((value, found.ranges[name]) for name, value in features(job).items())
    )


def _quantile(values: Floats) -> float:
    """The conformal quantile: with the correction for a sample of this size, at most the largest."""
    if not len(values):
        return 0.0
    return float(np.quantile(values, min(COVERAGE * (1 + 1 / len(values)), 1.0)))


def _devices(jobs: list[Job]) -> tuple[str, ...]:
    return tuple(sorted({job.device.name for job in jobs}))


def _ranges(jobs: list[Job]) -> dict[str, tuple[float, float]]:
    rows = [features(job) for job in jobs]
    return {name: (min(row[name] for row in rows), max(row[name] for row in rows)) for name in rows[0]} if rows else {}
