"""What a machine or a shell can do to the command: each ends with its own exit code and one message, never as a bug."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import mpi4py
import pytest

from executor.runtime.transport.mpi import load_mpi
from strategy.base.errors import EnvironmentLacks
from tests.experiments.conftest import Command

ROOT = Path(__file__).parents[2]
SEARCH = ("search", "gpt-tiny", "--seq", 16, "--global-batch", 4)


def shell(
    script: str, *, cwd: Path, env: Mapping[str, str] | None = None, largest_file: int | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script in which `sbplan` is the command, where no file may become larger than so many bytes."""

    def limit() -> None:
        if largest_file is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, largest_file))

    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", **(env or {})}
    return subprocess.run(
        ["sh", "-c", f'sbplan() {{ "{sys.executable}" -P -m experiments.entry "$@"; }}\n{script}'],
        cwd=cwd,
        env=environment,
        preexec_fn=limit,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.mark.mpi
def test_a_failed_run_is_no_concern_of_the_next_one_in_the_same_shell(tmp_path: Path) -> None:
    done = shell("sbplan train none.json; echo $?; sbplan train none.json; echo $?", cwd=tmp_path)
    assert done.stdout.split() == ["2", "2"]
    assert done.stderr == "sbplan: none.json: no such file\n" * 2
    assert len(list((tmp_path / "runs").iterdir())) == 2


@pytest.mark.mpi
@pytest.mark.parametrize("verb", ["train none.json", "profile"])
def test_a_run_in_a_full_folder_says_so(tmp_path: Path, verb: str) -> None:
    done = shell(f"sbplan {verb}", cwd=tmp_path, largest_file=0)
    assert (done.returncode, done.stderr.count("\n")) == (6, 1)
    assert "no run folder can be kept there: File too large" in done.stderr


@pytest.mark.mpi
def test_a_rank_that_no_launcher_made_is_bad_input(tmp_path: Path) -> None:
    env = {"PMI_RANK": "abc", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0"}
    done = shell("sbplan train none.json", cwd=tmp_path, env=env)
    assert (done.returncode, done.stderr.partition(" (")[0]) == (
        2,
        "sbplan: PMI_RANK: not a number that a launcher sets",
    )


def test_an_mpi_library_that_does_not_load_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(mpi4py, "MPI", raising=False)
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    with pytest.raises(EnvironmentLacks, match=r"MPI cannot be loaded: .* brings a library"):
        load_mpi()


@pytest.mark.parametrize(
    ("script", "code", "said"),
    [
        ("sbplan --version > /dev/full", 6, "stdout cannot be written to: No space left on device"),
        ("sbplan --version >&-", 6, "stdout cannot be written to: Bad file descriptor"),
        ("sbplan verify --help > /dev/full", 6, "stdout cannot be written to: No space left on device"),
        ("sbplan nothing >&-", 2, "no such verb"),
        ("sbplan nothing 2>&-", 2, ""),
        ("sbplan nothing 2>/dev/full", 2, ""),
        ("mkdir gone; cd gone; rmdir ../gone; sbplan verify plan.json", 5, "the working folder cannot be used"),
    ],
)
def test_streams_and_folders_that_are_gone(tmp_path: Path, script: str, code: int, said: str) -> None:
    done = shell(script, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert done.stderr.count("\n") == (1 if said else 0)


def test_a_compiler_that_is_switched_off_is_missing(tmp_path: Path, plan_file: Path) -> None:
    done = shell(f"sbplan simulate {plan_file}", cwd=tmp_path, env={"NUMBA_DISABLE_JIT": "1"})
    assert (done.returncode, done.stderr.count("\n")) == (5, 1)
    assert "unset NUMBA_DISABLE_JIT" in done.stderr


def test_a_trace_on_a_full_disk_leaves_no_part(
    tmp_path: Path, command: Command, plan_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_descriptor: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", refuse)
    for name in ("trace.json", "trace.json.gz"):
        said = command("simulate", plan_file, "--trace", tmp_path / name)
        assert (said.code, said.err.count("\n")) == (6, 1)
        assert "No space left on device" in said.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("flag", ["--out", "--dump-passes"])
def test_a_name_that_cannot_be_is_bad_input(tmp_path: Path, command: Command, cluster_file: Path, flag: str) -> None:
    said = command(*SEARCH, "--cluster", cluster_file, flag, tmp_path / ("a" * 300))
    assert said.code == 2
    assert "File name too long" in said.err


@pytest.mark.parametrize("flag", ["--seq", "--global-batch"])
@pytest.mark.parametrize("digits", [30, 5000])
def test_counts_beyond_all_machines_are_bad_input(command: Command, cluster_file: Path, flag: str, digits: int) -> None:
    said = command("search", "gpt-tiny", "--cluster", cluster_file, flag, "9" * digits)
    assert said.code == 2
    assert "expected a whole number of at least 1 and at most 2147483647" in said.err


def test_a_step_longer_than_clocks_count_is_bad_input(command: Command, cluster_file: Path) -> None:
    said = command("search", "gpt-tiny", "--cluster", cluster_file, "--seq", 2**31 - 1)
    assert (said.code, "an act takes too long to be counted" in said.err) == (2, True)


@pytest.mark.parametrize(
    "text",
    [
        "[config]\ndp = " + "[" * 5000 + "]" * 5000,
        "[config]\ndp = " + "9" * 5000,
        "[config]\ndp = " + "9" * 4000,
        "[config]\ndp = 0x" + "9" * 50000,
    ],
    ids=["deep", "5000 digits", "4000 digits", "hexadecimal"],
)
def test_pins_that_python_cannot_hold_are_bad_input(
    tmp_path: Path, command: Command, cluster_file: Path, text: str
) -> None:
    pins = tmp_path / "pins.toml"
    pins.write_text(text)
    said = command(*SEARCH, "--cluster", cluster_file, "--pin", pins)
    assert said.code == 2
    assert str(pins) in said.err
    assert len(said.err) < 3000


def test_a_norm_without_limit_passes_through_a_plan(
    tmp_path: Path, command: Command, cluster_file: Path, pin_file: Path
) -> None:
    plan = tmp_path / "plan.json"
    chosen = ("--cluster", cluster_file, "--pin", pin_file, "--training", "max_norm=inf")
    assert command(*SEARCH, *chosen, "--out", plan).code == 0
    assert command("verify", plan).code == 0
    assert json.loads(plan.read_text())["training"]["max_norm"] == "inf"
