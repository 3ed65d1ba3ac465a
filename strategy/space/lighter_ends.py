"""Lighter ends: fewer layers at the last place of a pipeline, where what follows the layers is worth some of them.

Eight layers on four places, and a head that takes as long as two and a half:

    equally many    2 2 2 2 + head    the last stage takes 4.5
    lighter         2 2 3 1 + head    3.5
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
    """Layers at every place, with one fewer at the last place in each, as long as the fullest stage has less to do."""
    behind, places = layers_behind(model, training), config.pp * config.virtual_stages
    stage_of = [at_position(config.schedule, config.pp, place)[0] for place in range(places)]
    runs = list(layer_runs(model.layers, config.schedule, config.pp, config.virtual_stages))

    def load(stage: int) -> float:
        layers = sum(run for run, at in zip(runs, stage_of, strict=True) if at == stage)
        return layers + behind * (stage == stage_of[-1])

    found, fullest = list[tuple[int, ...]](), max(map(load, range(config.pp)))
    while runs[-1] > 1:
        runs[-1] -= 1
        runs[min(range(places - 1), key=lambda place: (load(stage_of[place]), runs[place], -place))] += 1
        left = max(map(load, range(config.pp)))
        if left > fullest - WORTH:
            break
        found.append(tuple(runs))
        fullest = left
    return tuple(found)


@lru_cache(maxsize=8)
def layers_behind(model: Model, training: Training) -> float:
    """How many layers' FLOPs the ops have that follow all layers, forward; 0 where layers are unlike."""
    short = shortened(model)
    if short is None:
        return 0.0
    graph = training_graph(short, training)
    places, flop = places_of(graph), [0, 0]
    for op in graph.ops:
        if op.phase is Phase.FORWARD and act_rate(graph, op) is Rate.MICRO_BATCH:
            inputs, outputs = (tuple(spec.expected for spec in graph.specs(side)) for side in (op.inputs, op.outputs))
            behind = op.layer is None and places[op.name] == LAYERS - 1
            if behind or op.layer == MIDDLE:
                flop[behind] += op_definition(op.kind).flop(inputs, outputs, op.attrs)
    return flop[1] / flop[0] if flop[0] else 0.0
