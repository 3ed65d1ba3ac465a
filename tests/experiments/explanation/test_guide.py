"""docs/explain.md tells of every flag; its commands are run with those of all pages."""

from __future__ import annotations

import pytest

from tests.conftest import ROOT

GUIDE = (ROOT / "docs" / "explain.md").read_text()


@pytest.mark.parametrize("word", ["--diff", "--op", "--why-not", "--others", "--calibration"])
def test_the_guide_tells_of_every_flag(word: str) -> None:
    assert word in GUIDE
