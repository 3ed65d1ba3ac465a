"""Gradient exchange: the collectives of backward passes that add up gradients of parameters, and who takes the result.

They do nothing but prepare the update: what follows from them in the chunks are casts and sums, which read what was
exchanged and what lasts for the step, and nothing else.

    dw (terms) -> reduce-scatter -> cast -> sum over micro-batches | update
    backward      exchange          takers                         | epilogue
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from strategy.graph.graph import Graph, Phase
from strategy.layout.arrangement import Action, Arrangement
from strategy.program.program import ActKind
from strategy.sbp.tensor import Rate


def exchanges(graph: Graph, arrangement: Arrangement) -> frozenset[int]:
    """The numbers of the collectives."""
    return frozenset(i for i in _preparing(graph, arrangement) if arrangement.actions[i].kind.is_communication)


def takers(graph: Graph, arrangement: Arrangement) -> frozenset[int]:
    """The numbers of the actions that take what exchanges give, and of all that follows from them in the same chunk."""
    taken: set[int] = set()
    found = []
    for index in sorted(_preparing(graph, arrangement)):
        action = arrangement.actions[index]
        if not action.kind.is_communication or not taken.isdisjoint(action.reads):
            taken.update(action.writes)
            found.append(index)
    return frozenset(found)


def _preparing(graph: Graph, arrangement: Arrangement) -> set[int]:
    """Exchanges and takers: the largest set of which each is read by others of its chunk or by the update alone."""
    actions = arrangement.actions
    lasts = [graph.values[tensor.value].rate is Rate.STEP for tensor in arrangement.tensors]
    readers: dict[int, list[int]] = {}
    for index, action in enumerate(actions):
        for tensor in action.reads:
            readers.setdefault(tensor, []).append(index)
    found = {index for index, action in enumerate(actions) if _may_prepare(action)}
    before = -1
    while len(found) != before:
        before = len(found)
        for index in sorted(found, reverse=True):
            chunk = _chunk(actions[index])
            for i in _following(actions[index], readers):
                if actions[i].phase is not Phase.UPDATE and not (i in found and _chunk(actions[i]) == chunk):
                    found.discard(index)
        given: set[int] = set()
        for index in sorted(found):
            action = actions[index]
            read = [tensor for tensor in action.reads if not lasts[tensor]]
            if action.kind.is_communication or (read and given.issuperset(read)):
                given.update(action.writes)
            else:
                found.remove(index)
    return found


def _may_prepare(action: Action) -> bool:
    """Whether an action of a backward pass stays on its stage."""
    backward = action.phase in (Phase.BACKWARD, Phase.WEIGHT) and action.rate is Rate.MICRO_BATCH
    return backward and action.kind is not ActKind.TRANSFER


def _chunk(action: Action) -> tuple[Phase, int]:
    return action.phase, action.lap


def _following(action: Action, readers: Mapping[int, Sequence[int]]) -> Iterator[int]:
    """The actions that read what one writes."""
    for tensor in (*action.writes, *action.updates):
        yield from readers.get(tensor, ())
