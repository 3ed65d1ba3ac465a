"""The page on graphs and global tensors is one program, and it runs on four ranks as it stands."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mpi.launch import ROOT, mpiexec

PAGE = (ROOT / "docs" / "front_end.md").read_text()


@pytest.mark.mpi
def test_the_page_runs_on_four_ranks(tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 9
    script = tmp_path / "page.py"
    script.write_text("\n".join([*blocks, 'print("done", flush=True)\n']))
    done = subprocess.run(
        [mpiexec(), "-n", "4", sys.executable, "-m", "mpi4py", str(script)],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "done" in done.stdout
