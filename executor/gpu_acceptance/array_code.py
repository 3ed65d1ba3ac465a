"""Part of acceptance: what every op means, run by CuPy in double precision, on the examples that define the op."""

from __future__ import annotations

import math

import numpy as np

from executor.gpu_acceptance.bench import Bench
from executor.gpu_acceptance.outcome import Figures, PartFailed
from executor.gpu_acceptance.samples import row_error
from executor.op_validation.subject import OneRank, Subject, subjects_of, whole_box
from executor.runtime.kernels.base import Kernels, open_kernels
from strategy.graph.ops import REGISTRY

_MOST = 1e-9
"""Of the largest error in a row over the row's largest figure: both compute in double precision."""


def array_code(bench: Bench) -> Figures:
    """The error of every example of every op, and what CuPy cannot run; codes have no array code there."""
    del bench  # array code asks for no library of ours
    host, device = open_kernels("numpy"), open_kernels("cupy")
    errors: dict[str, float] = {}
    of_codes: list[str] = []
    problems: dict[str, str] = {}
    for kind in REGISTRY:
        for subject in subjects_of(kind):
            name = f"{kind} {subject.number}"
            if any(spec.dtype.is_code for spec in subject.graph.specs((*subject.op.inputs, *subject.op.outputs))):
                of_codes.append(name)
                continue
            try:
                errors[name] = _error(subject, host, device)
            except Exception as error:  # noqa: BLE001 - one op must not hide the next
                problems[name] = f"{type(error).__name__}: {error}"
    problems |= {name: f"is off by {error:.2g}" for name, error in errors.items() if not error <= _MOST}
    figures = {"errors": errors, "of codes": of_codes, "problems": problems}
    if problems:
        name, first = next(iter(problems.items()))
        raise PartFailed(f"{len(problems)} examples fail, such as {name}: {first}", figures)
    return figures


def _error(subject: Subject, host: Kernels, device: Kernels) -> float:
    """The largest error of what an op gives on the device, after all its acts."""
    drawn = subject.draw(0, host)
    specs = map(subject.graph.specs, (subject.op.inputs, subject.op.outputs))
    inputs, outputs = ([whole_box(spec) for spec in some] for some in specs)
    rank = OneRank(subject, device, inputs, outputs, drawn.updates)
    for operands in drawn.inputs:
        rank.act(operands)
    pairs = zip(rank.results(), drawn.results, strict=True)
    return max((_piece_error(found, right) for found, right in pairs), default=0.0)


def _piece_error(found: np.ndarray, right: np.ndarray) -> float:
    if found.dtype.kind in "iub" or found.dtype.itemsize == 1:
        return 0.0 if found.tobytes() == right.tobytes() else math.inf
    return row_error(found, right)
