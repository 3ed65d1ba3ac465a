"""docs/explain.md: every command as it is printed there."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from experiments.exit_codes import EXIT_LIMIT
from tests.conftest import ROOT
from tests.experiments.conftest import Command

GUIDE = (ROOT / "docs" / "explain.md").read_text()
COMMANDS = [
    line
    for block in re.findall(r"^```\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    for line in block.splitlines()
    if line.startswith(("sbplan ", "printf "))
]


@pytest.mark.slow
def test_the_guide_runs_as_printed(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    said = {}
    for line in COMMANDS:
        if line.startswith("printf "):
            subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True)
        else:
            said[line] = command(*shlex.split(line)[1:])
            codes = (0, EXIT_LIMIT) if line.startswith("sbplan search ") else (0,)  # of a search on a busy machine
            assert said[line].code in codes, f"{line}: {said[line].err}"
    assert len(said) == 8
    assert "with tp=8: dp 1, tp 8" in said["sbplan explain plan.json --why-not tp=8"].err
    assert "it takes at least 24" in said['sbplan explain plan.json --why-not "tp=3" --json'].err
    assert (tmp_path / "report.html").stat().st_size > 50_000


@pytest.mark.parametrize("word", ["--diff", "--op", "--why-not", "--others"])
def test_the_guide_tells_of_every_flag(word: str) -> None:
    assert word in GUIDE
