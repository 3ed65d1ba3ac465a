"""Layouts: stages of GPTs, homes, and the copies that readers want."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.base.errors import InputError
from strategy.graph.graph import Phase, Role
from strategy.layout.layout import Copy, assign_stages, home_of, wanted_copies
from strategy.layout.schedule import Schedule
from strategy.passes.training import Training, training_graph
from strategy.sbp.placement import Placement
from tests.support.random_graphs import every_layout, random_case
from tests.support.small_plans import MODEL, config_of, plan_by_rules, request


@pytest.mark.parametrize("count", [1, 2])
def test_stages_of_a_gpt(count: int) -> None:
    graph = training_graph(MODEL, Training(global_batch=4, num_micro_batches=2))
    placements = tuple(Placement((s,), (1, 1), ("data", "tensor")) for s in range(count))
    stages = assign_stages(graph, placements)
    for op in graph.ops:
        if op.layer is not None:
            assert stages.stage_of[op.name] == op.layer * count // MODEL.layers, op.name
        assert stages.placement(op.name) == placements[stages.stage_of[op.name]]
    assert (stages.stage_of["embed"], stages.stage_of["logits"]) == (0, count - 1)
    forward = [stages.stage_of[op.name] for op in graph.ops if op.phase is Phase.FORWARD]
    assert forward == sorted(forward)
    assert stages.stage_of["token:adamw"] == 0
    assert stages.stage_of["norm.weight:adamw"] == count - 1


@pytest.mark.parametrize("seed", range(12))
def test_every_reader_has_its_copy(seed: int) -> None:
    case = random_case(seed, stages=1 + seed % 2, most=6)
    for priced in every_layout(case):
        signatures = priced.layout.signatures
        wanted = wanted_copies(case.graph, case.stages, signatures)
        made = {conversion.copy for conversion in priced.layout.conversions}
        for op in case.graph.ops:
            for name, nd_sbp in zip(op.inputs, signatures[op.name].inputs, strict=True):
                copy = Copy(name, case.stages.stage_of[op.name], nd_sbp)
                home = home_of(case.graph, case.stages, signatures, name)
                assert op in wanted[copy]
                is_there = home is None or (home.stage, home.layout) == (copy.stage, copy.layout)
                assert is_there != (copy in made)
                assert (home is None) == (case.graph.values[name].role is Role.INPUT)


def test_a_value_is_transferred_once_for_readers_of_one_layout() -> None:
    training = Training(global_batch=4, num_micro_batches=2)
    plan = plan_by_rules(request(2, training), config_of(training, pp=2), ("data", "tensor"))
    copies = [conversion.copy for conversion in plan.layout.conversions]
    assert len(copies) == len(set(copies))
    assert copies


@pytest.mark.parametrize(
    ("schedule", "laps", "stage_of_layer"),
    [
        (Schedule.INTERLEAVED, 2, [0, 1, 0, 1]),
        (Schedule.ZBV, 2, [0, 1, 1, 0]),
        (Schedule.ONE_F_ONE_B, 1, [0, 0, 1, 1]),
    ],
)
def test_virtual_stages_of_a_gpt(schedule: Schedule, laps: int, stage_of_layer: list[int]) -> None:
    model = replace(MODEL, layers=4)
    graph = training_graph(model, Training(global_batch=4, num_micro_batches=2))
    placements = tuple(Placement((s,), (1, 1), ("data", "tensor")) for s in range(2))
    stages = assign_stages(graph, placements, schedule=schedule, laps=laps)
    for op in graph.ops:
        if op.layer is not None:
            assert stages.stage_of[op.name] == stage_of_layer[op.layer], op.name
            assert stages.lap_of(op.name) == op.layer * laps // 4, op.name
    last = stage_of_layer[-1], laps - 1
    assert (stages.stage_of["logits"], stages.lap_of("logits")) == last
    assert (stages.stage_of["logits:dx"], stages.lap_of("logits:dx")) == last


def test_pins_name_virtual_stages() -> None:
    model = replace(MODEL, layers=4)
    graph = training_graph(model, Training(global_batch=4))
    placements = tuple(Placement((s,), (1, 1), ("data", "tensor")) for s in range(2))
    pins = {"layers.0.*": 0, "layers.1.*": 0, "layers.2.*": 0, "layers.3.*": 3}
    stages = assign_stages(graph, placements, pins=pins, schedule=Schedule.ZBV, laps=2)
    op = "layers.2.mlp.fc1.matmul"
    assert [stages.stage_of[op.replace("2", f"{layer}", 1)] for layer in range(4)] == [0, 0, 0, 0]
    assert [stages.lap_of(op.replace("2", f"{layer}", 1)) for layer in range(4)] == [0, 0, 0, 1]
    with pytest.raises(InputError, match="no such stage"):
        assign_stages(graph, placements, pins={"layers.0.*": 4}, schedule=Schedule.ZBV, laps=2)
    with pytest.raises(InputError, match="against the pipeline"):
        assign_stages(graph, placements, pins={"layers.1.*": 3, "layers.2.*": 1}, schedule=Schedule.ZBV, laps=2)
