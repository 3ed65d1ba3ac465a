"""Stage order: all actions of a stage in one order, of which each of its streams takes its own.

On each stage the step runs as

    prologue   step-rate acts before the first forward (copies of parameters)
    chunks     forward and backward passes of the micro-batches, lap by lap, in the order of the schedule
    epilogue   the update

Where collectives run beside computation, what takes the result of an exchange of gradients (a cast, a sum over
micro-batches) is postponed until another layer is done, and parameters are gathered a layer earlier: else computation
would stand still for as long as these take.

    compute       | b3         | b2   take 3 | b1   take 2 | f1   take 1    b3, b2, b1   backward pass of layers
    inter data    | exchange 3, gather 2     | exchange 2, gather 1 |       f1           forward pass of the next chunk

What a layer gathers half way through is gathered half way through the layer ahead, so that the parameters of one layer
are held in exchange, at any time, and the gradients of one layer, or two. A forward pass exchanges none, so that those
of the chunk before have all of it to come in, and are taken at its end. In a chunk of one layer after one of the same
passes, or after that and forward passes, what an exchange gave is taken right before it is given again; parameters are
not gathered for it earlier, for the one before may still read them. What is exchanged once per step comes as soon as it
is whole (`exchanges_at_once`), what is made of parameters that are gathered once per step as late as it may
(`made_in_time`). So the order is one in which a stage could do one action after another, and no stream
waits for what comes behind.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from strategy.graph.graph import Graph, Phase
from strategy.layout.arrangement import Action, Arrangement, Pipeline
from strategy.layout.gradient_exchange import takers
from strategy.layout.parameter_gathers import gathers
from strategy.layout.schedule import chunk_order
from strategy.lowering.exchanges_at_once import at_once
from strategy.lowering.made_in_time import made_in_time
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
    advanced = gathers(graph, arrangement) if pipeline.overlaps else frozenset[int]()
    postponed = _postponed(graph, arrangement, advanced) if pipeline.overlaps else frozenset[int]()
    staged: list[dict[Part, list[int]]] = [{} for _ in range(stages)]
    for index, action in enumerate(arrangement.actions):
        staged[action.stage].setdefault(part_of(action), []).append(index)
    layers = [graph.by_name[action.op].layer if action.op else None for action in arrangement.actions]
    for stage, parts in enumerate(staged):
        runs = {part: _layer_runs(arrangement, each, layers, advanced, postponed) for part, each in parts.items()}
        lists, order = _interleaved([part for part in _parts_in_order(pipeline, stages, stage) if part in parts], runs)
        if pipeline.overlaps and PROLOGUE in parts:
            lists, order = made_in_time(arrangement, lists, order, layers)
        if pipeline.overlaps and EPILOGUE in parts:
            lists, order = at_once(arrangement, lists, order)
        yield lists, order


def _postponed(graph: Graph, arrangement: Arrangement, advanced: frozenset[int]) -> frozenset[int]:
    """What takes the results of exchanges; nothing where that is the backward pass itself.

    A pass that reads nothing but copies from the host prepares the update and nothing else. Then others wait for what
    it makes, or it reads parameters.
    """
    found = takers(graph, arrangement)
    made = {tensor for index in found for tensor in arrangement.actions[index].writes}
    gathered = {tensor for index in advanced for tensor in arrangement.actions[index].writes}
    for index, action in enumerate(arrangement.actions):
        watched = gathered if index in found else made
        if action.phase is not Phase.UPDATE and not watched.isdisjoint(action.reads):
            return frozenset()
    return found


def _parts_in_order(pipeline: Pipeline, stages: int, stage: int) -> Iterator[Part]:
    yield PROLOGUE
    for chunk in chunk_order(pipeline.schedule, stages, stage, pipeline.num_micro_batches, pipeline.laps):
        yield chunk.phase, chunk.lap
    yield EPILOGUE


@dataclass(frozen=True, slots=True)
class _Run:
    """Actions of a layer: those that may come a layer earlier, those in between, and those that come a layer later.

    The first two with how far through the layer they stand, from 0 to 1, the last with what gives them what they take.
    """

    ahead: tuple[tuple[float, int], ...]
    now: tuple[tuple[float, int], ...]
    later: Mapping[int, int]


def _interleaved(order: Sequence[Part], runs: dict[Part, list[_Run]]) -> tuple[list[list[int]], list[int]]:
    """The parts of a stage in order; what runs at both ends advance and postpone comes within other parts."""
    lists: list[list[int]] = []
    known: dict[tuple[Part, ...], int] = {}
    numbers = []
    taken_from: dict[int, Part] = {}
    for at, part in enumerate(order):
        before, after = order[at - 1] if at else None, order[at + 1] if at + 1 < len(order) else None
        behind, in_front = _gathers_before(before, part, runs), _gathers_before(part, after, runs)
        takes_at = _takes_at(order, at, runs)
        if takes_at != at:
            taken_from[takes_at] = part
        key = behind, part, after if in_front else None, taken_from.get(at), takes_at != at
        if key not in known:
            known[key] = len(lists)
            waiting: Mapping[int, int] = runs[taken_from[at]][-1].later if at in taken_from else {}
            found = [] if behind else [index for _, index in runs[part][0].ahead]
            following = [run.ahead for run in runs[part][1:]]
            following.append(runs[after][0].ahead if in_front and after is not None else ())
            at_end: Mapping[int, int] = {}
            if not any(run.later for run in runs[part]):
                waiting, at_end = at_end, waiting
            for run, next_ahead in zip(runs[part], following, strict=True):
                acts = _by_place(next_ahead, run.now)
                found += _taken_first(waiting, acts) if waiting == run.later else [*acts, *waiting]
                waiting = run.later
            lists.append([*found, *at_end] if takes_at != at else [*found, *waiting, *at_end])
        numbers.append(known[key])
    return lists, numbers


def _by_place(ahead: Sequence[tuple[float, int]], now: Sequence[tuple[float, int]]) -> list[int]:
    """Actions of two layers by how far through these they stand, of equal ones those ahead first."""
    ranked = [(place, kind, index) for kind, each in enumerate((ahead, now)) for place, index in each]
    return [index for _, _, index in sorted(ranked)]


def _taken_first(waiting: Mapping[int, int], acts: Sequence[int]) -> list[int]:
    """Acts in order, each behind what takes what it gave before."""
    takers: dict[int, list[int]] = {}
    for taker, giver in waiting.items():
        takers.setdefault(giver, []).append(taker)
    found = [taker for taker, giver in waiting.items() if giver not in acts]
    return found + [index for act in acts for index in (*takers.get(act, ()), act)]


def _gathers_before(part: Part | None, after: Part | None, runs: Mapping[Part, Sequence[_Run]]) -> bool:
    """Whether what the first run of the second part advances comes within the first part."""
    if part in (None, PROLOGUE) or after in (None, EPILOGUE):
        return False
    return part != after or len(runs[after]) > 1


def _takes_at(order: Sequence[Part], at: int, runs: Mapping[Part, Sequence[_Run]]) -> int:
    """Where in the order that comes which the last run of a part postpones: there, or behind it."""
    part, behind = order[at], order[at + 1 : at + 3]
    if not runs[part][-1].later or not behind or EPILOGUE in (part, behind[0]) or part == PROLOGUE:
        return at
    passes_over = len(runs[part]) == 1 and behind[1:] == [part] and not any(run.later for run in runs[behind[0]])
    return at + 2 if passes_over else at + 1


def _layer_runs(
    arrangement: Arrangement,
    indices: Sequence[int],
    layers: Sequence[int | None],
    advanced: frozenset[int],
    postponed: frozenset[int],
) -> list[_Run]:
    """The actions of a part, layer by layer; what is of none belongs to the layer ahead of it, or to the first."""
    of_layer: list[tuple[int | None, int]] = []
    layer = next((layers[index] for index in indices if layers[index] is not None), None)
    for index in indices:
        layer = layer if layers[index] is None else layers[index]
        of_layer.append((layer, index))
    found = []
    for _, run in groupby(of_layer, key=lambda pair: pair[0]):
        members = [index for _, index in run]
        placed = [(at / len(members), index) for at, index in enumerate(members)]
        ahead = tuple(pair for pair in placed if pair[1] in advanced)
        now = tuple(pair for pair in placed if pair[1] not in advanced and pair[1] not in postponed)
        found.append(_Run(ahead, now, _givers(arrangement, members, postponed)))
    return found


def _givers(arrangement: Arrangement, members: Sequence[int], postponed: frozenset[int]) -> Mapping[int, int]:
    """What is postponed -> the first act that is not, of those that it follows from, or others that wait with it.

    Itself where it follows from another layer.
    """
    written: dict[int, int] = {}
    found: dict[int, int] = {}
    for index in members:
        action = arrangement.actions[index]
        if index in postponed:
            givers = {found.get(written[tensor], written[tensor]) for tensor in action.reads if tensor in written}
            first = min(givers, default=index)
            found |= {other: first for other, giver in found.items() if giver in givers}
            found[index] = first
        written.update(dict.fromkeys(action.writes, index))
    return found
