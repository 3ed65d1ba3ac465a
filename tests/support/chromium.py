"""Chromium: pages as a real browser shows them, without a network: what it draws, complains of and asks for."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-quic", "--enable-logging=stderr"),
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--virtual-time-budget=3000",
)
BROWSER_ITSELF = "not an origin"
"""Who asks where no page does."""


@dataclass(frozen=True)
class Shown:
    """A page as it was shown: its elements as text, what stood on the console, and what it asked for."""

    dom: str
    console: tuple[str, ...]
    requests: tuple[str, ...]


def chromium() -> str:
    """The browser; where there is none, the test says so, and how to get it."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if found is None:
        pytest.skip("NO PAGE WAS LOOKED AT: Chromium is not installed; apt-get install chromium")
    return found


def shown(page: Path, folder: Path) -> Shown:
    """Open a page and wait until its script is through."""
    log = folder / "net.json"
    done = _run(page, folder, ["--dump-dom", f"--log-net-log={log}"])
    console = tuple(line for line in done.stderr.splitlines() if ":CONSOLE" in line)
    return Shown(done.stdout, console, tuple(_requests(log)))


def screenshot(page: Path, folder: Path, *, width: int, dark: bool) -> bytes:
    """A picture of a page, as PNG; it is shown in a frame of that width, for windows cannot be as narrow as phones."""
    frame = folder / f"frame-{width}.html"
    frame.write_text(f"<iframe src='{page.as_uri()}' style='border:0;width:{width}px;height:2000px'></iframe>")
    picture = folder / f"{page.stem}-{width}-{'dark' if dark else 'light'}.png"
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    _run(frame, folder, [*scheme, f"--screenshot={picture}", f"--window-size={max(500, width)},2000"])
    return picture.read_bytes()


def _run(page: Path, folder: Path, flags: Sequence[str]) -> subprocess.CompletedProcess[str]:
    profile = folder / "profile"
    shutil.rmtree(profile, ignore_errors=True)
    command = [chromium(), *FLAGS, f"--user-data-dir={profile}", *flags, page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done


def _requests(log: Path) -> list[str]:
    """Addresses that a page asked for; what the browser asks for on its own account is none of them."""
    text = log.read_text()
    try:
        events = json.loads(text)["events"]
    except json.JSONDecodeError:  # the browser ended before it closed the list
        events = json.loads(text.rstrip().rstrip(",") + "]}")["events"]
    asked: list[dict[str, Any]] = [event.get("params", {}) for event in events]
    return [one["url"] for one in asked if "url" in one and one.get("initiator", BROWSER_ITSELF) != BROWSER_ITSELF]
