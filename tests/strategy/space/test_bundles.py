"""Bundles: every value that is read is in one per stage of readers, and its moves cost what their acts do."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from strategy.passes.training import Training
from strategy.sbp.tensor import Rate
from strategy.space.bundles import bundles
from strategy.space.candidate_space import free_rules, space_of
from strategy.space.classes import classify
from strategy.space.space import SearchSpace
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
    """Acts of a micro-batch count 5, those of a step 2; a load is what arrives, on one stage the second is covered."""
    overlapping = replace(space().pipeline, overlaps=True)
    searched = replace(
        space(), pipeline=overlapping, weigh=lambda _, account: 2 if account[0].startswith(("before", "after")) else 5
    )
    ways, seen = set(), Counter[bool]()
    for one in bundles(classify(searched)):
        often = Counter[tuple[int, int]]()
        for (home, stage, covers), weights in one.moves.items():
            count = max(weights)
            expected = {-1: (0, 0, count), stage: (count, count * (covers > 0), 0)}
            assert weights == expected.get(home, (count,) * 3)
            often[home, stage] += count
            seen[covers > 0] += 1
        ways |= often.keys()
        for value, home, stage in one.instances:
            often[home, stage] -= 2 if searched.graph.values[value].rate is Rate.STEP else 5
        assert not any(often.values())
    assert {(-1, 0), (0, 0), (0, 1), (1, 0), (1, 1)} <= ways
    assert min(seen.values()) >= 4
    assert len(seen) == 2


def test_moves_count_on_both_sides_and_on_the_way_where_their_acts_do() -> None:
    """The stream between the layers of two stages: sent forward, and its gradient backward."""
    searched = space()
    counts = searched.paths.counts
    crossing = [one for one in bundles(classify(searched)) if {(0, 1, 0), (1, 0, 0)} & set(one.moves)]
    micro = {move[:2]: weights for one in crossing for move, weights in one.moves.items() if len(one.spec.shape) == 3}
    ahead, back = counts.forward_message_ns[0], counts.backward_message_ns[0]
    assert micro[0, 1] == (counts.forward_ns[0, 0], ahead, counts.forward_ns[1, 0])
    assert micro[1, 0] == (counts.backward_ns[1, 0], back, counts.backward_ns[0, 0])


def test_a_loaded_value_lives_nowhere() -> None:
    loaded = [one for one in bundles(classify(space())) if one.writer is None]
    assert loaded
    assert {home for one in loaded for _, home, _ in one.instances} == {-1}


def test_repeated_layers_are_one_bundle() -> None:
    folded, apart = bundles(classify(space())), bundles(classify(space(folded=False)))
    assert max(len(one.instances) for one in folded) >= LAYERS
    assert len(folded) < len(apart) / 2
