"""Every notebook runs from its first cell to its last, in a fresh kernel."""

from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "experiments" / "notebooks").glob("*.py"))
LEFT = {
    "from_search_to_timeline": "runs/*/timelines.png",
    "calibrate_your_cluster": "refined.json",
    "paper_figures": "figures/bubbles.pdf",
    "add_an_op": "signatures.png",
}
"""Notebook -> a file that it leaves: first plan and timeline, calibration, figures, ops."""


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import jupytext
    import nbclient

    monkeypatch.setenv("PYTHONPATH", str(path.parents[2]))
    notebook = jupytext.read(path)
    nbclient.NotebookClient(
        notebook, timeout=180, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs)
    (left,) = tmp_path.glob(LEFT[path.stem])
    assert left.stat().st_size > 1_000


def test_there_is_a_notebook_of_every_task() -> None:
    assert {path.stem for path in NOTEBOOKS} == set(LEFT)
