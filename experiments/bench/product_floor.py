"""The floor of a step: the time of its matrix products alone, each size at its best rate.

Products of the ops, and those inside attention, of which a causal mask leaves half: two in the forward pass (scores and
mixtures) and five in the backward pass (scores again, and the gradients of all three operands and the scores).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping

import numpy as np

from strategy.cost.cost import op_features
from strategy.graph.ops import op_definition
from strategy.graph.ops.traits import Attention
from strategy.plan.plan import Plan

_REPEATS = 3
Size = tuple[int, int, int, int]
"""Rows, columns, depth, how many at once."""


def products_of(plan: Plan) -> Mapping[Size, float]:
    """Every product of a step on a rank of the first stage, with how often it is computed: half where masked."""
    found: dict[Size, float] = {}
    mesh = plan.layout.stages.placements[0].mesh
    for op in plan.graph.ops:
        features = op_features(plan.graph, op, plan.layout.signatures[op.name], mesh)
        times = plan.training.num_micro_batches
        if features.product is not None:
            found[features.product] = found.get(features.product, 0.0) + times
        elif isinstance(op_definition(op.kind).cost, Attention) and features.attention_shape is not None:
            sequences, queries, heads, _, size = features.attention_shape
            scores = (queries, queries, size, sequences * heads)
            share = 1.0 if features.every_pair else 0.5
            found[scores] = found.get(scores, 0.0) + share * times * features.flop / (2 * math.prod(scores))
    return found


class ProductFloor:
    """Operands of all sizes, and the time of all products."""

    def __init__(self, plan: Plan) -> None:
        rng = np.random.default_rng(0)
        self._products = products_of(plan)
        self._operands = {
            size: [rng.standard_normal(shape, dtype=np.float32) for shape in _shapes(size)] for size in self._products
        }

    @property
    def flop(self) -> int:
        """Of all products."""
        return round(sum(2 * math.prod(size) * times for size, times in self._products.items()))

    def measure(self, clock: Callable[[], float] = time.perf_counter) -> float:
        """Seconds of all products; of each size the best of a few, however its operands lie."""
        return sum(self._best_s(size, clock) * times for size, times in self._products.items())

    def _best_s(self, size: Size, clock: Callable[[], float]) -> float:
        left, right, left_turned, right_turned, out = self._operands[size]
        pairs = ((left, right), (left, right_turned.swapaxes(1, 2)), (left_turned.swapaxes(1, 2), right))
        seconds = []
        for _ in range(_REPEATS):
            for first, second in pairs:
                began_s = clock()
                np.matmul(first, second, out=out)
                seconds.append(clock() - began_s)
        return min(seconds)


def _shapes(size: Size) -> tuple[tuple[int, int, int], ...]:
    rows, columns, depth, count = size
    return (
        (count, rows, depth),
        (count, depth, columns),
        (count, depth, rows),
        (count, columns, depth),
        (count, rows, columns),
    )
