"""The page of a price in a real browser: its figures are the price's; and what is no whole price."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.experiments.conftest import Command
from tests.support.chromium import shown
from tests.support.trainer_configs import ROOT

LLAMA = ROOT / "torchtitan" / "llama3__llama3_8b.toml"


@pytest.fixture
def price(command: Command, tmp_path: Path) -> Path:
    """Llama-3-8B on 64 H100, as `sbplan price --json` prints it."""
    path = tmp_path / "price.json"
    words = ("--gpus", "64", "--gpu", "h100", "--tokens", "1T", "--no-search", "--json")
    path.write_text(command("price", LLAMA, *words).out)
    return path


def test_it_shows_the_price_without_complaint_or_request(price: Path, command: Command, tmp_path: Path) -> None:
    page = tmp_path / "price.html"
    said = command("report", price, "--out", page, "--json")
    found = json.loads(price.read_text())
    assert json.loads(said.out) == {
        "page": str(page), "nbytes": page.stat().st_size, "step_time_s": found["step_time_s"]
    }  # fmt: skip
    seen = shown(page, tmp_path)
    assert (seen.console, seen.requests) == ((), ())
    tiles = dict(re.findall(r'<div class="tile"><b>(.*?)</b><span>(.*?)</span>', seen.dom))
    lo, step, hi = (f"{found[key]:.2f} s" for key in ("lo_s", "step_time_s", "hi_s"))
    assert tiles[step].startswith("a step; 90 % between ")
    assert tiles[step].endswith(f" and {hi}")
    assert lo in tiles[step] or found["lo_s"] < 1
    assert tiles[f"{100 * found['mfu']:.1f} %"] == "model FLOPs utilisation"
    assert tiles["fits"] == f"the memory of a GPU (probability {found['fit_probability']:.2f})"
    margin = f"{found['memory_margin_bytes'] / 2**30:.2f} GiB from running out"
    assert tiles[f"{found['peak_memory_bytes'] / 2**30:.2f} GiB"].endswith(margin)
    assert "for 1.00 trillion tokens" in tiles[f"{found['training']['days']:.1f} days"]
    for cause, seconds in found["time_by_cause_s"].items():
        assert (f"</span>{cause}</span></td>" in seen.dom) == (abs(seconds) >= 5e-4 * found["step_time_s"]), cause
    assert "Left out: --no-search" in seen.dom
    assert f"{len(found['unused'])} keys change neither time nor memory" in seen.dom


def test_it_says_what_the_search_would_do(price: Path, command: Command, tmp_path: Path) -> None:
    found = json.loads(price.read_text())
    config = {"dp": 64, "tp": 1, "pp": 1, "cp": 1, "ep": 1, "virtual_stages": 1, "micro_batch": 1,
              "num_micro_batches": 1, "schedule": "1f1b", "recompute": "none", "zero_stage": 3}  # fmt: skip
    half = found["step_time_s"] / 2
    found["search"] = {"step_time_s": half, "lo_s": half, "hi_s": half, "config": config, "fits": True,
                       "saved_s": {"layers computed": half}}  # fmt: skip
    found["read"] |= {"recompute": "full", "recompute_layers": 16}
    price.write_text(json.dumps(found))
    assert command("report", price, "--out", tmp_path / "price.html").code == 0
    seen = shown(tmp_path / "price.html", tmp_path)
    assert seen.console == ()
    assert "dp 64, 1 micro-batch of 1 (1f1b), recompute none, ZeRO 3: " in seen.dom
    assert "2.00 times as fast by the same judge." in seen.dom
    assert "ZeRO 3, recompute full of 16 layers</p>" in seen.dom


def test_a_price_that_lacks_something_is_refused(price: Path, command: Command, tmp_path: Path) -> None:
    found = json.loads(price.read_text())
    del found["lo_s"], found["search"]
    price.write_text(json.dumps(found))
    said = command("report", price, "--out", tmp_path / "price.html")
    assert said.code == 2
    assert "not a whole price (got 'no lo_s, search'" in said.err
    assert "sbplan price FILE --json > price.json" in said.err
