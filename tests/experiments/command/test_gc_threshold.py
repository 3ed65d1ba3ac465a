"""A command that is a process of its own looks for garbage seldom; one called within another, as often as that."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from experiments.cli import main
from experiments.command.gc_threshold import MANY


def test_a_process_of_its_own_looks_seldom() -> None:
    said = "import gc, sys; from experiments.entry import main; sys.argv = ['sbplan', '--version']; main()"
    found = subprocess.run(
        [sys.executable, "-c", f"{said}; print(gc.get_threshold()[0])"], capture_output=True, text=True, check=True
    )
    assert found.stdout.splitlines()[-1] == str(MANY)


def test_what_is_called_within_another_leaves_it_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    usual = gc.get_threshold()
    assert main(["--help"]) == 0
    assert gc.get_threshold() == usual
    assert "sbplan" in capsys.readouterr().out
