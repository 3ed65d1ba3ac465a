"""Products: seconds of matrix products of many jobs, as kernels take them by themselves (`strategy.kernels`).

What a shape loses by dims that do not fit the tensor cores is not in the kernels' measurements, all of whose dims do:
it is counted apart, for the step model to fit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strategy.closed_form.job import Jobs
from strategy.hardware.devices import DeviceSheet
from strategy.kernels.on_device import (
    grouped_seconds,
    least_grouped_seconds,
    least_product_seconds,
    precision_of,
    product_seconds,
)
from strategy.kernels.precision import KernelPrecision

Floats = npt.NDArray[np.float64]
_FITS = 64
"""Columns and depths that are a multiple of this fit."""


@dataclass(frozen=True, slots=True)
class ProductSeconds:
    """Seconds of products; each array has one entry per job.

    `flat` are those of as many FLOPs in the best shape; `odd` and `ragged` those of `all` with columns or depth that
    are no multiple of 64, or a dim that is odd.
    """

    all: Floats
    flat: Floats
    odd: Floats
    ragged: Floats

    def __add__(self, other: ProductSeconds) -> ProductSeconds:
        return ProductSeconds(
            self.all + other.all, self.flat + other.flat, self.odd + other.odd, self.ragged + other.ragged
        )

    def __mul__(self, times: Floats | float) -> ProductSeconds:
        return ProductSeconds(self.all * times, self.flat * times, self.odd * times, self.ragged * times)


@dataclass(frozen=True, slots=True)
class MultiplyingDevices:
    """Which jobs multiply on which device in which precision: each with the places of its jobs, of `count` in all."""

    of_jobs: tuple[tuple[npt.NDArray[np.intp], DeviceSheet, KernelPrecision], ...]
    count: int

    @classmethod
    def of(cls, jobs: Jobs, widths: Sequence[str]) -> MultiplyingDevices:
        """Jobs whose operands have these widths."""
        places: dict[tuple[DeviceSheet, KernelPrecision], list[int]] = {}
        for place, (job, width) in enumerate(zip(jobs.jobs, widths, strict=True)):
            places.setdefault((job.device, precision_of(job.device, width)), []).append(place)
        return cls(tuple((np.array(mine), *what) for what, mine in places.items()), len(jobs))


def product(by: MultiplyingDevices, m: Floats, n: Floats, k: Floats, count: Floats) -> ProductSeconds:
    """`count` products of (m, k) by (k, n) in one launch. A product with an empty dim costs nothing."""
    found, per_flop = np.empty(by.count), np.empty(by.count)
    for mine, sheet, precision in by.of_jobs:
        found[mine] = product_seconds(sheet, precision, m[mine], n[mine], k[mine], count[mine])
        _, per_flop[mine] = least_product_seconds(sheet, precision)
    return _noted(found, 2 * m * n * k * count * per_flop, m, n, k)


def grouped(by: MultiplyingDevices, rows: Floats, columns: Floats, depth: Floats, experts: Floats) -> ProductSeconds:
    """Products of experts, each of so many `rows`."""
    found, per_flop = np.empty(by.count), np.empty(by.count)
    for mine, sheet, precision in by.of_jobs:
        found[mine] = grouped_seconds(sheet, precision, rows[mine], columns[mine], depth[mine], experts[mine])
        _, per_flop[mine] = least_grouped_seconds(sheet, precision)
    return _noted(found, 2 * rows * columns * depth * experts * per_flop, rows, columns, depth)


def misfits(m: Floats, n: Floats, k: Floats) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.bool_]]:
    """Which products are odd, and which ragged."""
    odd = (np.mod(n, _FITS) != 0) | (np.mod(k, _FITS) != 0)
    return odd, (np.mod(m, 2) != 0) | (np.mod(n, 2) != 0) | (np.mod(k, 2) != 0)


def _noted(seconds: Floats, flat: Floats, m: Floats, n: Floats, k: Floats) -> ProductSeconds:
    odd, ragged = misfits(m, n, k)
    return ProductSeconds(seconds, np.minimum(flat, seconds), seconds * odd, seconds * ragged)


def training(
    by: MultiplyingDevices, m: Floats, n: Floats, k: Floats, count: Floats
) -> tuple[ProductSeconds, ProductSeconds, ProductSeconds]:
    """The forward product of a weight (k, n) with m rows, and the two of its backward pass.

    Those are the gradients of its inputs and of the weight, which one that stands still has none of.
    """
    return product(by, m, n, k, count), product(by, m, k, n, count), product(by, n, k, m, count)


def grouped_training(
    by: MultiplyingDevices, rows: Floats, columns: Floats, depth: Floats, experts: Floats
) -> tuple[ProductSeconds, ProductSeconds, ProductSeconds]:
    """As `training`, of experts' products."""
    of_inputs = grouped(by, rows, depth, columns, experts)
    return grouped(by, rows, columns, depth, experts), of_inputs, of_inputs
