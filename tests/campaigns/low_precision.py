"""Training on codes: gpt-tiny over 200 steps stays within 2 % of the loss in bf16, and unit scales break that.

A case is one way of scaling and one seed. Both losses are means over the last 20 steps. All codes of every 20th step
are among the figures that their dtype has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache

import numpy as np

from executor.data.text import standard_library
from strategy.graph.graph import Graph
from strategy.models import find_model
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from tests.campaigns.outcome import Outcome, survived
from tests.support.learned_codes import codes_of, figures_of, losses, unit_scales
from tests.support.reference import Array

MODEL = find_model("gpt-tiny")
STEPS, LAST = 200, 20
MOST = 0.02
WAYS = tuple(precision for precision in Precision if precision.scaling is not None)
IN_BLOCKS = (Precision.FP8_BLOCK, Precision.MXFP8, Precision.NVFP4)
QUOTAS = {**{str(way): 0.9 / len(WAYS) for way in WAYS}, "unit scales": 0.1}


def run(cases: int, seed: int) -> Outcome:
    """So many ways and seeds, one after another; with the first seed also by unit scales, of tensors."""
    outcome = Outcome(QUOTAS)
    for number in range(cases):
        way, chosen = WAYS[number % len(WAYS)], seed + number // len(WAYS)
        first = chosen == seed and way not in IN_BLOCKS
        outcome.add(f"{way}, seed {chosen}", survived(_departs(way, chosen, unit=first)), _exercised(way, unit=first))
    return outcome


def _exercised(way: Precision, *, unit: bool) -> Iterator[str]:
    yield str(way)
    if unit:
        yield "unit scales"


def _departs(way: Precision, seed: int, *, unit: bool) -> Iterator[str]:
    wanted, strange = _last(Precision.BF16, seed), _Strange()
    found = float(losses(MODEL, _training(way, seed), standard_library(), STEPS, strange.see)[-LAST:].mean())
    if not abs(found / wanted - 1) <= MOST:
        yield f"a loss of {found:.4f}, in bf16 {wanted:.4f}"
    if strange.found or not strange.seen:
        yield f"{strange.found} of {strange.seen} codes are no figures of their dtype"
    if unit:
        with unit_scales():
            broken = float(losses(MODEL, _training(way, seed), standard_library(), STEPS)[-LAST:].mean())
        if abs(broken / wanted - 1) <= MOST:
            yield f"a loss of {broken:.4f} by unit scales, in bf16 {wanted:.4f}: scales do nothing"


class _Strange:
    """Counts the codes that their dtype does not have."""

    def __init__(self) -> None:
        self.steps = self.seen = self.found = 0

    def see(self, graph: Graph, values: Mapping[str, Array]) -> None:
        """The values of one step."""
        if self.steps % LAST == 0:
            for dtype, codes in codes_of(graph, values):
                self.seen += codes.size
                self.found += int((~np.isin(codes, sorted(figures_of(dtype)))).sum())
        self.steps += 1


@cache
def _last(precision: Precision, seed: int) -> float:
    return float(losses(MODEL, _training(precision, seed), standard_library(), STEPS)[-LAST:].mean())


def _training(precision: Precision, seed: int) -> Training:
    return Training(8, precision=precision, warm_up=10, seed=seed)
