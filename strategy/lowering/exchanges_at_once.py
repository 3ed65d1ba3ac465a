"""Exchanges at once: what is exchanged once per step follows right behind the last chunk that adds to it.

A gradient that is summed up over all micro-batches is whole when its layer is done for the last time. What moves it for
the update need not wait for the layers ahead of it, nor stand behind what these exchange.

    compute       | b3 | b2   sum 3 | b1   sum 2 | sum 1        update       the last chunk of a stage, and its epilogue
    inter data    |    |            | exchange 3 | exchange 2   exchange 1
"""

from __future__ import annotations

from collections.abc import Sequence

from strategy.graph.graph import Phase
from strategy.layout.arrangement import Action, Arrangement
from strategy.sbp.tensor import Rate


def at_once(
    arrangement: Arrangement, lists: Sequence[Sequence[int]], order: Sequence[int]
) -> tuple[list[list[int]], list[int]]:
    """The lists of a stage and their order, where what the epilogue only moves comes as soon as it is whole.

    Args:
        arrangement: whose actions the lists number.
        lists: of actions, by their numbers.
        order: of the lists, each as often as it is run; the epilogue is the last.
    """
    actions = arrangement.actions
    whole = _last_written(actions, lists, order[:-1])
    behind: dict[int, dict[int, list[int]]] = {}
    moved = set[int]()
    for index in lists[order[-1]]:
        action = actions[index]
        if action.op or not action.reads or not whole.keys() >= set(action.reads):
            continue
        turn, place = max(whole[tensor] for tensor in action.reads)
        behind.setdefault(turn, {}).setdefault(place, []).append(index)
        moved.add(index)
        whole.update(dict.fromkeys(action.writes, (turn, place)))
    found, turns = [*map(list, lists)], list(order)
    for turn, inserted in behind.items():
        found.append([each for place, one in enumerate(lists[order[turn]]) for each in (one, *inserted.get(place, ()))])
        turns[turn] = len(found) - 1
    found.append([index for index in lists[order[-1]] if index not in moved])
    turns[-1] = len(found) - 1
    return found, turns


def _last_written(
    actions: Sequence[Action], lists: Sequence[Sequence[int]], order: Sequence[int]
) -> dict[int, tuple[int, int]]:
    """Tensor that chunks add to -> the last turn in which they do, and where in it."""
    found: dict[int, tuple[int, int]] = {}
    seen = set[int]()
    for turn in range(len(order) - 1, -1, -1):
        if order[turn] in seen:
            continue
        seen.add(order[turn])
        for place, index in enumerate(lists[order[turn]]):
            action = actions[index]
            if action.op and action.rate is Rate.MICRO_BATCH and action.phase is not Phase.UPDATE:
                for tensor in (*action.writes, *action.updates):
                    if found.get(tensor, (turn, -1)) <= (turn, place):
                        found[tensor] = turn, place
    return found
