"""Candidate certificate: why no candidate of a space takes less than a plan claims, each solved on the whole model.

    space      what is pinned; all else is listed anew from model and cluster (`space.candidates`)
    level 0    the least work of every candidate, by closed forms: not in the file
    level 1    for those that this leaves below the bound, proofs of their layout problems (`layout_bound`)
    level 2    those that take no less than another, memory aside, which has such a proof: not in the file

In a plan it is a JSON object {`kind`, `version`, `pinned`, `configurations`, `arrays`}, with the same bytes for the
same certificate. The arrays:

    bounds    (bounds, 5): place of the candidate, whether within memory, least cost, words of its proof, paths
    paths     (paths, 3): share, and stages and laps of the point at which it is the longest; none: the even ones
    times     all arrays of these points, one after the other
    words     of all proofs
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from strategy.base.errors import CertificateError, SbplanError
from strategy.bounds.certificate import NO_PROOF, NOTHING, pinned, pins_of
from strategy.bounds.certificate_arrays import Arrays, packed, unpacked
from strategy.bounds.layout_bound import LayoutBound
from strategy.bounds.path_mix import PathMix
from strategy.ilp.certificate.words import proof_of, proof_words
from strategy.layout.step_times import ARRAYS, Overlap, StepTimes, no_times
from strategy.space.request import Pins

KIND, VERSION = "candidates", 4
WIDTHS = {"bounds": 6, "paths": 3}
"""Of arrays with two axes."""
UNKNOWN = Overlap(allowed=False)
"""How communication runs beside computation is the cluster's to say."""


@dataclass(frozen=True, slots=True, eq=False)
class CandidateCertificate:
    """See the module.

    Attributes:
        pins: of the space.
        configurations: so many the space has.
        bounds: places of candidates in the space, with what is proved of their layouts.
    """

    pins: Pins
    configurations: int
    bounds: tuple[tuple[int, LayoutBound], ...]


def is_of_candidates(found: Mapping[str, Any]) -> bool:
    """Whether a JSON object says that it is such a certificate."""
    return found.get("kind") == KIND


def candidate_document(certificate: CandidateCertificate) -> dict[str, Any]:
    """The certificate as JSON values."""
    return {
        "kind": KIND,
        "version": VERSION,
        "pinned": pinned(certificate.pins),
        "configurations": certificate.configurations,
        "arrays": packed(_arrays(certificate.bounds)),
    }


def candidate_certificate_of(found: Mapping[str, Any]) -> CandidateCertificate:
    """The certificate that a JSON object holds.

    Raises:
        CertificateError: it is not a whole certificate of this kind and version.
    """
    try:
        _check_version(found["kind"], found["version"])
        bounds = tuple(_bounds(unpacked(found["arrays"])))
        return CandidateCertificate(pins_of(found["pinned"]), int(found["configurations"]), bounds)
    except CertificateError:
        raise
    except (SbplanError, KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        raise CertificateError(f"not a certificate of a bound: {type(error).__name__}: {error}") from error


def _check_version(kind: Any, version: Any) -> None:
    if (kind, version) != (KIND, VERSION):
        raise CertificateError("a version that is not known", got=f"{kind} {version}", expected=f"{KIND} {VERSION}")


def _arrays(bounds: Sequence[tuple[int, LayoutBound]]) -> Arrays:
    proofs = [np.zeros(0, np.int64) if one.proof is None else proof_words(one.proof) for _, one in bounds]
    rows = [
        (
            place,
            one.within_memory,
            NOTHING if one.least is None else one.least,
            NO_PROOF if one.proof is None else words.size,
            len(one.mix.points),
            one.mix.coarse,
        )
        for (place, one), words in zip(bounds, proofs, strict=True)
    ]
    paths = [pair for _, one in bounds for pair in zip(one.mix.points, one.mix.shares, strict=True)]
    sizes = [(share, *((0, 0) if point is None else (point.stages, point.laps))) for point, share in paths]
    times = [getattr(point, name).ravel() for point, _ in paths if point is not None for name in ARRAYS]
    return {
        "bounds": np.array(rows, np.int64).reshape(-1, WIDTHS["bounds"]),
        "paths": np.array(sizes, np.int64).reshape(-1, WIDTHS["paths"]),
        "times": np.concatenate([np.zeros(0, np.int64), *times]),
        "words": np.concatenate([np.zeros(0, np.int64), *proofs]),
    }


def _bounds(arrays: Arrays) -> Iterator[tuple[int, LayoutBound]]:
    for name, width in WIDTHS.items():
        if arrays[name].ndim != 2 or arrays[name].shape[1] != width:
            raise CertificateError("an array of another shape", where=f"certificate.arrays: {name}")
    words, times = _Numbers(arrays["words"]), _Numbers(arrays["times"])
    paths = iter(arrays["paths"].tolist())
    for place, within_memory, least, size, count, coarse in arrays["bounds"].tolist():
        some = list(itertools.islice(paths, count))
        mix = PathMix(tuple(_point(times, *each) for _, *each in some), tuple(share for share, *_ in some), coarse)
        proof = None if size == NO_PROOF else proof_of(words.take(size))
        yield place, LayoutBound(mix, bool(within_memory), None if least == NOTHING else least, proof)
    if next(paths, None) is not None or words.left or times.left:
        raise CertificateError("numbers after the last proof", where="certificate.arrays")


def _point(times: _Numbers, stages: int, laps: int) -> StepTimes | None:
    if (stages, laps) == (0, 0):
        return None
    if min(stages, laps) < 1 or stages * laps > times.left:
        raise CertificateError("times of no pipeline", where="certificate.arrays: paths", got=f"{stages} x {laps}")
    shapes = no_times(stages, laps)
    arrays = {name: times.take(zeros.size).reshape(zeros.shape) for name, zeros in shapes.items()}
    return StepTimes(**arrays, overlap=UNKNOWN)


@dataclass(slots=True)
class _Numbers:
    """Numbers that are read one run after the other."""

    numbers: npt.NDArray[np.int64]
    at: int = 0

    @property
    def left(self) -> int:
        """How many there are still."""
        return int(self.numbers.size) - self.at

    def take(self, count: int) -> npt.NDArray[np.int64]:
        """The next ones.

        Raises:
            CertificateError: there are not so many.
        """
        if not 0 <= count <= self.left:
            raise CertificateError("not a whole certificate of a bound", got=self.left, expected=f"{count} numbers")
        self.at += count
        return self.numbers[self.at - count : self.at]
