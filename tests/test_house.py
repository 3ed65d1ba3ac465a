"""The house itself: what is tracked, what is packaged, what the Makefile and the gate do."""

from __future__ import annotations

import ast
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("strategy", "simulator", "executor", "experiments")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listed.stdout.split("\0") if name and (ROOT / name).is_file()]


def dry_run(target: str, folder: Path) -> str:
    (folder / "Makefile").write_text((ROOT / "Makefile").read_text())
    return subprocess.run(["make", "--dry-run", target], cwd=folder, capture_output=True, text=True, check=True).stdout


def test_no_tracked_file_is_large() -> None:
    large = {path.name: path.stat().st_size for path in tracked() if path.stat().st_size > 2 * 2**20}
    assert large == {}


def test_every_folder_of_code_is_a_package() -> None:
    """A folder without `__init__.py` would be left out by mypy and the import contracts."""
    folders = {path.parent for path in SOURCES if "notebooks" not in path.parts}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_is_typed_and_shipped(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()
    assert package in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert package in PROJECT["tool"]["mypy"]["files"]
    assert package in PROJECT["tool"]["importlinter"]["root_packages"]


def test_the_entry_can_be_the_script() -> None:
    """Installers copy its mode and rewrite its first line, if that names python."""
    entry = ROOT / "experiments" / "entry.py"
    assert PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["shared-scripts"] == {
        str(entry.relative_to(ROOT)): "sbplan"
    }
    assert entry.stat().st_mode & 0o111 == 0o111
    assert entry.read_text().startswith("#!/usr/bin/env python3\n")


def test_nothing_of_the_house_uses_pickle_eval_or_a_shell() -> None:
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [alias.name for alias in node.names] + [getattr(node, "module", "") or ""]
                wrong = {"pickle", "marshal", "shelve", "dill", "cloudpickle"} & {n.partition(".")[0] for n in names}
            elif isinstance(node, ast.Call):
                wrong = {"eval", "exec"} & {getattr(node.func, "id", "")}
                wrong |= {keyword.arg for keyword in node.keywords if keyword.arg == "shell"}
            else:
                continue
            found += [f"{path.relative_to(ROOT)}:{node.lineno}: {word}" for word in sorted(wrong)]
    assert found == []


@pytest.mark.parametrize(("target", "job"), [("demo", "/sbplan demo"), ("test", "-m pytest -n 2")])
def test_make_installs_first_and_only_once(tmp_path: Path, target: str, job: str) -> None:
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "experiments").mkdir()
    (tmp_path / "experiments" / "entry.py").touch()
    first = dry_run(target, tmp_path)
    assert first.index("-m venv") < first.index("pip install") < first.index(job)

    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / ".installed").touch()
    again = dry_run(target, tmp_path)
    assert "pip install" not in again
    assert job in again


def test_make_refuses_an_old_python(tmp_path: Path) -> None:
    old = tmp_path / "python3.9"
    old.write_text("#!/bin/sh\n[ $1 = -V ] && echo Python 3.9.2\nexit 1\n")
    old.chmod(0o755)
    done = subprocess.run(
        ["make", "test", f"PYTHON={old}", f"VENV={tmp_path}/venv"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "sbplan needs Python 3.11 or newer" in done.stderr
    assert "Python 3.9.2" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_the_gate_runs_every_check() -> None:
    gate = (ROOT / ".ci" / "run").read_text()
    lint = dry_run_lint()
    assert gate.rstrip().endswith("make test")
    assert "make lint" in gate
    assert "set -euo pipefail" in gate
    for check in ("ruff check", "ruff format --check", "mypy", "lint-imports", "codespell"):
        assert check in lint


def dry_run_lint() -> str:
    return subprocess.run(["make", "--dry-run", "lint"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
