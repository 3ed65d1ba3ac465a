"""The site: every page is in its index, every link leads somewhere, and it builds strictly where its tools are."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.version import VERSION

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.glob("*.md"))
CONFIG = ROOT / ".mkdocs.yml"


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """What the headings of a page are linked by."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


def test_every_page_is_in_the_index_of_the_site() -> None:
    listed = re.findall(r"^\s*- (?:[\w ]+: )?(\w+\.md)$", CONFIG.read_text(), re.MULTILINE)
    assert sorted(listed) == [page.name for page in PAGES]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "README.md", ROOT / ".github" / "SECURITY.md"], ids=lambda p: p.name)
def test_every_link_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if target.startswith(("http://", "https://")):
            continue
        name, _, anchor = target.partition("#")
        other = (page.parent / name).resolve() if name else page
        assert other.is_file(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(other), f"{page.name}: {target}"


def test_the_citation_is_of_this_version() -> None:
    text = (DOCS / "citation.cff").read_text()
    keys = re.findall(r"^([a-z-]+):", text, re.MULTILINE)
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= set(keys)
    assert f"\nversion: {VERSION}\n" in text


def test_the_reference_names_modules_that_are_there() -> None:
    names = re.findall(r"^::: (\S+)$", (DOCS / "reference.md").read_text(), re.MULTILINE)
    assert names
    assert all((ROOT / Path(*name.split("."))).with_suffix(".py").is_file() for name in names)


def test_the_site_builds_strictly(tmp_path: Path) -> None:
    if importlib.util.find_spec("mkdocs") is None or importlib.util.find_spec("mkdocstrings") is None:
        pytest.skip("mkdocs-material and mkdocstrings are not installed: pip install '.[docs]'")
    words = ["build", "--strict", "--quiet", "--config-file", str(CONFIG), "--site-dir", str(tmp_path / "site")]
    done = subprocess.run([sys.executable, "-m", "mkdocs", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "site" / "reference" / "index.html").is_file()
