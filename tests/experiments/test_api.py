"""The Python API: the program of docs/python.md runs as printed, and its words are the command's."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import experiments
from experiments import price, search
from strategy.base.errors import InputError
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "python.md").read_text()


@pytest.mark.mpi
@pytest.mark.long
def test_the_program_of_the_page_runs_as_printed(tmp_path: Path) -> None:
    (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, second, names, page, cost = done.stdout.splitlines()[-5:]
    assert "PlanConfig(dp=" in first
    assert float(second.split()[0]) > 0
    assert "timeline.json.gz" in names
    assert (tmp_path / page).read_text().startswith("<!DOCTYPE html>")
    assert cost.endswith(("True", "False"))


def test_the_page_tells_of_every_function() -> None:
    assert re.findall(r"^\| `(\w+)\(", PAGE, re.MULTILINE) == ["search", "price", "simulate", "train", "report"]
    assert sorted(experiments.__all__) == sorted(["search", "price", "simulate", "train", "report"])


def test_nothing_is_imported_before_it_is_asked_for() -> None:
    program = "import sys, experiments; print([n for n in sys.modules if n in ('numpy', 'experiments.api')])"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
    with pytest.raises(AttributeError, match="no attribute 'seek'"):
        experiments.seek  # noqa: B018


def test_what_is_wrong_is_the_commands_own_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such flag"):
        search("gpt-tiny", cluster="dgx-a100:1", global_bach=8)
    with pytest.raises(InputError, match="one number"):
        search("gpt-tiny", gpus="8..16", gpu="h100", tokens="1B")
    (tmp_path / "t.toml").write_text('[model]\nname = "llama3"\nflavor = "8B"\n')
    with pytest.raises(InputError, match="nothing says on what it trains"):
        price(tmp_path / "t.toml")
