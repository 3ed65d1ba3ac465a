"""Stage order: all actions of a stage in one order, of which each of its streams takes its own.

On each stage the step runs as

    prologue   step-rate acts before the first forward (copies of parameters)
    chunks     forward and backward passes of the micro-batches, lap by lap, in the order of the schedule
    epilogue   the update

What takes the result of an exchange of gradients (a cast, a sum over micro-batches) is postponed, where collectives run
beside computation, until another layer is done: else computation would stand still for as long as the exchange takes.

    compute    | b2    | b1     take 2 | f1   take 1 | f2        b2, b1   backward pass of layers 2 and 1
    inter          | exchange 2 | exchange 1 |                   f1, f2   forward pass of the next chunk

The gradient of one layer is held for the time of another, in exchange. A chunk of the same passes as the one before
does not come in between: its own exchange would need the memory that is taken from, and what waits for that, this one.
So the order is one in which a stage could do one action after another, and no stream waits for what comes behind.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from itertools import groupby

from strategy.graph.graph import Graph, Phase
from strategy.layout.arrangement import Action, Arrangement, Pipeline
from strategy.layout.gradient_exchange import takers
from strategy.layout.schedule import chunk_order
from strategy.sbp.tensor import Rate

PROLOGUE, EPILOGUE = "prologue", "epilogue"

Part = Hashable
"""What a stage does as a whole: the prologue, the chunk of a phase and a lap, or the epilogue."""


def part_of(action: Action) -> Part:
    """The part that an action belongs to."""
    if action.phase is Phase.UPDATE:
        return EPILOGUE
    return PROLOGUE if action.rate is Rate.STEP else (action.phase, action.lap)


def stage_order(
    graph: Graph, arrangement: Arrangement, pipeline: Pipeline, stages: int
) -> Iterator[tuple[list[list[int]], list[int]]]:
    """Stage by stage: lists of actions, by their numbers, and these lists in order, each as often as it is run."""
    taking = takers(graph, arrangement) if pipeline.overlaps else frozenset[int]()
    staged: list[dict[Part, list[int]]] = [{} for _ in range(stages)]
    for index, action in enumerate(arrangement.actions):
        staged[action.stage].setdefault(part_of(action), []).append(index)
    layers = [graph.by_name[action.op].layer if action.op else None for action in arrangement.actions]
    for stage, parts in enumerate(staged):
        runs = {part: _layer_runs(indices, layers, taking) for part, indices in parts.items()}
        yield _with_postponed([part for part in _parts_in_order(pipeline, stages, stage) if part in parts], runs)


def _parts_in_order(pipeline: Pipeline, stages: int, stage: int) -> Iterator[Part]:
    yield PROLOGUE
    for chunk in chunk_order(pipeline.schedule, stages, stage, pipeline.num_micro_batches, pipeline.laps):
        yield chunk.phase, chunk.lap
    yield EPILOGUE


_Run = tuple[list[int], list[int]]
"""Actions of a layer: those at once, and those that are postponed."""


def _with_postponed(order: Sequence[Part], runs: dict[Part, list[_Run]]) -> tuple[list[list[int]], list[int]]:
    """The parts of a stage in order; what the last run of one postpones comes behind the first run of the next."""
    lists: list[list[int]] = []
    known: dict[tuple[Part, Part, Part], int] = {}
    numbers = []
    for before, part, after in zip((None, *order), order, (*order[1:], None), strict=False):
        key = _left_over(before, part), part, _left_over(part, after)
        if key not in known:
            known[key] = len(lists)
            waiting = runs[key[0]][-1][1] if key[0] is not None else []
            found: list[int] = []
            for at_once, later in runs[part]:
                found += at_once
                found += waiting
                waiting = later
            lists.append(found if key[2] is not None else found + waiting)
        numbers.append(known[key])
    return lists, numbers


def _left_over(part: Part | None, following: Part | None) -> Part | None:
    """The part, if what it postpones last comes within the one that follows."""
    return None if part == following or following in (None, EPILOGUE) else part


def _layer_runs(indices: Sequence[int], layers: Sequence[int | None], taking: frozenset[int]) -> list[_Run]:
    """The actions of a part, layer by layer; what is of none belongs to the layer ahead of it, or to the first."""
    of_layer: list[tuple[int | None, int]] = []
    layer = next((layers[index] for index in indices if layers[index] is not None), None)
    for index in indices:
        layer = layer if layers[index] is None else layers[index]
        of_layer.append((layer, index))
    found = []
    for _, run in groupby(of_layer, key=lambda pair: pair[0]):
        members = [index for _, index in run]
        found.append(([i for i in members if i not in taking], [i for i in members if i in taking]))
    return found
