"""A graph as text, and what a pass made of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from strategy.graph.graph import Graph
from strategy.models.gpt import GptConfig
from strategy.passes.dump import PassDump, difference, graph_text
from strategy.passes.mixed_precision import Precision
from strategy.passes.planned import planned_graph
from strategy.passes.training import Training
from tests.support.small_plans import config_of

MODEL = GptConfig(layers=1, width=8, heads=2, sequence=4, vocabulary=16)


def passes(training: Training) -> dict[str, Graph]:
    found: dict[str, Graph] = {}
    planned_graph(MODEL, training, config_of(training), found.__setitem__)
    return found


def test_an_op_has_a_line_that_says_what_it_reads_and_writes() -> None:
    graph = passes(Training(2))["training"]
    lines = graph_text(graph).splitlines()
    assert len(lines) == len(graph.ops) + sum(value.role != "computed" for value in graph.values.values())
    assert "input  ids: int32[2,4]" in lines
    assert "variable  layers.0.mlp.fc1.weight: float32[8,32] per step" in lines
    product = "layers.0.norm2.norm: float32[2,4,8], layers.0.mlp.fc1.weight: float32[8,32] per step"
    assert f"forward  layers.0.mlp.fc1.matmul = matmul({product}) -> float32[2,4,32]" in lines
    update = next(line for line in lines if line.startswith("update  token:adamw = adamw("))
    assert update.endswith(" updates token, token:m, token:v")


def test_the_passes_come_in_order_and_only_those_that_are_asked_for() -> None:
    assert list(passes(Training(2))) == ["forward", "training"]
    assert list(passes(Training(2, precision=Precision.BF16))) == ["forward", "mixed_precision", "training"]


def test_a_difference_says_what_came_went_and_changed() -> None:
    found = passes(Training(2, precision=Precision.BF16))
    counts, *lines = difference(found["forward"], found["mixed_precision"]).splitlines()
    casts = len(found["mixed_precision"].ops) - len(found["forward"].ops)
    assert counts.startswith(f"{casts} ops added, 0 removed, ")
    weight = "layers.0.mlp.fc1.weight"
    cast = f"{weight}:bfloat16 = cast({weight}: float32[8,32] per step, dtype=bfloat16) -> bfloat16[8,32] per step"
    assert f"+ forward  {cast}" in lines
    assert f"~ layers.0.mlp.fc1.matmul: reads {weight}, now {weight}:bfloat16" in lines
    assert ": layers.0.mlp.fc1.matmul: float32[2,4,32], now bfloat16[2,4,32]" in lines
    assert {line[0] for line in lines} == set("+~:")
    back = difference(found["mixed_precision"], found["forward"]).splitlines()
    assert f"- forward  {cast}" in back


def test_every_kind_of_change_of_an_op_is_told() -> None:
    graph = passes(Training(2))["forward"]
    op = graph.by_name["layers.0.mlp.gelu"]
    for changed, told in (
        (replace(op, kind="relu"), "does gelu, now relu"),
        (replace(op, inputs=("ids", *op.inputs)), f"reads {op.inputs[0]}, now ids, {op.inputs[0]}"),
        (replace(op, attrs={"a": 1}), "has {}, now {'a': 1}"),
        (replace(op, updates=("token",)), "updates nothing, now token"),
    ):
        other = replace(graph, ops=tuple(changed if one is op else one for one in graph.ops))
        counts, *lines = difference(graph, other).splitlines()
        assert lines == [f"~ {op.name}: {told}"]
        assert counts == "0 ops added, 0 removed, 1 rewired; 0 values changed"
    assert difference(graph, graph).splitlines() == ["0 ops added, 0 removed, 0 rewired; 0 values changed"]


def test_files_are_numbered(tmp_path: Path) -> None:
    training = Training(2, precision=Precision.FP16)
    planned_graph(MODEL, training, config_of(training), PassDump(tmp_path))
    forward, mixed, whole = sorted(tmp_path.iterdir())
    assert [path.name for path in (forward, mixed, whole)] == [
        "1-forward.txt",
        "2-mixed_precision.txt",
        "3-training.txt",
    ]
    found = passes(training)
    assert forward.read_text() == graph_text(found["forward"])
    assert mixed.read_text().startswith("since forward: ")
    assert mixed.read_text().endswith(f"\n\n{graph_text(found['mixed_precision'])}")
    assert "+ forward  loss:scaled = mul(loss: float32[], loss:scale: float32[] per step)" in whole.read_text()
