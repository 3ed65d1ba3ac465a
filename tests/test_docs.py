"""What the documents say is so: the guide is followed to the letter, and every test that is named exists."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs" / "adding_an_op.md").read_text()
COVERAGE = (ROOT / "docs" / "coverage.md").read_text()
PACKAGES = ("strategy", "simulator", "executor", "experiments")


def blocks(language: str) -> list[str]:
    """The fenced blocks of the guide in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)


def apply_diff(text: str, diff: str) -> str:
    """The text with the added lines of a diff after the line before them."""
    context, *added = diff.splitlines()
    assert context.startswith(" ")
    assert all(line.startswith("+") for line in added)
    assert text.count(context[1:] + "\n") == 1, context
    return text.replace(context[1:] + "\n", "\n".join([context[1:], *(line[1:] for line in added)]) + "\n")


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the house to which the guide's op has been added."""
    folder = tmp_path_factory.mktemp("house")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    (path,) = re.findall(r"^`(strategy/graph/ops/\w+\.py)`:$", GUIDE, re.MULTILINE)
    (source,) = blocks("python")
    (folder / path).write_text(source)
    index = folder / "strategy" / "graph" / "ops" / "__init__.py"
    for diff in blocks("diff"):
        index.write_text(apply_diff(index.read_text(), diff))
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
