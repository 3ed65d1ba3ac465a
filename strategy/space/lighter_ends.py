"""Lighter ends: fewer layers at an end of a pipeline, where what lies outside of the layers is worth some of them.

Eight layers on four places, and a head that takes as long as two and a half:

    equally many    2 2 2 2 + head    the last stage takes 4.5
    lighter         2 2 3 1 + head    3.5

Sixteen, behind three dense layers that take as long each, and ahead of a head that takes as long as four:

    equally many    dense + 4 4 4 4 + head    the stages take 7 4 4 8
    lighter         dense + 3 5 6 2 + head    6 5 6 6
"""

from __future__ import annotations

from functools import lru_cache

from strategy.graph.graph import Phase, act_rate
from strategy.graph.ops import op_definition
from strategy.layout.config import PlanConfig
from strategy.layout.layout import layer_runs
from strategy.layout.schedule import at_position
from strategy.models import Model
from strategy.passes.training import Training, training_graph
from strategy.sbp.tensor import Rate
from strategy.space.short_model import LAYERS, MIDDLE, places_of, shortened

WORTH = 0.25
"""By so many layers the fullest stage has less to do, or it is not worth to deal them out otherwise."""


def lighter_runs(model: Model, training: Training, config: PlanConfig) -> tuple[tuple[int, ...], ...]:
    """Layers at every place, with fewer and fewer at the ends, as long as the fullest stage has less to do.

    A layer goes from the end that fills it to where there is least to do; an end that gave one takes none.
    """
    places = config.pp * config.virtual_stages
    stage_of = [at_position(config.schedule, config.pp, place)[0] for place in range(places)]
    runs = list(layer_runs(model.layers, config.schedule, config.pp, config.virtual_stages))
    outside = dict(zip((0, places - 1), layers_outside(model, training), strict=True))

    def load(stage: int) -> float:
        layers = sum(run for run, at in zip(runs, stage_of, strict=True) if at == stage)
        return layers + sum(worth for place, worth in outside.items() if stage_of[place] == stage)

    found, gave = list[tuple[int, ...]](), set[int]()
    least = fullest = max(map(load, range(config.pp)))
    while ends := [end for end, worth in outside.items() if worth and runs[end] > 1 and load(stage_of[end]) == fullest]:
        gives = max(ends, key=outside.__getitem__)
        gave.add(gives)
        takes = [place for place in range(places) if place not in gave]
        if not takes:
            break
        runs[gives] -= 1
        runs[min(takes, key=lambda place: (load(stage_of[place]), runs[place], -place))] += 1
        before, fullest = fullest, max(map(load, range(config.pp)))
        if fullest > before:
            break
        if fullest <= least - WORTH:
            found.append(tuple(runs))
            least = fullest
    return tuple(found)


@lru_cache(maxsize=8)
def layers_outside(model: Model, training: Training) -> tuple[float, float]:
    """How many layers' FLOPs the ops have that are ahead of all layers, and behind; forward, 0 where layers differ."""
    short = shortened(model)
    if short is None:
        return 0.0, 0.0
    graph = training_graph(short, training)
    places, flop = places_of(graph), [0] * LAYERS
    for op in graph.ops:
        if op.phase is Phase.FORWARD and act_rate(graph, op) is Rate.MICRO_BATCH:
            inputs, outputs = (tuple(spec.expected for spec in graph.specs(side)) for side in (op.inputs, op.outputs))
            place = places[op.name]
            if op.layer == MIDDLE or (op.layer is None and place != MIDDLE):
                flop[place] += op_definition(op.kind).flop(inputs, outputs, op.attrs)
    ahead, of_layer, behind = flop
    return (ahead / of_layer, behind / of_layer) if of_layer else (0.0, 0.0)
