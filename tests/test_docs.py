"""What the documents say is so: the guide is followed to the letter, and every test that is named exists."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from strategy.cost.cost import op_features
from strategy.cost.data_sheet import data_sheet
from strategy.graph.graph import Graph, Op
from strategy.graph.ops import REGISTRY
from strategy.graph.signature import Signature, op_signatures
from strategy.layout.config import PlanConfig, Recompute
from strategy.passes.mixed_precision import mixed_precision
from strategy.passes.planned import planned_graph
from strategy.passes.recompute import recompute
from strategy.passes.training import Training, evaluation_graph, training_graph
from strategy.passes.zero_layouts import zero_filter
from strategy.sbp.tensor import DType
from tests.support.small_plans import MODEL, cluster, config_of

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs" / "adding_an_op.md").read_text()
COVERAGE = (ROOT / "docs" / "coverage.md").read_text()
PACKAGES = ("strategy", "simulator", "executor", "experiments")


def blocks(language: str) -> list[str]:
    """The fenced blocks of the guide in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the house to which the guide's op has been added, which is one file."""
    folder = tmp_path_factory.mktemp("house")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    (path,) = re.findall(r"^`(strategy/graph/ops/\w+\.py)`:$", GUIDE, re.MULTILINE)
    (source,) = blocks("python")
    (folder / path).write_text(source)
    assert blocks("diff") == [], "one file is all"
    return folder


def test_the_guide_adds_an_op_that_passes_the_check(house: Path) -> None:
    (command,) = blocks("sh")
    program, *words = command.split()
    assert program == "sbplan"
    done = subprocess.run(
        [sys.executable, "-P", "-m", "experiments", *words, "--json"],
        cwd=house,
        env={**os.environ, "PYTHONPATH": str(house)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["ok"]
    assert [kind["kind"] for kind in found["kinds"]] == words[2:]
    assert all(kind["listed"] >= 18 and kind["uneven"] and kind["unlisted"] for kind in found["kinds"])
    assert found["kinds"][0]["gradients"] == 1


def test_the_op_of_the_guide_is_clean(house: Path) -> None:
    path = "strategy/graph/ops/softplus.py"
    for check in (["ruff", "check"], ["ruff", "format", "--check"]):
        config = ["--config", str(ROOT / "pyproject.toml")]
        done = subprocess.run(
            [sys.executable, "-m", *check, *config, str(house / path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture
def softplus(house: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Graph], Graph]:
    """Puts the guide's op, which is known by its file alone, in the place of `gelu`."""
    spec = importlib.util.spec_from_file_location("softplus", house / "strategy" / "graph" / "ops" / "softplus.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for definition in module.OPS:
        monkeypatch.setitem(REGISTRY, definition.kind, definition)  # type: ignore[arg-type]
    instead = {"gelu": "softplus", "gelu_grad": "softplus_grad"}
    return lambda graph: replace(graph, ops=tuple(replace(op, kind=instead.get(op.kind, op.kind)) for op in graph.ops))


TRAINING = Training(4, num_micro_batches=2)


def test_the_op_of_the_guide_costs_the_bytes_that_it_moves(softplus: Callable[[Graph], Graph]) -> None:
    graph = softplus(training_graph(MODEL, TRAINING))
    for op in graph.ops:
        if op.kind.startswith("softplus"):
            features = op_features(graph, op, op_signatures(graph, op, (2, 1))[0], (2, 1))
            assert features.flop > 0
            assert features.product is None
            assert data_sheet(cluster(2, backend="cupy"), features).s_per_flop == 0
            assert data_sheet(cluster(2, backend="cupy"), features).s_per_byte > 0


def test_the_op_of_the_guide_computes_in_float32_between_products_in_halves(softplus: Callable[[Graph], Graph]) -> None:
    graph = mixed_precision(softplus(evaluation_graph(MODEL, TRAINING)), DType.BFLOAT16)
    found = [op for op in graph.ops if op.kind == "softplus"]
    assert len(found) == MODEL.layers
    for op in found:
        assert [graph.values[name].spec.dtype for name in (*op.inputs, *op.outputs)] == [DType.FLOAT32] * 2
        (cast,) = graph.consumers[op.outputs[0]]
        (product,) = graph.consumers[cast.outputs[0]]
        assert (cast.kind, product.kind) == ("cast", "matmul")


def test_the_op_of_the_guide_is_recomputed_with_its_layer(softplus: Callable[[Graph], Graph]) -> None:
    graph = softplus(training_graph(MODEL, TRAINING))
    full, selective = (recompute(graph, kind) for kind in (Recompute.FULL, Recompute.SELECTIVE))
    assert sum(op.kind == "softplus" and bool(op.repeats) for op in full.ops) == MODEL.layers
    assert not any(op.kind == "softplus" and op.repeats for op in selective.ops), "it is outside of attention"


def test_zero_gathers_a_parameter_before_the_op_of_the_guide(softplus: Callable[[Graph], Graph]) -> None:
    config = config_of(TRAINING, dp=2, zero_stage=3, zero_min_size=9)
    graph = softplus(planned_graph(MODEL, TRAINING, config))
    op = next(op for op in graph.ops if op.kind == "softplus")
    parameter = next(op.outputs[0] for op in graph.ops if op.kind == "repeat")
    assert len(kept(graph, config, op)) == len(op_signatures(graph, op, (2, 1))), "activations are free"
    reads = replace(op, inputs=(parameter,))
    assert {str(one.inputs[0][0]) for one in kept(graph, config, reads)} == {"B"}


def kept(graph: Graph, config: PlanConfig, op: Op) -> list[Signature]:
    """The signatures that ZeRO leaves to an op, put in the place of the one that is called so."""
    graph = replace(graph, ops=tuple(op if one.name == op.name else one for one in graph.ops))
    keep = zero_filter(graph, config, {})
    return [one for one in op_signatures(graph, op, (2, 1)) if keep(op, one)]


ROWS = [*(f"A{i}" for i in range(1, 38)), *(f"C{i}" for i in range(7, 17)), *(f"P{i}" for i in range(1, 26))]


def rows() -> dict[str, list[str]]:
    """Row -> its cells."""
    cells = (line.strip("| ").split(" | ") for line in COVERAGE.splitlines() if re.match(r"\| [ACP]\d+ ", line))
    return {row[0].strip(): [cell.strip() for cell in row[1:]] for row in cells}


def test_every_row_is_covered() -> None:
    assert sorted(rows()) == sorted(ROWS)


@pytest.mark.parametrize("row", ROWS)
def test_the_tests_that_a_row_names_exist(row: str) -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", rows()[row][-1])
    assert named or rows()[row][-1] == "open" or rows()[row][-1].startswith("excused: ")
    for path, function in named:
        assert (ROOT / path).is_file(), path
        if function:
            assert f"def {function}(" in (ROOT / path).read_text(), (path, function)


def test_at_most_two_rows_are_excused() -> None:
    assert sum("excused" in cells[-1] for cells in rows().values()) <= 2
