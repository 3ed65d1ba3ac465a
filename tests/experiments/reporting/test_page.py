"""The page of a report in a real browser: it draws, complains of nothing, and asks for nothing."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from matplotlib.image import imread

from experiments.cli import dispatch
from tests.experiments.conftest import Command
from tests.support.chromium import screenshot, shown

HANDLING = (Path(__file__).parent / "handling.js").read_text()


@pytest.fixture(scope="module")
def report(plan_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    assert dispatch(["report", str(plan_file), "--others", "0", "--out", str(path)]) == 0
    return path


def test_it_draws_without_complaint_or_request(report: Path, plan_file: Path, command: Command, tmp_path: Path) -> None:
    seen = shown(report, tmp_path)
    assert seen.console == ()
    assert seen.requests == ()
    simulated = json.loads(command("simulate", plan_file, "--json").out)
    tiles = re.findall(r'<div class="tile"><b>(.*?)</b><span>(.*?)</span>', seen.dom)
    told = {text.split(" (")[0].partition(",")[0]: figure for figure, text in tiles}
    assert told["a step"] == f"{simulated['step_time_s'] * 1e3:.2f} ms"
    assert told["tokens a second"] == f"{round(simulated['tokens_per_s']):,}"
    assert told["model FLOPs utilisation"] == f"{100 * simulated['mfu']:.1f} %"
    assert told["on the fullest device"] == f"{max(simulated['peak_memory_bytes']) / 2**20:.2f} MiB"
    assert '<h1 id="title">gpt-tiny on 2 cores</h1>' in seen.dom
    assert ", 1 micro-batch of 2 (1f1b), " in seen.dom
    for part in ("timeline", "memory", "layouts", "configuration", "causes", "binding"):
        assert re.search(rf'id="{part}">\s*<', seen.dom), f"{part} is empty"
    assert seen.dom.count('class="treemap"') == 1
    assert len(re.findall(r'<div class="(?:deep)?" style="left:', seen.dom)) > 10


def test_it_can_be_zoomed_moved_and_asked(report: Path, tmp_path: Path) -> None:
    page = tmp_path / "handled.html"
    page.write_text(report.read_text().replace("</body>", f"<script>{HANDLING}</script></body>"))
    seen = shown(page, tmp_path)
    assert seen.console == ()
    (named,) = re.findall(r'data-told="(\d+)"', seen.dom)
    assert int(named) > 40, "what is under the pointer is told"


def test_a_complaint_and_a_request_would_be_seen(report: Path, tmp_path: Path) -> None:
    """Without the page's own policy, which forbids them, an image and a wrong script are noticed."""
    page = tmp_path / "wrong.html"
    page.write_text("<body><img src='http://127.0.0.1:9/x.png'><script>missing()</script>")
    seen = shown(page, tmp_path)
    assert len(seen.console) == 1
    assert "missing is not defined" in seen.console[0]
    assert set(seen.requests) == {"http://127.0.0.1:9/x.png"}


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_it_fits_a_screen_and_a_phone(report: Path, width: int, dark: bool, tmp_path: Path) -> None:
    """Nothing is wider than the screen; by night it is dark."""
    page = tmp_path / "measured.html"
    measure = "const at = document.documentElement; document.body.dataset.wide = at.scrollWidth - at.clientWidth;"
    page.write_text(report.read_text().replace("</body>", f"<script>{measure}</script></body>"))
    frame = tmp_path / "frame.html"
    told = "f.onload = () => { document.body.dataset.told = f.contentDocument.body.dataset.wide; }"
    html = page.read_text().replace("&", "&amp;").replace('"', "&quot;")
    phone = f'<iframe id="f" style="width:{width}px;height:900px" srcdoc="{html}"></iframe>'
    frame.write_text(f"{phone}<script>{told}</script>")
    assert re.findall(r'data-told="(\d+)"', shown(frame, tmp_path).dom) == ["0"]
    brightness = mean_brightness(screenshot(report, tmp_path, width=width, dark=dark))
    assert brightness < 90 if dark else brightness > 180


def mean_brightness(png: bytes) -> float:
    """Mean of the samples of a picture's left part, from 0 to 255."""
    return float(imread(io.BytesIO(png), format="png")[:, :380, :3].mean() * 255)
