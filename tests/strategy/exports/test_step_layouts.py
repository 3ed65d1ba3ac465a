"""Programs of DTensor and JAX: what they say of a plan, and, where these are installed, that they compute the same."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from experiments.cli import main
from strategy.base.errors import InputError
from strategy.exports.step_layouts import PROGRAMS, step_layouts, written_program
from strategy.passes.training import Training
from strategy.plan.plan import write_plan
from strategy.program.program import ActKind
from tests.conftest import ROOT
from tests.support.applied_program import MODELS, plan_of
from tests.support.small_plans import config_of, deduced_plan, request

GPT = MODELS["gpt"]
NAMES = {"reduce_scatter_tensor": "reduce_scatter", "all_gather_into_tensor": "all_gather"}
NEEDED = {"dtensor": "torch", "jax": "jax"}


@pytest.mark.parametrize("to", PROGRAMS)
def test_a_program_is_one_file_that_needs_nothing_of_ours(to: str) -> None:
    text = written_program(plan_of("gpt", 4), to)
    tree = ast.parse(text)
    imported = {
        (node.module or "").split(".")[0] if isinstance(node, ast.ImportFrom) else node.names[0].name.split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported <= {"json", "collections", "typing", "torch", "jax", "numpy"}
    assert 'json.loads("{}")' not in text


def test_every_op_and_every_conversion_is_said() -> None:
    plan = plan_of("gpt", 4)
    said = json.loads(json.dumps(step_layouts(plan)))
    assert said["mesh"] == {"data": 2, "tensor": 2}
    assert list(said["ops"]) == [op.name for op in plan.graph.ops]
    for op in plan.graph.ops:
        signature = plan.layout.signatures[op.name]
        assert [layout for _, layout in said["ops"][op.name]["reads"]] == [[*map(str, nd)] for nd in signature.inputs]
    assert sum(map(len, said["steps"].values())) == len(plan.layout.conversions)
    kinds = Counter(kind for chains in said["kinds"].values() for chain in chains.values() for kind in chain)
    own = Counter(step.kind for one in plan.layout.conversions for step in one.steps for _ in step.axes)
    for kind in (ActKind.ALL_REDUCE, ActKind.REDUCE_SCATTER, ActKind.ALL_GATHER, ActKind.ALL_TO_ALL):
        assert kinds[str(kind)] == own[kind], kind


def test_what_one_program_cannot_do_is_refused() -> None:
    training = Training(8, num_micro_batches=2)
    stages = deduced_plan(
        request(2, training, model=replace(GPT, layers=2)), config_of(training, pp=2), ("data", "tensor")
    )
    with pytest.raises(InputError, match="pp 2: stages are programs of their own") as caught:
        step_layouts(stages)
    assert "2 micro-batches: a program runs one" in str(caught.value)
    odd = deduced_plan(request(3, Training(8), model=GPT), config_of(Training(8), dp=3), ("data", "tensor"))
    with pytest.raises(InputError, match="unequal pieces"):
        step_layouts(odd)


def test_the_command_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(plan_of("mlp", 4), tmp_path / "plan.json")
    assert main(["export", str(tmp_path / "plan.json"), "--to", "dtensor", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"] == [str(tmp_path / "plan.py")]
    assert "distribute_tensor" in (tmp_path / "plan.py").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("case", MODELS)
@pytest.mark.parametrize("to", PROGRAMS)
def test_executed_it_computes_the_same_with_as_many_collectives(to: str, case: str, tmp_path: Path) -> None:
    """DTensor on four gloo processes, JAX on eight devices of the host."""
    if importlib.util.find_spec(NEEDED[to]) is None:
        pytest.skip(f"{NEEDED[to]} is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.applied_program", to, case, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["error"] < 1e-5
    counted, said = Counter[str](), Counter(found["said"])
    for name, count in found["counted"].items():
        counted[NAMES.get(name, name)] += count
    if to == "dtensor":  # which exchanges pieces by gathering them where there is no GPU
        said["all_gather"] += said.pop("all_to_all", 0)
    assert counted == said
