"""Figures: drawn by command from computed data, the same bytes every time."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from experiments.figures import held_out, scaling, schedules
from experiments.published.validation import HeldOutRun
from tests.experiments.conftest import Command


def test_the_command_draws_the_same_bytes_twice(command: Command, tmp_path: Path) -> None:
    found = []
    for name in ("one", "two"):
        said = command("figures", "--out", tmp_path / name, "--json")
        assert said.code == 0
        assert "schedules.png" in said.err
        paths = [Path(path) for path in json.loads(said.out)["figures"]]
        assert [path.name for path in paths] == ["schedules.png", "schedules.pdf", "scaling.png", "scaling.pdf"]
        found.append([path.read_bytes() for path in paths])
    assert found[0] == found[1]
    for png, pdf in (found[0][:2], found[0][2:]):
        assert png.startswith(b"\x89PNG")
        assert pdf.startswith(b"%PDF")


def test_a_place_that_is_no_folder_is_bad_input(command: Command, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said = command("figures", "--out", tmp_path / "file")
    assert said.code == 2
    assert "not a folder" in said.err


def test_schedules_idle_as_their_papers_say() -> None:
    """p = 4, m = 8; interleaving by 2 halves the bubble; without waiting for weights it is a third (ZB-H1)."""
    panels = {panel.name: panel for panel in schedules.data()}
    idle = {name: Fraction(panel.idle_share).limit_denominator(1000) for name, panel in panels.items()}
    assert idle["gpipe"] == idle["1f1b"] == Fraction(3, 11)
    assert idle["interleaved"] == Fraction(3, 19)
    assert idle["zb-h1"] == Fraction(1, 9)
    for panel in panels.values():
        assert {bar.rank for bar in panel.bars} == set(range(schedules.STAGES))


def test_scaling_falls_with_the_batch_that_each_gpu_has_left() -> None:
    curves = {curve.name: curve for curve in scaling.data()}
    assert len(curves) == len(scaling.WAYS)
    for curve in curves.values():
        assert all(low < mid < high for low, mid, high in zip(curve.low, curve.tflop_per_s, curve.high, strict=True))
        assert list(curve.tflop_per_s) == sorted(curve.tflop_per_s, reverse=True)
    plain, interleaved = (curves[way.name].tflop_per_s[-1] for way in scaling.WAYS[:2])
    assert interleaved > plain


@pytest.mark.parametrize("points", [[HeldOutRun("one", 1.0, 1.1, 0.9, 1.3), HeldOutRun("two", 20.0, 18.0, 15.0, 22.0)]])
def test_held_out_runs_are_drawn_by_series(points: list[HeldOutRun]) -> None:
    upper, lower = held_out.figure(points).axes
    assert len(upper.collections) == len(lower.collections) == 1 + len(points)
