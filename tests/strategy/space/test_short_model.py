"""Short models: three layers that stand for many, and signatures that come back to all of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.graph.signature import Signature
from strategy.models import Model, find_model
from strategy.models.gpt import GptConfig
from strategy.passes.training import Training
from strategy.sbp.sbp import Broadcast, NdSbp
from strategy.search.candidate.candidate_solve import evaluated
from strategy.space.candidate_space import free_rules, space_of
from strategy.space.deduce import deduce
from strategy.space.request import Request
from strategy.space.short_model import LAYERS, MIDDLE, expanded, multiplicities, shortened
from tests.support.small_plans import config_of, request

DEEP = GptConfig(layers=7, width=8, heads=2, sequence=4, vocabulary=16)
TRAINING = Training(global_batch=4, num_micro_batches=2)


def sides(signature: Signature) -> tuple[tuple[NdSbp, ...], ...]:
    return signature.inputs, signature.outputs, signature.updates


def asked(model: Model) -> Request:
    return request(4, TRAINING, model=model)


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "arcface-1m"])
def test_models_of_unlike_layers_are_not_shortened(name: str) -> None:
    assert shortened(find_model(name)) is None


def test_a_model_of_few_layers_is_short_already() -> None:
    assert shortened(replace(DEEP, layers=LAYERS)) is None
    assert shortened(DEEP) == replace(DEEP, layers=LAYERS)


def test_the_middle_layer_stands_for_all_but_two() -> None:
    config = config_of(TRAINING, dp=2, tp=2)
    graph = space_of(asked(replace(DEEP, layers=LAYERS)), config, free_rules(config)).graph
    counts = multiplicities(graph, DEEP.layers)
    assert set(counts.values()) == {DEEP.layers - 2}
    assert set(counts) == {op.name for op in graph.ops if op.layer == MIDDLE}


def test_signatures_come_back_to_every_layer() -> None:
    """Where all layers are laid out alike, as by a rule, the short model's layout is the deep one's."""
    config = config_of(TRAINING, dp=2, tp=2)
    spaces = [space_of(asked(replace(DEEP, layers=count)), config, config.axes) for count in (LAYERS, DEEP.layers)]
    short, deep = (deduce(one.graph, one.stages, one.converter, one.allows) for one in spaces)
    assert expanded((spaces[0].graph, short), spaces[1].graph) == deep
    assert evaluated(config, spaces[1], deep, 0).objective_ns > 0


def test_layers_that_are_mixed_in_are_laid_out_in_the_other_way() -> None:
    """What is of no layer but reads something of every one reads all as it reads those of one way."""
    config = config_of(TRAINING, dp=2, tp=2)
    short, deep = (space_of(asked(replace(DEEP, layers=count)), config, config.axes) for count in (LAYERS, DEEP.layers))
    one = deduce(short.graph, short.stages, short.converter, short.allows)
    everywhere = (Broadcast(), Broadcast())
    ways = (
        one,
        {name: Signature(*(tuple(everywhere for _ in side) for side in sides(way))) for name, way in one.items()},
    )
    alike = [expanded((short.graph, way), deep.graph) for way in ways]
    mixed = expanded((short.graph, ways[0]), deep.graph, (short.graph, ways[1]), frozenset({2, 5}))
    assert mixed is not None
    assert alike[0] is not None
    assert alike[1] is not None
    wide = {op.name for op in deep.graph.ops if op.layer is None and len(op.inputs) > 2 * LAYERS}
    assert wide
    for op in deep.graph.ops:
        assert mixed[op.name] == alike[op.layer in {2, 5}][op.name]
    assert expanded((short.graph, ways[0]), deep.graph, (short.graph, ways[1]), frozenset()) == alike[0]


def test_what_is_not_alike_is_not_expanded() -> None:
    config = config_of(TRAINING, dp=2, tp=2)
    spaces = [space_of(asked(replace(DEEP, layers=count)), config, config.axes) for count in (LAYERS, DEEP.layers)]
    short = deduce(spaces[0].graph, spaces[0].stages, spaces[0].converter, spaces[0].allows)
    strange = replace(spaces[1].graph.ops[5], name="of no layer", layer=None)
    graph = replace(spaces[1].graph, ops=(*spaces[1].graph.ops[:5], strange, *spaces[1].graph.ops[6:]))
    assert expanded((spaces[0].graph, short), graph) is None
