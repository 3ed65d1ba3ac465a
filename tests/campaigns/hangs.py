"""Random programs that admission lets in, under mpiexec with three and four ranks, delayed at random: none hangs."""

from __future__ import annotations

import json

from tests.campaigns.outcome import Outcome
from tests.mpi.launch import run_ranks

BATCH = 25
"""Programs of one job."""
SEVERAL = "several communicators"
QUOTAS = {SEVERAL: 0.5, "3 ranks": 0.4, "4 ranks": 0.4}


def run(cases: int, seed: int) -> Outcome:
    """Run `cases` programs, in jobs of three and of four ranks in turn."""
    outcome = Outcome(QUOTAS)
    for number, first in enumerate(range(0, cases, BATCH)):
        count, ranks = min(BATCH, cases - first), 3 + number % 2
        try:
            told = json.loads(
                run_ranks(ranks, "tests.mpi.random_programs", str(count), str(seed + 1000 * number), timeout_s=300)
            )
        except AssertionError as error:  # a rank says that it hangs, or the job does not end
            told = {"ended": 0, SEVERAL: 0}
            outcome.failures.append(f"job {number}: {error}")
        outcome.cases += count
        outcome.coverage.update({f"{ranks} ranks": told["ended"], SEVERAL: told[SEVERAL]})
    return outcome
