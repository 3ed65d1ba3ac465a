"""Per sample: sizes and factors of a graph as functions of the samples of a micro-batch, found from a few of them.

    12 where there are 2 samples, 24 where there are 4, 36 where there are 6      6 per sample
    1/12, 1/24, 1/36                                                              1 over (6 per sample)
    5, 5, 5                                                                       5

In a document a figure that depends on nothing is itself, and others are objects: `{"per_sample": 6, "plus": 0}`,
`{"one_over": {"per_sample": 6, "plus": 0}}`, `{"over_samples": 0.5}`, and for sizes as floats
`{"float": {"per_sample": 6, "plus": 0}}`. Tuples are lists.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from strategy.base.errors import InputError
from strategy.base.limits import LARGEST
from strategy.graph.graph import Attr

SAMPLES = (2, 4, 6)
"""Micro-batches that a graph is looked at with."""
_ROUNDING = 1e-12


def fitted(figures: Sequence[Any]) -> Any:
    """The function that gives these figures at `SAMPLES`, as JSON values.

    Raises:
        InputError: they depend on the samples in another way, or are more than a document holds.
    """
    first = figures[0]
    if all(isinstance(one, tuple) and len(one) == len(first) for one in figures):
        return [fitted(parts) for parts in zip(*figures, strict=True)]
    if any(isinstance(one, float) and not math.isfinite(one) for one in figures):
        raise InputError("a figure that cannot be recorded", got=first, expected="a finite number")
    if any(isinstance(one, int) and abs(one) > LARGEST for one in figures):
        raise InputError("a figure that cannot be recorded", got=first, expected=f"at most {LARGEST}")
    if all(one == first for one in figures):
        return first
    if all(isinstance(one, int) for one in figures):
        return _linear(figures)
    if all(isinstance(one, float) and one for one in figures):
        counts = [round(1 / one) for one in figures]
        if all(count and 1.0 / count == one for count, one in zip(counts, figures, strict=True)):
            return {"one_over": _linear(counts)}
        share = first * SAMPLES[0]
        if all(abs(one * samples - share) <= _ROUNDING * abs(share) for one, samples in _beside(figures)):
            return {"over_samples": share}
        if all(one.is_integer() for one in figures):
            return {"float": _linear([int(one) for one in figures])}
    raise _other_way(figures)


def figure(found: Any, samples: int) -> Attr:
    """The inverse of `fitted`, for so many samples.

    Raises:
        InputError: it is no such function.
    """
    if isinstance(found, list):
        parts = tuple(figure(one, samples) for one in found)
        return parts  # type: ignore[return-value]
    if isinstance(found, int) and not isinstance(found, bool) and abs(found) <= LARGEST:
        return found
    if isinstance(found, str | float):
        return found
    match found:
        case {"per_sample": int(slope), "plus": int(constant)} if abs(slope) <= LARGEST and abs(constant) <= LARGEST:
            return slope * samples + constant
        case {"one_over": inner}:
            count = figure(inner, samples)
            if isinstance(count, int) and count:
                return 1.0 / count
        case {"float": inner}:
            size = figure(inner, samples)
            if isinstance(size, int):
                return float(size)
        case {"over_samples": float(share)}:
            return share / samples
    raise InputError("no figure of a recorded graph", got=found, expected="a number, a text, or a function of samples")


def _beside(figures: Sequence[Any]) -> list[tuple[Any, int]]:
    return list(zip(figures, SAMPLES, strict=True))


def _linear(figures: Sequence[int]) -> dict[str, int]:
    slope, rest = divmod(figures[1] - figures[0], SAMPLES[1] - SAMPLES[0])
    constant = figures[0] - slope * SAMPLES[0]
    if rest or any(one != slope * samples + constant for one, samples in _beside(figures)):
        raise _other_way(figures)
    return {"per_sample": slope, "plus": constant}


def _other_way(figures: Sequence[Any]) -> InputError:
    return InputError(
        "a figure of the graph does not grow by so much per sample",
        got=dict(zip(SAMPLES, figures, strict=True)),
        expected="a constant, so much per sample, or one over that",
    )
