"""Mistakes put into the sources of our kernels, all of `tests.support.cuda_on_host.mutants`: each must be caught.

How many is given by the mutants, not by `--cases` and `--seed`.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from tests.campaigns.outcome import Outcome
from tests.support.cuda_on_host.mutants import MUTANTS, caught


def run(cases: int, seed: int) -> Outcome:
    """Put every mutant to the trials of its op."""
    outcome = Outcome({})
    for name, mutant in MUTANTS.items():
        with tempfile.TemporaryDirectory() as folder:
            seen = caught(mutant, Path(folder))
        outcome.add(name, [] if seen else ["not caught"], [seen.partition(":")[0].rpartition(" of ")[0] or "reported"])
    return outcome
