"""Gradient exchange: the conversions of backward passes that add up gradients of parameters, and who takes the result.

They do nothing but prepare the update: what follows from them in the chunks are casts and sums, which read such
gradients and what lasts for the step, and nothing else.

    dw (terms) -> reduce-scatter -> cast -> sum over micro-batches | update
    backward      exchange          takers                         | epilogue
"""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import cast

from strategy.base.identity import Identity
from strategy.graph.graph import Graph, Op, Phase, act_rate
from strategy.layout.arrangement import Action, Arrangement
from strategy.program.program import ActKind
from strategy.sbp.tensor import Rate

BACKWARD = (Phase.BACKWARD, Phase.WEIGHT)


def exchanged(graph: Graph) -> frozenset[str]:
    """The values of a micro-batch that backward passes make for the update, and for what prepares it, alone."""
    preparing = _preparing(graph)
    return frozenset(
        name
        for name, op in graph.producer.items()
        if op.phase in BACKWARD and _is_for(graph, name, preparing) and graph.values[name].rate is Rate.MICRO_BATCH
    )


def takers(graph: Graph, arrangement: Arrangement) -> frozenset[int]:
    """The numbers of the actions that take what exchanges give, and of all that follows from them in the same chunk.

    Of an exchange of several steps, those that follow upon one another at once are none.
    """
    preparing, values = _preparing(graph), exchanged(graph)
    given, taken = set[int](), set[int]()
    found = []
    for index, action in enumerate(arrangement.actions):
        is_step = not action.op and action.writes and arrangement.tensors[action.writes[0]].value in values
        if not _is_of_chunk(action) or not (is_step or action.op in preparing):
            continue
        waits_for = taken if action.kind.is_communication else given | taken
        if not waits_for.isdisjoint(action.reads):
            taken.update(action.writes)
            found.append(index)
        elif action.kind.is_communication:
            given.update(action.writes)
    return frozenset(found)


def _preparing(graph: Graph) -> frozenset[str]:
    """The largest set of ops of backward passes that read, of micro-batches, and make what they and the update read."""
    return _known_preparing(Identity(graph))


@lru_cache(maxsize=8)
def _known_preparing(known: Identity) -> frozenset[str]:
    graph = cast(Graph, known.held)
    found = {
        op.name for op in graph.ops if op.phase in BACKWARD and op.inputs and act_rate(graph, op) is Rate.MICRO_BATCH
    }
    waiting = list(found)
    while waiting:
        op = graph.by_name[waiting.pop()]
        if op.name in found and not _prepares(graph, op, found):
            found.remove(op.name)
            waiting += [one.name for one in _beside(graph, op) if one.name in found]
    return frozenset(found)


def _beside(graph: Graph, op: Op) -> Iterator[Op]:
    """The ops that do not prepare the update if another does not: they make what it reads, or read that, too."""
    for name in op.inputs:
        if name in graph.producer:
            yield graph.producer[name]
        yield from graph.consumers[name]


def _prepares(graph: Graph, op: Op, others: AbstractSet[str]) -> bool:
    read = [name for name in op.inputs if graph.values[name].rate is Rate.MICRO_BATCH]
    return all(_hands_on(graph, name, op.phase, others) for name in read) and all(
        _is_for(graph, name, others) for name in op.outputs
    )


def _hands_on(graph: Graph, value: str, phase: Phase, preparing: AbstractSet[str]) -> bool:
    """Whether a value passes from what makes it to what prepares the update within one pass of a micro-batch.

    What an earlier pass leaves has blocks for the micro-batches between the two passes, and none for what waits longer.
    """
    producer = graph.producer.get(value)
    return producer is not None and producer.phase is phase and _is_for(graph, value, preparing)


def _is_for(graph: Graph, value: str, preparing: AbstractSet[str]) -> bool:
    """Whether what prepares the update, and the update, alone read a value."""
    return all(op.name in preparing or op.phase is Phase.UPDATE for op in graph.consumers[value])


def _is_of_chunk(action: Action) -> bool:
    """Whether an action of a backward pass stays on its stage."""
    backward = action.phase in BACKWARD and action.rate is Rate.MICRO_BATCH
    return backward and action.kind is not ActKind.TRANSFER
