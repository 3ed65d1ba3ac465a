"""Load of experts: rows that the busiest rank multiplies where some experts are chosen more often than others.

Loads of experts follow a power law between 1 and 0.8 of the tokens, in density x ** -skew (the benchmark's own, of ai-
dynamo/aiconfigurator), scaled to the choices that there are; none has more rows than there are tokens. Experts are
dealt out to ranks at random; the busiest rank's load is its mean over 64 deals of a fixed seed.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from strategy.base.errors import InputError
from strategy.kernels.precision import Floats

_DEALS = 64
_LARGEST = 0.8
"""Share of the tokens that the law lets one expert have."""
_NARROWEST = 200.0
"""Largest over smallest load, however few tokens there are."""


@dataclass(frozen=True, slots=True)
class RankLoad:
    """What the busiest rank has, one entry per product: rows in all, and experts with at least one."""

    rows: Floats
    experts: Floats


def busiest_rank(tokens: Floats, top_k: Floats, experts: Floats, ranks: Floats, skew: Floats) -> RankLoad:
    """The busiest of `ranks` that share `experts`, of which every token chooses `top_k`; a skew of 0 is balanced.

    Raises:
        InputError: ranks that do not divide the experts.
    """
    columns = np.broadcast_arrays(tokens, top_k, experts, ranks, skew)
    shape = np.shape(columns[0])
    found = np.array([_busiest(*map(float, row)) for row in zip(*(np.ravel(one) for one in columns), strict=True)])
    rows, used = found.reshape(-1, 2).T
    return RankLoad(rows.reshape(shape), used.reshape(shape))


@cache
def _busiest(tokens: float, top_k: float, experts: float, ranks: float, skew: float) -> tuple[float, float]:
    if experts % ranks:
        raise InputError("ranks do not divide the experts", got=ranks, expected=f"a divisor of {experts:g}")
    loads = _loads(tokens, top_k, int(experts), skew)
    dealt = loads[_deals(int(experts))].reshape(_DEALS, int(ranks), -1)
    busiest = dealt[np.arange(_DEALS), dealt.sum(axis=2).argmax(axis=1)]
    return float(busiest.sum(axis=1).mean()), float(np.minimum(busiest, 1).sum(axis=1).mean())


def _loads(tokens: float, top_k: float, experts: int, skew: float) -> Floats:
    """Rows of every expert: the quantiles of the law, scaled to all choices."""
    if not skew:
        return np.full(experts, tokens * top_k / experts)
    quantiles = (np.arange(experts) + 0.5) / experts
    largest = max(_LARGEST * tokens, _NARROWEST)
    power = 1 - skew
    drawn = largest**quantiles if not power else ((largest**power - 1) * quantiles + 1) ** (1 / power)
    return np.asarray(np.minimum(drawn / drawn.sum() * tokens * top_k, tokens), dtype=float)


@cache
def _deals(experts: int) -> npt.NDArray[np.intp]:
    random = np.random.default_rng(0)
    return np.array([random.permutation(experts) for _ in range(_DEALS)])
