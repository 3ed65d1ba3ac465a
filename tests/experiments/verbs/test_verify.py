"""`sbplan verify`: accepts what the search wrote, refuses every forgery by name, and needs no search."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strategy.plan.plan import digest
from tests.conftest import ROOT
from tests.experiments.conftest import Command

Document = dict[str, Any]
NO_SEARCH = """
import sys
from experiments.cli import dispatch
assert dispatch(["verify", sys.argv[1]]) == 0
search = ("strategy.search", "strategy.ilp.solve", "ortools", "scipy.optimize")
wrong = [name for name in sys.modules if name.startswith(search)]
assert not wrong, wrong
"""


def forge(plan_file: Path, path: Path, change: Callable[[Document], object]) -> Path:
    """The plan with one change, its digests computed anew."""
    content = json.loads(plan_file.read_text())
    change(content)
    content["inputs_hash"] = digest({key: content[key] for key in ("model", "training", "cluster", "calibration")})
    content["plan_hash"] = digest({key: value for key, value in content.items() if key != "plan_hash"})
    path.write_text(json.dumps(content))
    return path


def test_a_plan_of_the_search_is_accepted(command: Command, plan_file: Path) -> None:
    said = command("verify", plan_file, "--json")
    found = json.loads(said.out)
    assert said.code == 0
    assert (found["accepted"], found["problems"], found["bound"]) == (True, [], "proved")
    assert found["configurations"] > 1
    pinned = json.loads(plan_file.read_text())["certificate"]["pinned"]
    space = "".join(f", {name} = {value}" for name, value in pinned.items())
    assert f"the bound is proved for all configurations{space}: " in said.err
    assert found["plan_hash"] == json.loads(plan_file.read_text())["plan_hash"]
    assert said.err.startswith(f"{plan_file}: accepted, ")
    assert said.err.count("\n") == 1


def test_without_its_certificate_its_bound_is_claimed(command: Command, tmp_path: Path, plan_file: Path) -> None:
    path = forge(plan_file, tmp_path / "plan.json", lambda content: content.pop("certificate"))
    said = command("verify", path, "--json")
    found = json.loads(said.out)
    assert (said.code, found["bound"], found["configurations"]) == (0, "claimed, not re-proved", None)


def test_a_certificate_of_another_space_is_refused(command: Command, tmp_path: Path, plan_file: Path) -> None:
    def fewer(content: Document) -> None:
        content["certificate"]["configurations"] -= 1

    said = command("verify", forge(plan_file, tmp_path / "plan.json", fewer), "--json")
    assert said.code == 2
    assert "lower_bound_s: another space" in json.loads(said.out)["problems"][0]


def test_no_search_code_is_imported(plan_file: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_SEARCH, str(plan_file)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def split_wrongly(content: Document) -> str:
    content["ops"]["layers.1.mlp.gelu"]["outputs"] = [["S(1)", "B"]]
    return "op layers.1.mlp.gelu (gelu): "


def drop_a_step(content: Document) -> str:
    boxing = content["boxing"][0]
    boxing["steps"].pop()
    return f"reads {boxing['value']} as {boxing['to']['layout']} on stage 0: its boxing ends at "


def drop_a_boxing(content: Document) -> str:
    boxing = content["boxing"].pop()
    there = f"it is {boxing['from']['layout']} on stage 0 and no boxing leads there"
    return f"reads {boxing['value']} as {boxing['to']['layout']} on stage 0, but {there}"


def forget_an_op(content: Document) -> str:
    del content["ops"]["layers.0.attn.attention"]
    return "op layers.0.attn.attention: the plan gives it no signature"


def claim_less_memory(content: Document) -> str:
    content["peak_memory_bytes"][1] -= 4
    return "peak_memory_bytes of rank 1: "


def claim_less_traffic(content: Document) -> str:
    content["sent_bytes_per_step"][0] -= 4
    return "sent_bytes_per_step: "


def claim_a_faster_objective(content: Document) -> str:
    content["objective_s"] *= 0.99
    return "objective_s: "


@pytest.mark.parametrize(
    "change",
    [
        split_wrongly,
        drop_a_step,
        drop_a_boxing,
        forget_an_op,
        claim_less_memory,
        claim_less_traffic,
        claim_a_faster_objective,
    ],
)
def test_a_forged_plan_is_refused(
    command: Command, tmp_path: Path, plan_file: Path, change: Callable[[Document], str]
) -> None:
    message = change(json.loads(plan_file.read_text()))
    path = forge(plan_file, tmp_path / "plan.json", change)
    said = command("verify", path, "--json")
    found = json.loads(said.out)
    assert said.code == 2
    assert not found["accepted"]
    assert message in found["problems"][0]
    assert any(f"op {name}" in found["problems"][0] for name in plan_ops(plan_file)) or "claim" in change.__name__
    assert said.err.startswith(f"sbplan: {path}: refused: {found['problems'][0]}")


def plan_ops(path: Path) -> list[str]:
    return list(json.loads(path.read_text())["ops"])


def test_unchanged_but_written_anew_it_is_accepted(command: Command, tmp_path: Path, plan_file: Path) -> None:
    assert command("verify", forge(plan_file, tmp_path / "plan.json", lambda content: None)).code == 0


def test_a_changed_byte_is_noticed(command: Command, tmp_path: Path, plan_file: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text(plan_file.read_text().replace('"stage": 0', '"stage": 1', 1))
    said = command("verify", path)
    assert said.code == 2
    assert "plan_hash: the content is not what was written" in said.err


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.999])
def test_a_truncated_plan(command: Command, tmp_path: Path, plan_file: Path, share: float) -> None:
    text = plan_file.read_text()
    path = tmp_path / "plan.json"
    path.write_text(text[: int(share * len(text))])
    said = command("verify", path)
    assert (said.code, said.out) == (2, "")
    assert str(path) in said.err
    assert "Traceback" not in said.err


def test_a_plan_that_is_missing(command: Command, tmp_path: Path) -> None:
    said = command("verify", tmp_path / "plan.json")
    assert said.code == 2
    assert "no such file" in said.err
