"""Estimate: step time with its interval, memory, and whether memory is exceeded, of many jobs at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strategy.closed_form.calibration import FittedConstants
from strategy.closed_form.interval import extrapolated, half_width
from strategy.closed_form.job import Job, Jobs
from strategy.closed_form.memory import Footprint, fitting, footprint, overflows
from strategy.closed_form.price import Pricing
from strategy.closed_form.products import Floats
from strategy.closed_form.work import JobWork


@dataclass(frozen=True, slots=True)
class Estimates:
    """Seconds of a step with a 90 % interval, bytes per GPU, and flags; each array has one entry per job.

    `extrapolated` says why no run was like a job; nothing, if one was.
    """

    seconds: Floats
    low: Floats
    high: Floats
    footprint: Footprint
    out_of_memory: npt.NDArray[np.bool_]
    extrapolated: tuple[tuple[str, ...], ...]


def estimate(jobs: Sequence[Job], fitted: FittedConstants, work: JobWork | None = None) -> Estimates:
    """Predict jobs; `work` is theirs, where it has been measured already.

    Raises:
        InputError: a job names a framework or a fabric that has no constants.
    """
    columns = Jobs.of(jobs)
    pricing = Pricing(columns, fitted.constants, work)
    seconds = pricing.seconds(fitted.constants)
    held = fitting(columns, footprint(columns, pricing.work, fitted.constants))
    half = np.exp([half_width(job, fitted.strata, fitted.guesses) for job in jobs])
    return Estimates(
        seconds,
        seconds / half,
        seconds * half,
        held,
        overflows(columns, held),
        tuple(extrapolated(job, fitted.strata) for job in jobs),
    )
