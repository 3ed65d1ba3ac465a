"""Made in time: what computation makes of gathered parameters once per step comes right before what reads it.

A cast of what was gathered waits for that. At the start of a step it would hold up the first chunk until all parameters
of the stage are there, those of its last lap too. What is gathered again of the cast is so a layer ahead, and then all
that layers read is: at the start it would hold up what comes of the first cast on the same links.

    compute       | cast 1  f1 | cast 2  f2 | cast 3  f3        f1, f2, f3   forward passes of laps
    inter data    gather 1 | gather 2 | gather 3

Where nothing is gathered of a cast, what is gathered again stays right behind what it is made of: behind all of the
prologue, the first parameter would be there when the last one is.
"""

from __future__ import annotations

from collections.abc import Sequence

from strategy.layout.arrangement import Action, Arrangement
from strategy.program.program import ActKind

Place = tuple[int, int]
"""A turn in the order of a stage, and where in its list."""


def made_in_time(
    arrangement: Arrangement, lists: Sequence[Sequence[int]], order: Sequence[int], layers: Sequence[int | None]
) -> tuple[list[list[int]], list[int]]:
    """The lists of a stage and their order, where what waits for gathers of the prologue stands before its reader.

    Args:
        arrangement: whose actions the lists number.
        lists: of actions, by their numbers.
        order: of the lists, each as often as it is run; the prologue is the first.
        layers: of every action; None where it is of none.
    """
    actions, prologue = arrangement.actions, lists[order[0]]
    used = _first_used(actions, lists, order)
    before: dict[int, dict[int, list[int]]] = {}
    moved = set[int]()
    for index in reversed(_waiting(actions, prologue)):
        places = [used[tensor] for tensor in actions[index].writes if tensor in used]
        if not places:
            continue
        turn, place = min(places)
        if _moves(actions[index]):
            turn, place = _a_layer_ahead(lists, order, layers, (turn, place))
        before.setdefault(turn, {}).setdefault(place, []).insert(0, index)
        moved.add(index)
        for tensor in actions[index].reads:
            used[tensor] = min(used.get(tensor, (turn, place)), (turn, place))
    found, turns = [*map(list, lists)], list(order)
    for turn, inserted in before.items():
        found.append([each for place, one in enumerate(lists[order[turn]]) for each in (*inserted.get(place, ()), one)])
        turns[turn] = len(found) - 1
    if moved:
        found.append([index for index in prologue if index not in moved])
        turns[0] = len(found) - 1
    return found, turns


def _waiting(actions: Sequence[Action], prologue: Sequence[int]) -> list[int]:
    """What reads gathered parameters, and what reads that in turn; but not what another stage waits for.

    And where something is gathered of that, all that is gathered along the same axes, but for what it is made of: in
    the prologue, parameters of the last layers would come before what is gathered so for the first.
    """
    gathered, made = set[int](), set[int]()
    found, sent = [], set[int]()
    for index in prologue:
        action = actions[index]
        if action.kind is ActKind.TRANSFER:
            sent.update(action.reads)
        elif not made.isdisjoint(action.reads) or not gathered.isdisjoint(action.reads):
            made.update(action.writes)
            found.append(index)
        elif _moves(action):
            gathered.update(action.writes)
    for index in reversed(found):
        if not sent.isdisjoint(actions[index].writes):
            sent.update(actions[index].reads)
    kept = [index for index in found if sent.isdisjoint(actions[index].writes)]
    computed = _made_of_computed(actions, kept)
    if not any(_moves(actions[index]) for index in computed):
        return computed
    ahead = {_axes(actions[index]) for index in kept if _moves(actions[index])}
    sources = {tensor for index in kept for tensor in actions[index].reads} | sent
    gathers = [index for index in prologue if _moves(actions[index]) and _axes(actions[index]) in ahead]
    moved = {*kept, *(index for index in gathers if sources.isdisjoint(actions[index].writes))}
    return [index for index in prologue if index in moved]


def _made_of_computed(actions: Sequence[Action], found: Sequence[int]) -> list[int]:
    """What computes, of some actions in order, and what reads that in turn."""
    made, computed = set[int](), list[int]()
    for index in found:
        action = actions[index]
        if not _moves(action) or not made.isdisjoint(action.reads):
            made.update(action.writes)
            computed.append(index)
    return computed


def _moves(action: Action) -> bool:
    """Whether an action runs beside computation, on a stream of its own."""
    return action.kind.is_communication or action.kind is ActKind.COPY


def _axes(action: Action) -> tuple[int, ...]:
    """Along which it goes, so that it is on the stream of others that do."""
    return () if action.step is None else tuple(action.step.axes)


def _a_layer_ahead(
    lists: Sequence[Sequence[int]], order: Sequence[int], layers: Sequence[int | None], use: Place
) -> Place:
    """Where the layer ahead of that of an act begins, behind the prologue."""
    layer, changes, found = layers[lists[order[use[0]]][use[1]]], 0, use
    for turn in range(use[0], 0, -1):
        acts = lists[order[turn]]
        for place in range(use[1] if turn == use[0] else len(acts) - 1, -1, -1):
            here = layers[acts[place]]
            if here is not None and here != layer:
                layer, changes = here, changes + 1
            if changes > 1:
                return found
            found = turn, place
    return found


def _first_used(actions: Sequence[Action], lists: Sequence[Sequence[int]], order: Sequence[int]) -> dict[int, Place]:
    """Tensor -> the first turn behind the prologue in which it is used, and where in it."""
    found: dict[int, Place] = {}
    seen = set[int]()
    for turn, number in enumerate(order):
        if not turn or number in seen:
            continue
        seen.add(number)
        for place, index in enumerate(lists[number]):
            for tensor in (*actions[index].reads, *actions[index].updates):
                found.setdefault(tensor, (turn, place))
    return found
