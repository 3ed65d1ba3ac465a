"""Validation of kernels: how far predictions are off on cells, and on devices, that the fit has not seen.

Cells (all points of the same sizes) are dealt into five folds by a seed; each fold is predicted by a fit to the
others. A device is withheld whole by taking its constants out: it is predicted from its data sheet, with the shares of
its generation or of the nearest one that has any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from experiments.kernels.fitting import fit_points, fitted_kernel
from experiments.kernels.points import KernelPoints, read_points
from strategy.base.errors import InputError
from strategy.kernels.calibration import CLASSES, FittedKernel, KernelCalibration, KernelKind
from strategy.kernels.precision import Floats, KernelPrecision

FOLDS = 5


@dataclass(frozen=True, slots=True)
class KernelError:
    """Relative errors of one set on the points that are judged: median, mean, and what nine in ten keep to.

    `of_sheet` and `of_sheet_p90` are those of the device withheld whole; None where no other device has points.
    """

    kind: KernelKind
    device: str
    precision: KernelPrecision
    points: int
    judged: int
    constants: int
    median: float
    mean: float
    p90: float
    of_sheet: float | None
    of_sheet_p90: float | None


@dataclass(frozen=True, slots=True)
class KernelValidation:
    """Constants fitted to all points, and the error of every set."""

    calibration: KernelCalibration
    errors: tuple[KernelError, ...]


def validate_kernels(seed: int = 0) -> KernelValidation:
    """Fit the shipped tables, withhold cells and devices, and predict them."""
    sets = read_points()
    fits = [fit_points(one, np.ones(len(one.seconds), dtype=bool)) for one in sets]
    calibration = KernelCalibration(tuple(fitted_kernel(one, fit) for one, fit in zip(sets, fits, strict=True)))
    found = []
    for one, kernel in zip(sets, calibration.fitted, strict=True):
        apart = _relative(one, _withheld_cells(one, seed))
        sheet = _from_sheet(one, kernel, calibration)
        of_sheet, of_sheet_p90 = (None, None) if sheet is None else _median_and_p90(_relative(one, sheet))
        median, p90 = _median_and_p90(apart)
        found.append(
            KernelError(
                one.kind, one.sheet.name, one.precision, len(one.seconds), int(one.judged.sum()), len(kernel.values),
                median, float(apart.mean()), p90, of_sheet, of_sheet_p90,
            )
        )  # fmt: skip
    return KernelValidation(calibration, tuple(found))


def _withheld_cells(points: KernelPoints, seed: int) -> Floats:
    """Every point predicted by a fit to the folds that its cell is not in."""
    kind = CLASSES[points.kind]
    folds = folds_of(points.cells, seed)
    predicted = np.empty(len(points.seconds))
    for fold in range(FOLDS):
        mine = folds == fold
        predicted[mine] = points.model(kind(**fit_points(points, ~mine).values))[mine]
    return predicted


def folds_of(cells: Sequence[tuple[float, ...]], seed: int) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    """The fold of every point; points of the same cell are in the same."""
    known = sorted(set(cells))
    order = np.random.default_rng(seed).permutation(len(known))
    fold = {cell: int(place) % FOLDS for cell, place in zip(known, order, strict=True)}
    return np.array([fold[cell] for cell in cells])


def _from_sheet(points: KernelPoints, kernel: FittedKernel, calibration: KernelCalibration) -> Floats | None:
    """Every point predicted from the device's sheet and other devices' shares, if others have any."""
    others = calibration.without(kernel.device)
    try:
        constants = others.constants(points.kind, points.precision, points.sheet)
    except InputError:
        return None
    return points.model(constants)


def _relative(points: KernelPoints, predicted: Floats) -> Floats:
    return np.abs(predicted / points.seconds - 1)[points.judged]


def _median_and_p90(errors: Floats) -> tuple[float, float]:
    return float(np.median(errors)), float(np.percentile(errors, 90))
