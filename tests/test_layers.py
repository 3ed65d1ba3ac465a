"""Who imports whom, and what the words of the search need: numpy alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LINT_IMPORTS = "from importlinter.cli import lint_imports; import sys; sys.exit(lint_imports())"
WORDS = (
    *("base.errors", "base.units", "base.files", "ilp.problem", "sbp.tensor", "sbp.sbp", "graph.graph", "comm.boxing"),
    *("program.protocol", "plan.plan"),
)
NUMPY_ONLY = """
import sys

class Refuse:
    allowed = {*sys.stdlib_module_names, "numpy", "strategy"}

    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] not in self.allowed:
            raise ImportError(f"{name} is neither numpy nor the standard library")

sys.meta_path.insert(0, Refuse())
import importlib
importlib.import_module(sys.argv[1])
"""


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", LINT_IMPORTS],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_imports_keep_to_the_layers() -> None:
    done = lint_imports(ROOT)
    assert done.returncode == 0, done.stdout


def test_wrong_imports_are_caught(tmp_path: Path) -> None:
    wrong = (
        ("strategy", "experiments"),
        ("strategy", "executor"),
        ("simulator", "executor"),
        ("executor", "simulator"),
    )
    for name in ("strategy", "simulator", "executor", "experiments"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    for package, imports in wrong:
        (tmp_path / package / f"wrong_{imports}.py").write_text(f"import {imports}\n")
    done = lint_imports(tmp_path)
    assert done.returncode == 1
    for package, imports in wrong:
        assert f"{package} is not allowed to import {imports}" in done.stdout


@pytest.mark.parametrize("word", WORDS)
def test_the_words_need_numpy_only(word: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NUMPY_ONLY, f"strategy.{word}"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_anything_else_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NUMPY_ONLY, "msgspec"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert "msgspec is neither numpy nor the standard library" in done.stderr
