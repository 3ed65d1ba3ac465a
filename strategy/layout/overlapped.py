"""Overlapped: the conversions that no layer waits for, so that they may go on beside computation.

    gathers     of parameters that are shared out, in the chunks
    exchanges   of gradients, in the chunks
    once        what is done once per step, ahead of the chunks and after them

What moves is a collective, which has a stream of its own; what a rank merely cuts off takes next to nothing and is
counted with it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import cast

from strategy.base.identity import Identity
from strategy.graph.graph import Graph, Phase
from strategy.layout.gradient_exchange import exchanged
from strategy.layout.parameter_gathers import of_parameters
from strategy.sbp.tensor import Rate


def is_overlapped(graph: Graph, value: str, rate: Rate, phase: Phase) -> bool:
    """Whether conversions of a value, done so often and in such a phase, hold up no layer."""
    return rate is Rate.STEP or phase is Phase.UPDATE or value in _values(Identity(graph))


@lru_cache(maxsize=8)
def _values(known: Identity) -> frozenset[str]:
    """Of micro-batches: parameters, and gradients of these."""
    graph = cast(Graph, known.held)
    return of_parameters(graph) | exchanged(graph)
