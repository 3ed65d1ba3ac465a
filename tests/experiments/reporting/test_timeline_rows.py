"""What is too short to be seen is joined to what is like it: a pass of many short acts stays a bar."""

from __future__ import annotations

import numpy as np

from experiments.explanation.time_by_cause import WORKING
from experiments.reporting.timeline_rows import timeline_rows
from simulator.acts import Acts
from strategy.program.program import ActKind
from strategy.program.timeline import ActorLabel, StreamLabel

CAUSES = {name: name for name in ("forward", "recompute", "backward")}


def test_passes_of_short_acts_are_bars_of_their_own() -> None:
    """Thrice a forward pass and a backward pass of 1,000 ns in acts of 10 ns, 3 of the latter's 10 ahead of the others.

    Eight bars may be drawn. What is computed again is too short to be seen in a backward pass.
    """
    forward, backward = [0] * 100, ([1] * 3 + [2] * 7) * 10
    actor = np.array(3 * (forward + backward))
    start_ns = 10 * np.arange(len(actor))
    acts = Acts(1, np.array([0, len(actor)]), actor, np.arange(len(actor)), start_ns, start_ns + 10, start_ns)
    actors = [ActorLabel(name, 0, ActKind.COMPUTE, 1) for name in CAUSES]
    (row,) = timeline_rows(acts, actors, [StreamLabel(0, "compute")], CAUSES, [0], 6000, most_bars=8).rows
    assert [WORKING[turn] for turn in row.cause] == ["forward", "backward"] * 3
    assert row.start_ns == (0, 1000, 2000, 3000, 4000, 5000)
    assert row.acts == (100, 100) * 3
