"""Fitting kernels: constants of each kind and precision on each device, by robust least squares held by priors.

Points that are mostly launch have a tenth of the weight of the others. Every set is fitted by itself: what is fitted
to one device says nothing of another, so that a device can be withheld by leaving its constants out.
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np

from experiments.kernels.points import KernelPoints, Mask
from experiments.kernels.priors import declared
from strategy.closed_form.fit import Fit, fit
from strategy.kernels.calibration import CLASSES, FittedKernel
from strategy.kernels.precision import Floats

_LAUNCH_WEIGHT = 0.1
_THRESHOLD = 0.06
"""Log ratio beyond which a point pulls no harder: a kernel is often twice as slow where the library picked badly."""


def fit_points(points: KernelPoints, mask: Mask) -> Fit:
    """Constants of a set from the points of a mask."""
    kind = CLASSES[points.kind]

    def model(values: dict[str, float]) -> Floats:
        return points.model(kind(**values))[mask]

    weights = np.where(points.judged, 1.0, _LAUNCH_WEIGHT)[mask]
    known = declared(points.kind, points.precision)
    return fit(model, points.seconds[mask], weights, known, threshold=_THRESHOLD)


def fitted_kernel(points: KernelPoints, found: Fit) -> FittedKernel:
    """What the file keeps of a fit: values, intervals, where the points are from and how far they reach."""
    widths = {name: float(np.exp(half)) for name, half in found.half_widths.items()}
    return FittedKernel(
        points.kind,
        points.sheet.name,
        points.precision,
        MappingProxyType(dict(found.values)),
        MappingProxyType({name: (value / widths[name], value * widths[name]) for name, value in found.values.items()}),
        len(points.seconds),
        points.sources,
        MappingProxyType({name: (float(size.min()), float(size.max())) for name, size in points.sizes.items()}),
    )
