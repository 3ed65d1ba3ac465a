"""Bundles: every value that is read is in one per stage of readers, and its moves are counted as often as it moves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.passes.training import Training
from strategy.search.candidate.candidates import free_rules, space_of
from strategy.search.layouts.bundles import bundles
from strategy.search.layouts.classes import classify
from strategy.search.layouts.space import SearchSpace
from tests.support.small_plans import MODEL, config_of, request

LAYERS = 6


def space(*, folded: bool = True) -> SearchSpace:
    training = Training(global_batch=8, num_micro_batches=4)
    config = config_of(training, pp=2, tp=2)
    asked = request(4, training, model=replace(MODEL, layers=LAYERS))
    return space_of(asked, config, free_rules(config), folded=folded)


@pytest.mark.parametrize("folded", [True, False])
def test_every_value_is_in_one_bundle_per_stage_of_readers(folded: bool) -> None:
    searched = space(folded=folded)
    graph, stage_of = searched.graph, searched.stages.stage_of
    found = [(value, stage) for one in bundles(classify(searched)) for value, _, stage in one.instances]
    read = {(value, stage_of[op.name]) for op in graph.ops for value in op.inputs}
    assert len(found) == len(read)
    assert set(found) == read


def test_moves_are_counted_as_often_as_values_move() -> None:
    searched = space()
    for one in bundles(classify(searched)):
        times = [searched.times(searched.graph.values[value].rate) for value, *_ in one.instances]
        assert sum(one.moves.values()) == sum(times)
        assert {(home, stage) for _, home, stage in one.instances} == set(one.moves)


def test_a_loaded_value_lives_nowhere() -> None:
    loaded = [one for one in bundles(classify(space())) if one.writer is None]
    assert loaded
    assert {home for one in loaded for _, home, _ in one.instances} == {-1}


def test_repeated_layers_are_one_bundle() -> None:
    folded, apart = bundles(classify(space())), bundles(classify(space(folded=False)))
    assert max(len(one.instances) for one in folded) >= LAYERS
    assert len(folded) < len(apart) / 2
