"""Random exchanges by two to six ranks that announce in orders of their own: none hangs, none ends in other bits."""

from __future__ import annotations

import json

from tests.campaigns.outcome import Outcome
from tests.mpi.launch import run_ranks

BATCH = 20
RANKS = (2, 5, 3, 6, 4)
"""Cases of one job, and its ranks, by turns."""
QUOTAS = {"codec": 0.4, "no codec": 0.15, "two levels": 0.15, "uneven": 0.1, "several streams": 0.5, "fragments": 0.4}


def run(cases: int, seed: int) -> Outcome:
    """Play `cases` exchanges, in jobs of different numbers of ranks."""
    outcome = Outcome(QUOTAS)
    for number, first in enumerate(range(0, cases, BATCH)):
        count, ranks = min(BATCH, cases - first), RANKS[number % len(RANKS)]
        try:
            told = run_ranks(ranks, "tests.mpi.random_exchanges", str(count), str(seed + first), timeout_s=300)
        except AssertionError as error:  # a rank says what is wrong, or the job does not end
            outcome.cases += count
            outcome.failures.append(f"job {number} of {ranks} ranks: {error}")
            continue
        played = [json.loads(line) for line in told.splitlines()]
        if len(played) != count:
            outcome.failures.append(f"job {number} of {ranks} ranks: {len(played)} of {count} cases")
        for case in played:
            outcome.add(f"{ranks} ranks, seed {case['seed']}", case["failures"], [*case["exercised"], f"{ranks} ranks"])
    return outcome
