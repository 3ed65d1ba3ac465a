"""Commands as they are printed: README and the pages are followed to the letter, each in an empty folder.

What the reader is taken to have is put there first (`GIVEN`). Pages whose commands take ranks, or a program that the
page prints, have tests of their own (`ELSEWHERE`); what nothing runs says on the page why.
"""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from experiments.cli import VERBS, parse
from experiments.command.exit_codes import EXIT_LIMIT
from tests.support.printed import PAGES, ROOT, Printed, printed, programs

ALL = [one for page in PAGES for one in printed(page)]
LEAST, LEAST_RUN = 90, 60
"""Commands that there are in all, and that are run: a pattern that finds none would hold them all."""
REFERENCE = ROOT / "experiments" / "reference"
QWEN = f"cp {REFERENCE}/huggingface/configs/Qwen3-0.6B.json"
EXPERTS = f"cp {REFERENCE}/huggingface/configs/Qwen3-30B-A3B.json"
CONTEST = f"cp {REFERENCE}/iopddl/asplos-2025-iopddl-G.json.gz problem.json.gz"
PROGRAM = f"cp {REFERENCE}/programs/bert.pt2 model.pt2"
TINY = "sbplan search gpt-tiny --cluster local:2 --global-batch 16 --time-limit 20 --out plan.json"
MINE = """cat > mine.py << END
from strategy.nn.layers import Linear
from strategy.nn.module import Module
from strategy.sbp.tensor import TensorSpec


class Classifier(Module):
    def __init__(self):
        self.head = Linear(8, 4)

    def inputs(self, micro_batch):
        return {"x": TensorSpec((micro_batch, 8))}

    def forward(self, x):
        return self.head(x)


model = Classifier
END"""
GIVEN: Mapping[str, tuple[str, ...]] = {
    "README.md": (
        f"mkdir -p path/to && {QWEN} path/to/config.json",
        f"cp {REFERENCE}/trainer_configs/torchtitan/llama3__llama3_8b.toml train.toml",
        f"head -n 40 {REFERENCE}/published/training_measurements.csv > rows.csv",
        CONTEST,
        PROGRAM,
    ),
    "certificates.md": (CONTEST, TINY),
    "clusters.md": (
        "printf 'node1 slots=8\nnode2 slots=8\n' > hosts",
        r"printf '\tGPU0\tGPU1\nGPU0\t X \tNV18\nGPU1\tNV18\t X \n' > topology.txt",
    ),
    "programs.md": (PROGRAM, f"cp {REFERENCE}/programs/bert.onnx model.onnx", MINE),
    "trainers.md": (f"{EXPERTS} config.json", f"mkdir small && {QWEN} small/config.json"),
}
"""Page -> commands that make what its reader has."""
ELSEWHERE = {
    "adding_an_op.md": "tests/test_docs.py",
    "front_end.md": "tests/test_front_end_guide.py",
    "negotiation.md": "tests/test_negotiation_page.py",
    "python.md": "tests/experiments/test_api.py",
}
"""Pages with programs, and what runs these; of the first three their commands, too, which need them."""
SAID = {
    "sbplan export plan.json --to": "read back, it is the same plan",
    "sbplan export megatron.json --to": "read back, it is the same plan",
    "sbplan explain plan.json --why-not tp=8": "with tp=8",
    'sbplan explain plan.json --why-not "tp=3"': "it takes at least 24",
    "sbplan verify plan.json": "accepted",
    "sbplan verify --certificate": "accepted",
}
"""How commands start -> what they say then."""
LEFT = {"explain.md": "report.html", "trainers.md": "train.toml", "README.md": "timeline.png"}
"""Page -> a file that its commands leave."""
LONG = {"README.md", "certificates.md", "explain.md", "gpu.md", "programs.md", "trainers.md", "what_if.md"}
"""Pages with searches or builds of minutes: `make long` follows them."""


def runs_here(one: Printed) -> bool:
    return not one.not_run and one.page not in set(ELSEWHERE) - {"python.md"}


def test_there_are_commands() -> None:
    assert len(ALL) >= LEAST
    assert sum(map(runs_here, ALL)) >= LEAST_RUN
    text = (ROOT / "README.md").read_text()
    assert [verb for verb in VERBS if f"sbplan {verb}" not in text] == []


@pytest.mark.parametrize("one", ALL, ids=lambda one: f"{one.page}: {one.line}"[:80])
def test_what_is_printed_is_taken(one: Printed) -> None:
    found = re.match(r"(?:mpiexec -n \S+ |srun -N1 )?(sbplan .*)", one.line)
    if found is None or "drawing" in one.not_run:
        return
    words = shlex.split(found[1], comments=True)
    if any(word in ("|", ">", ">(", "&&", ";") for word in words):
        words = words[: next(i for i, word in enumerate(words) if word in ("|", ">", "&&", ";"))]
    parse(words[1], words[2:])


def test_what_is_not_run_says_why_and_names_tests_that_there_are() -> None:
    left_out = {(one.page, one.not_run) for one in ALL if one.not_run}
    for page, reason in sorted(left_out):
        print(f"not run, {page}: {reason}")
        assert len(reason.split()) >= 2, (page, reason)
        for path in re.findall(r"tests/[\w/]+(?:\.py)?", reason):
            assert (ROOT / path).exists(), (page, path)
    assert len(left_out) <= 14, "the rest is run"


def test_every_program_is_run() -> None:
    assert {page.name for page in PAGES if programs(page)} == set(ELSEWHERE)
    for page, path in ELSEWHERE.items():
        assert page in (ROOT / path).read_text(), path


def _page(name: str) -> object:
    return pytest.param(name, marks=pytest.mark.long if name in LONG else ())


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("page", [_page(name) for name in sorted({one.page for one in ALL if runs_here(one)})])
def test_a_page_is_followed_to_the_letter(page: str, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    for name, words in (("sbplan", "-P -m experiments"), ("python", "")):
        script = tmp_path / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {sys.executable} {words} "$@"\n')
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
    folder = tmp_path / "empty"
    folder.mkdir()
    for line in GIVEN.get(page, ()):
        follow(line, folder, 200.0)
    for one in (one for one in ALL if one.page == page and runs_here(one)):
        said = follow(one.line, folder, one.limit_s)
        for start, wanted in SAID.items():
            assert not one.line.startswith(start) or wanted in said, f"{one.line}\n{said}"
    assert (folder / LEFT.get(page, ".")).exists()


def follow(line: str, folder: Path, limit_s: float) -> str:
    """What a command says that has to succeed; a search on a busy machine may end at its limit."""
    path = f"{folder.parent / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", line],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{folder}", "PATH": path},
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    codes = (0, EXIT_LIMIT) if line.startswith("sbplan search ") else (0,)
    assert done.returncode in codes, f"{line}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout + done.stderr
