"""Layout memory: what values hold by the choice of their writers, on the stages that bind."""

from __future__ import annotations

from dataclasses import replace

from strategy.lowering.memory import aligned
from strategy.passes.training import Training
from strategy.sbp.sbp import B, Owner
from strategy.space.bundles import bundles
from strategy.space.candidate_space import free_rules, space_of
from strategy.space.classes import classify
from strategy.space.layout_memory import LayoutMemory
from strategy.space.space import SearchSpace
from tests.support.small_plans import MODEL, config_of, request


def space() -> SearchSpace:
    training = Training(global_batch=8, num_micro_batches=4)
    config = config_of(training, pp=2, tp=2)
    return space_of(request(4, training, model=replace(MODEL, layers=4)), config, free_rules(config))


def test_stages_lie_one_after_another_and_hold_where_they_bind() -> None:
    classes = classify(space())
    memory = LayoutMemory.of(classes, bundles(classes))
    horizon = memory.lifetimes.horizon
    every = replace(memory, binding=frozenset({0, 1}))
    for value, stage, writer in classes.homes():
        (usage,) = every.of_home(value, stage, writer)
        assert stage * horizon <= usage.begin < usage.end <= (stage + 1) * horizon
        assert len(usage.amounts) == len(writer.found.options)
        assert (every.of_home(value, stage, writer) == memory.of_home(value, stage, writer)) is (
            stage in memory.binding
        )
        assert replace(memory, binding=frozenset()).of_home(value, stage, writer) == []


def test_an_unused_copy_holds_nothing() -> None:
    classes = classify(space())
    memory = replace(LayoutMemory.of(classes, bundles(classes)), binding=frozenset({0, 1}))
    checked = 0
    for bundle in bundles(classes):
        reader, positions = bundle.readers[0]
        layout = reader.options[0].inputs[positions[0]]
        if bundle.writer is None:
            usages = memory.of_loaded(bundle, layout)
            assert all(used > 0 for usage in usages for used in usage.amounts[1:])
        else:
            usages = memory.of_copies(bundle, [layout], layout)
        assert all(usage.amounts[0] == 0 for usage in usages)
        checked += len(usages)
    assert checked


def test_what_an_owner_holds_is_shared_out() -> None:
    training = Training(global_batch=8)
    config = config_of(training, dp=2)
    searched = replace(space_of(request(2, training), config, free_rules(config)), owned=True, known={})
    classes = classify(searched)
    memory = LayoutMemory.of(classes, bundles(classes))
    checked = 0
    for value, stage, writer in classes.homes():
        (usage,) = memory.of_home(value, stage, writer)
        held = dict(zip(writer.homes, usage.amounts, strict=True))
        for layout, amount in held.items():
            whole = tuple(B if isinstance(sbp, Owner) else sbp for sbp in layout)
            if layout != whole and whole in held:
                nbytes, blocks = searched.graph.values[value].spec.nbytes, memory.lifetimes.home(value, stage).blocks
                assert amount == aligned(-(-nbytes // 2)) * blocks
                checked += 1
    assert checked
