"""Commands that README and the pages print, in fenced blocks, and what the marks above these say of them.

`<!-- not run: REASON -->` above a block says why nothing runs it, `<!-- long: 300 s -->` what each of its commands may
take at most. Blocks in the languages of programs and files are not commands.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
USUAL_S = 200.0
_BLOCK = re.compile(r"(?:^<!-- ([a-z ]+): ([^\n]+) -->\n)?^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(sbplan|mpiexec|printf|python|pip|make|source|srun) ")


@dataclass(frozen=True, slots=True)
class Printed:
    """A command, the page that prints it, its most seconds, and why it is not run, if it is not."""

    page: str
    line: str
    limit_s: float = USUAL_S
    not_run: str = ""


def printed(page: Path) -> Iterator[Printed]:
    """The commands of a page in their order.

    Raises:
        ValueError: a mark that means nothing.
    """
    for word, text, language, block in _BLOCK.findall(page.read_text()):
        if word not in ("", "long", "not run"):
            raise ValueError(f"{page.name}: no such mark: {word}: {text}")
        limit_s = float(text.removesuffix(" s")) if word == "long" else USUAL_S
        if language not in ("", "sh"):
            continue
        for line in block.replace("\\\n", " ").splitlines():
            if _COMMAND.match(line):
                yield Printed(page.name, line, limit_s, text if word == "not run" else "")


def programs(page: Path) -> list[str]:
    """The programs in Python on a page."""
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)
