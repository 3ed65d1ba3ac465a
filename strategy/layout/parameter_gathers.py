"""Parameter gathers: the collectives of a micro-batch that bring together parameters which are shared out.

They read nothing that the micro-batch gives, and so may be done before it comes to them.

    w (parts) -> repeat -> all-gather | x = f(w)
    variable     gathers              | layer
"""

from __future__ import annotations

from strategy.graph.graph import Graph, Phase, Role
from strategy.layout.arrangement import Action, Arrangement
from strategy.program.program import ActKind
from strategy.sbp.tensor import Rate


def gathers(graph: Graph, arrangement: Arrangement) -> frozenset[int]:
    """The numbers of the collectives, and of what they follow in the same chunk."""
    parameters = of_parameters(graph)
    wanted: set[int] = set()
    found = []
    for index in range(len(arrangement.actions) - 1, -1, -1):
        action = arrangement.actions[index]
        if not _is_of_chunk(action) or arrangement.tensors[action.writes[0]].value not in parameters:
            continue
        if action.kind.is_communication or not wanted.isdisjoint(action.writes):
            wanted.update(action.reads)
            found.append(index)
    return frozenset(found)


def of_parameters(graph: Graph) -> frozenset[str]:
    """Variables, and what is made of them alone."""
    found = {value.name for value in graph.with_role(Role.VARIABLE)}
    for op in graph.ops:
        if op.inputs and op.phase is not Phase.UPDATE and found.issuperset(op.inputs):
            found.update(op.outputs)
    return frozenset(found)


def _is_of_chunk(action: Action) -> bool:
    """Whether an action is done for every micro-batch, on the stage where it is."""
    often = action.rate is Rate.MICRO_BATCH and action.phase is not Phase.UPDATE
    return often and action.kind is not ActKind.TRANSFER and bool(action.writes)
