"""Random programs under random timing: every measured trace is one that the credit monitor accepts."""

from __future__ import annotations

import random

import pytest

from executor.runtime.hooks import Hooks
from executor.runtime.measured import measured_timeline
from strategy.graph.graph import Graph
from strategy.program.timeline import by_stream
from tests.executor.programs import load
from tests.support.long_parameters import long_but
from tests.support.monitor import check_trace
from tests.support.random_programs import live_program
from tests.support.threads import run_loopback

STEPS = 3


@pytest.mark.parametrize("place", long_but(range(30), *range(0, 30, 3)))
def test_every_trace_is_accepted(place: int) -> None:
    seed, program = live_program(place, seed=500, resources=False)
    rng = random.Random(seed)
    hooks = Hooks(delay=lambda actor, number: rng.choice((0.0, 0.0, 0.0001, 0.001)))
    workers = run_loopback(program, Graph({}, ()), {}, load, steps=STEPS, hooks=lambda rank: hooks, stall_s=10)
    timeline = measured_timeline(program, [row for worker in workers for row in worker.records], steps=STEPS)
    assert check_trace(program, timeline.records) == []
    for stream, rows in zip(program.streams, by_stream(timeline), strict=True):
        if not stream.dynamic:
            assert [row.actor for row in rows] == list(stream.sequence) * STEPS
