"""`sbplan verify --certificate`: accepts what is proved, refuses the rest by name, and needs no search."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from strategy.ilp.certificate.file import write_certificate
from strategy.ilp.problem_file import write_problem
from tests.conftest import ROOT
from tests.experiments.conftest import Command
from tests.strategy.ilp.certificate.test_check import CERTIFICATE, CHAIN
from tests.strategy.ilp.problems import ladder

NO_SEARCH = """
import sys
from experiments.cli import dispatch
assert dispatch(["verify", "--certificate", *sys.argv[1:]]) == 0
search = ("strategy.search", "strategy.ilp.solve", "ortools", "scipy", "numba")
wrong = [name for name in sys.modules if name.startswith(search)]
assert not wrong, wrong
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A certificate and its problem."""
    write_certificate(tmp_path / "chain.cert", CERTIFICATE)
    write_problem(CHAIN, tmp_path / "chain.json")
    return tmp_path / "chain.cert", tmp_path / "chain.json"


def test_what_is_proved_is_accepted(command: Command, files: tuple[Path, Path]) -> None:
    certificate, problem = files
    said = command("verify", "--certificate", certificate, problem, "--json")
    assert said.code == 0
    assert json.loads(said.out) == {
        "accepted": True, "problems": [], "cost": 11, "lower_bound": 11, "gap": 0.0, "leaves": 2, "steps": 3,
    }  # fmt: skip
    assert said.err == (
        f"{certificate}: accepted, nothing costs less than 11, the choice costs 11, gap 0.000% (3 steps, 2 leaves)\n"
    )


def test_what_the_solver_writes_is_accepted_and_always_the_same(command: Command, tmp_path: Path) -> None:
    problem = tmp_path / "ladder.json.gz"
    write_problem(ladder(rungs=10, limit=2 * 10**9), problem)
    written = []
    for name in ("one.cert", "two.cert"):
        said = command("solve", problem, "--certificate", tmp_path / name, "--json")
        assert said.code == 0
        solved = json.loads(said.out.splitlines()[0])
        written.append((tmp_path / name).read_bytes())
    assert written[0] == written[1]
    verified = json.loads(command("verify", "--certificate", tmp_path / "one.cert", problem, "--json").out)
    assert (verified["accepted"], verified["gap"]) == (True, 0.0)
    assert (verified["cost"], verified["lower_bound"]) == (solved["cost"], solved["lower_bound"])


def test_that_nothing_fits_is_proved(command: Command, tmp_path: Path) -> None:
    write_problem(replace(CHAIN, limit=2), tmp_path / "tight.json")
    assert command("solve", tmp_path / "tight.json", "--certificate", tmp_path / "tight.cert").code == 3
    said = command("verify", "--certificate", tmp_path / "tight.cert", tmp_path / "tight.json")
    assert said.code == 0
    assert "accepted, nothing is legal" in said.err


def test_a_place_that_is_not_there_is_said_before_the_work(command: Command, files: tuple[Path, Path]) -> None:
    said = command("solve", files[1], "--certificate", files[1].parent / "missing" / "chain.cert")
    assert said.code == 2
    assert said.out == ""
    assert "no such folder" in said.err


def test_no_search_code_is_imported(files: tuple[Path, Path]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", NO_SEARCH, *map(str, files)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_a_raised_bound_is_refused(command: Command, files: tuple[Path, Path]) -> None:
    certificate, problem = files
    write_certificate(certificate, replace(CERTIFICATE, lower_bound=12, choice=None, cost=None))
    said = command("verify", "--certificate", certificate, problem, "--json")
    assert said.code == 2
    assert json.loads(said.out)["accepted"] is False
    assert "part 0: the proof does not reach its bound (got 'a proof of 11', expected at least 12)" in said.err


def test_the_certificate_of_another_problem_is_refused(
    command: Command, files: tuple[Path, Path], tmp_path: Path
) -> None:
    write_problem(replace(CHAIN, limit=12), tmp_path / "other.json")
    said = command("verify", "--certificate", files[0], tmp_path / "other.json")
    assert said.code == 2
    assert "it is about another problem" in said.err


def test_a_truncated_certificate_is_refused(command: Command, files: tuple[Path, Path]) -> None:
    certificate, problem = files
    certificate.write_bytes(certificate.read_bytes()[:-9])
    said = command("verify", "--certificate", certificate, problem)
    assert said.code == 2
    assert "not a whole certificate" in said.err
