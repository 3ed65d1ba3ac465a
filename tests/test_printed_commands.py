"""Commands as they are printed: each that README and the pages show is one that the command takes."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from experiments.cli import VERBS, parse

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
LEAST = 60
"""Commands that there are in all: a pattern that finds none would hold them all."""


def commands(page: Path) -> Iterator[str]:
    """Lines of fenced blocks that start the command, alone or under mpiexec, without comments."""
    text = page.read_text()
    for block in re.findall(r"^```(?:sh)?\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            found = re.match(r"(?:mpiexec -n \S+ )?(sbplan .*)", line)
            parts = [] if found is None else re.split(r" {3,}", found[1], maxsplit=1)
            if parts and (len(parts) == 1 or parts[1].startswith("#")):  # else it is a column of a drawing
                yield parts[0]


PRINTED = [(page.name, line) for page in PAGES for line in commands(page)]


def test_there_are_commands() -> None:
    assert len(PRINTED) >= LEAST
    text = (ROOT / "README.md").read_text()
    assert [verb for verb in VERBS if f"sbplan {verb}" not in text] == []


@pytest.mark.parametrize(("page", "line"), PRINTED)
def test_what_is_printed_is_taken(page: str, line: str) -> None:
    words = shlex.split(line, comments=True)
    if any(word in ("|", ">", ">(", "&&", ";") for word in words):
        words = words[: next(i for i, word in enumerate(words) if word in ("|", ">", "&&", ";"))]
    parse(words[1], words[2:])
