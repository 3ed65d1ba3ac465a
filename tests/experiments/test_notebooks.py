"""Every notebook runs from its first cell to its last, in a fresh kernel."""

from pathlib import Path

import jupytext
import nbclient
import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "experiments" / "notebooks").glob("*.py"))


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", str(path.parents[2]))
    notebook = jupytext.read(path)
    nbclient.NotebookClient(
        notebook, timeout=180, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    (picture,) = (tmp_path / "runs").glob("*/timelines.png")
    assert picture.stat().st_size > 10_000


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS
