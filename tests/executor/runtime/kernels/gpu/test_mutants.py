"""Some of the mistakes that one makes in kernels are caught; all of them: `python -m tests.campaigns gpu-kernels`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.cuda_on_host.mutants import MUTANTS, caught
from tests.support.long_parameters import long_but

SOME = {
    "a row's bound is off by one": "heap-buffer-overflow",
    "no barrier between two sums": "an error",
    "a coordinate is left out of the mask": "an error",
    "corrections are read before they are written": "an error",
}
"""Mutants of the suite, and how they are seen."""


@pytest.mark.parametrize("name", long_but(SOME, 3))
def test_a_mutant_is_caught(name: str, tmp_path: Path) -> None:
    assert SOME[name] in caught(MUTANTS[name], tmp_path)
