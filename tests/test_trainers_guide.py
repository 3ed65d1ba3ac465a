"""docs/trainers.md is followed to the letter: every command that it prints is run, one after the other."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

from experiments.exit_codes import EXIT_LIMIT

ROOT = Path(__file__).parent.parent
GUIDE = (ROOT / "docs" / "trainers.md").read_text()
CONFIG = ROOT / "experiments" / "reference" / "huggingface" / "configs" / "Qwen3-0.6B.json"


def test_every_command_of_the_guide_runs_as_printed(tmp_path: Path) -> None:
    shutil.copy(CONFIG, tmp_path / "config.json")
    blocks = re.findall(r"^```sh\n(.*?)^```$", GUIDE, re.MULTILINE | re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    assert len(commands) == 7
    said = ""
    for command in commands:
        program = command.replace("sbplan ", f"{sys.executable} -P -m experiments ", 1)
        done = subprocess.run(
            ["sh", "-c", program],
            cwd=tmp_path,
            env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        codes = (0, EXIT_LIMIT) if command.startswith("sbplan search ") else (0,)  # of a search on a busy machine
        assert done.returncode in codes, f"{command}\n{done.stderr}"
        said += done.stderr
    assert said.count("read back, it is the same plan") == 3
    assert 'flavor = "0.6B"' in (tmp_path / "train.toml").read_text()
