"""Op checks: everything that is tried of an op kind on its examples, and what came of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from executor.op_validation.completeness import MOST, check_completeness, read_reasons, reason_for
from executor.op_validation.gradients import gradient_problems
from executor.op_validation.signatures import MESHES, signature_text, try_listed
from executor.op_validation.subject import Subject, subjects_of
from executor.runtime.kernels.base import Kernels
from strategy.base.errors import SbplanError
from strategy.graph.ops import op_definition
from strategy.sbp.tensor import Shape


@dataclass(slots=True)
class Coverage:
    """What was tried of one kind. `listed` and `unlisted` count trials, a signature on a mesh each."""

    kind: str
    examples: int = 0
    listed: int = 0
    uneven: int = 0
    unlisted: int = 0
    combinations: int = 0
    excused: int = 0
    gradients: int = 0
    exhaustive: bool = True
    """Whether all combinations were tried."""
    problems: list[str] = field(default_factory=list)
    reasons_used: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.kind}: {self.examples} examples, {self.listed} listed signatures run ({self.uneven} uneven), "
            f"{self.unlisted} of {self.combinations} combinations tried beside them ({self.excused} right, with a "
            f"reason), {self.gradients} gradients, {len(self.problems)} problems"
        )


def total(found: Sequence[Coverage]) -> Coverage:
    """The counts of several kinds, added up."""
    summed = Coverage("all")
    for coverage in found:
        summed.examples += coverage.examples
        summed.listed += coverage.listed
        summed.uneven += coverage.uneven
        summed.unlisted += coverage.unlisted
        summed.combinations += coverage.combinations
        summed.excused += coverage.excused
        summed.gradients += coverage.gradients
        summed.exhaustive &= coverage.exhaustive
        summed.problems += coverage.problems
    return summed


def check_kind(
    kind: str,
    kernels: Kernels,
    *,
    seed: int = 0,
    meshes: Sequence[Shape] = MESHES,
    most_listed: int | None = None,
    most_unlisted: int = MOST,
) -> Coverage:
    """Try one kind.

    Unlisted combinations are a matter of what an op lists, not of where it runs: on a device other than the host they
    are left out.

    Args:
        kind: of the op.
        kernels: what runs it.
        seed: of operands and choices.
        meshes: for listed signatures.
        most_listed: signatures per example and mesh, chosen at random; None for all.
        most_unlisted: combinations per example and mesh (see `executor.op_validation.completeness`); 0 for none.
    """
    coverage = Coverage(kind)
    try:
        subjects = subjects_of(kind)
        if not subjects:
            coverage.problems.append(f"{kind}: has no example, so nothing of it is tried")
        elif not any(_shows_something(subject, kernels, seed) for subject in subjects):
            coverage.problems.append(f"{kind}: all results of its examples are zero, which shows nothing")
        for subject in subjects:
            coverage.examples += 1
            _listed(coverage, subject, kernels, seed, meshes, most_listed)
            _gradients(coverage, subject, kernels, seed)
            if kernels.host and most_unlisted:
                _completeness(coverage, subject, kernels, seed, most_unlisted)
    except SbplanError as error:
        coverage.problems.append(f"{kind}: {error}")
    except Exception as error:  # noqa: BLE001 - the meaning of an op may fail in any way, and that is the finding
        coverage.problems.append(f"{kind}: cannot be tried on one device: {type(error).__name__}: {error}")
    return coverage


def _shows_something(subject: Subject, kernels: Kernels, seed: int) -> bool:
    """Whether some result is not zero; zeros agree with every signature."""
    return any(np.any(array) for array in subject.draw(seed, kernels).results)


def _listed(
    coverage: Coverage, subject: Subject, kernels: Kernels, seed: int, meshes: Sequence[Shape], most: int | None
) -> None:
    for verdict in try_listed(subject, kernels, meshes=meshes, seed=seed, most=most):
        coverage.listed += 1
        coverage.uneven += verdict.uneven
        if verdict.problem:
            coverage.problems.append(str(verdict))


def _gradients(coverage: Coverage, subject: Subject, kernels: Kernels, seed: int) -> None:
    if op_definition(subject.kind).gradient is None:
        return
    coverage.gradients += 1
    coverage.problems += gradient_problems(subject, kernels, seed=seed)


def _completeness(coverage: Coverage, subject: Subject, kernels: Kernels, seed: int, most: int) -> None:
    reasons = read_reasons()
    for found in check_completeness(subject, kernels, seed=seed, most=most):
        coverage.unlisted += found.tried
        coverage.combinations += found.combinations
        coverage.exhaustive &= found.exhaustive
        for signature in found.right:
            reason = reason_for(reasons, subject.kind, signature_text(signature))
            if reason:
                coverage.excused += 1
                coverage.reasons_used.append(reason)
            else:
                where = f"{subject.kind}, example {subject.number}, mesh {list(found.mesh)}"
                coverage.problems.append(f"{where}: {signature_text(signature)}: right, but neither listed nor excused")


def stale_reasons(found: Sequence[Coverage]) -> list[str]:
    """Reasons which excused nothing, of kinds of which every combination was tried."""
    reasons = read_reasons()
    return [
        f"completeness.toml: [{coverage.kind}] {pattern!r} excuses nothing"
        for coverage in found
        if coverage.exhaustive and coverage.examples
        for pattern in reasons.get(coverage.kind, {})
        if pattern not in coverage.reasons_used and not pattern.startswith("gradient of")
    ]
