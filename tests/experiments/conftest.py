"""A tiny cluster, a plan for it, and the command in this process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from experiments.cli import dispatch, guarded

CLUSTER = """
name = "two-cores"
nodes = 1
devices_per_node = 2

[device]
name = "core"
backend = "numpy"
memory = "1 GiB"
memory_bandwidth = "10 GB/s"
launch = "2 us"
compute = "50 GFLOP/s"

[intra]
bandwidth = "4 GB/s"
latency = "5 us"
"""
PINS = """
[config]
dp = 2
tp = 1
pp = 1
micro_batch = 2
"""


@dataclass(frozen=True)
class Said:
    """How a verb ended: its exit code, and what it printed."""

    code: int
    out: str
    err: str


Command = Callable[..., Said]


@pytest.fixture
def command(capsys: pytest.CaptureFixture[str]) -> Command:
    """Run a verb in this process: `command("search", "gpt-tiny", ...)`."""

    def run(*argv: object) -> Said:
        words = [str(word) for word in argv]
        code = guarded(lambda: dispatch(words), words)
        printed = capsys.readouterr()
        return Said(code, printed.out, printed.err)

    return run


@pytest.fixture(scope="session")
def cluster_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cluster") / "cluster.toml"
    path.write_text(CLUSTER)
    return path


@pytest.fixture(scope="session")
def pin_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pins") / "pins.toml"
    path.write_text(PINS)
    return path


@pytest.fixture(scope="session")
def plan_file(tmp_path_factory: pytest.TempPathFactory, cluster_file: Path, pin_file: Path) -> Path:
    """A data-parallel plan of gpt-tiny on two ranks; not to be written to."""
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    argv = ["search", "gpt-tiny", "--seq", "16", "--global-batch", "4", "--cluster", str(cluster_file)]
    assert dispatch([*argv, "--pin", str(pin_file), "--out", str(path)]) == 0
    return path
