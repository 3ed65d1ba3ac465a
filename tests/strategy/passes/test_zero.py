"""ZeRO's pass: where the graph gets accumulators and repeats, by name."""

from __future__ import annotations

from strategy.graph.graph import Graph, Phase
from strategy.layout.layout import assign_stages
from strategy.passes.planned import planned_graph
from strategy.passes.training import Training
from strategy.sbp.placement import Placement
from strategy.sbp.tensor import Rate
from tests.support.small_plans import MODEL, config_of


def graph(stage: int, micro_batches: int = 2, frozen: tuple[str, ...] = (), pp: int = 1) -> Graph:
    training = Training(global_batch=2 * micro_batches, num_micro_batches=micro_batches, frozen=frozen)
    return planned_graph(MODEL, training, config_of(training, dp=2, pp=pp, zero_stage=stage, zero_min_size=9))


def test_stages_0_and_1_leave_the_graph_as_it_is() -> None:
    assert graph(1) == graph(0)
    assert graph(2) == graph(0)  # the accumulators are there already


def test_one_micro_batch_is_accumulated_too() -> None:
    before, after = graph(1, 1), graph(2, 1)
    added = [op for op in after.ops if op.name not in before.by_name]
    assert {op.kind for op in added} == {"accumulate"}
    names = [op.name for op in after.ops]
    for op in added:
        assert names[names.index(op.name) - 1] == after.producer[op.inputs[0]].name
        assert all(reader.phase is Phase.UPDATE for reader in after.consumers[op.name])
        assert after.values[op.name].rate is Rate.STEP
        assert after.consumers[op.inputs[0]] == (op,)
    assert "layers.0.mlp.fc1.weight:adamw" in {r.name for op in added for r in after.consumers[op.name]}


def test_a_parameter_is_repeated_before_each_use() -> None:
    found = graph(3)
    repeats = [op for op in found.ops if op.kind == "repeat"]
    weight = "layers.1.attn.proj.weight"
    assert [op.name for op in repeats if op.inputs == (weight,)] == [f"{weight}:forward", f"{weight}:backward"]
    names = [op.name for op in found.ops]
    for op in repeats:
        readers = found.consumers[op.name]
        assert readers
        assert {reader.phase for reader in readers} == {op.phase}
        assert {reader.layer for reader in readers} == {op.layer}
        between = names[names.index(op.name) + 1 : names.index(readers[0].name)]
        assert all(found.by_name[name].kind == "repeat" for name in between)
    small = [op for op in repeats if found.values[op.name].spec.size < 9]
    assert small == []


def test_a_tied_table_is_gathered_at_both_ends() -> None:
    found = graph(3, pp=2)
    forward = [op for op in found.ops if op.kind == "repeat" and op.inputs == ("token",) and op.phase is Phase.FORWARD]
    assert len(forward) == 2
    placements = tuple(Placement((2 * s, 2 * s + 1), (2, 1), ("data", "tensor")) for s in range(2))
    stages = assign_stages(found, placements)
    assert [stages.stage_of[op.name] for op in forward] == [0, 1]
    for op in found.ops:
        if op.kind == "repeat":
            assert {stages.stage_of[r.name] for r in found.consumers[op.name]} == {stages.stage_of[op.name]}


def test_frozen_parameters_are_shared_out_too() -> None:
    found = graph(3, frozen=("layers.0.*",))
    assert "layers.0.mlp.fc1.weight" not in found.updater
    assert found.consumers["layers.0.mlp.fc1.weight"][0].kind == "repeat"
