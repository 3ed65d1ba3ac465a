"""Tuning: fragment size and number of streams, found early in training by trying a few of them.

Every trial is some steps of training with one setting, whose mean is what is judged, stragglers and all. All fragments
are tried with some streams, all numbers of streams with the best fragment, and so on until nothing changes. Trials are
remembered. The choice is one for all ranks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from simulator.exchange.buckets import MIB
from simulator.exchange.fabric import Fabric
from simulator.exchange.streams import Streams
from simulator.exchange.training import simulate
from simulator.exchange.workload import Workload

FRAGMENTS = tuple(size * MIB for size in (1, 2, 4, 8, 16, 32, 64))
STREAMS = (1, 2, 3, 4, 6, 8, 12, 16)


@dataclass(frozen=True, slots=True)
class Tuned:
    """The setting that was chosen, nanoseconds of its trial's steps, and how many settings were tried."""

    scheme: Streams
    step_ns: int
    trials: int


def tune(
    workload: Workload,
    fabric: Fabric,
    *,
    fragments: Sequence[int] = FRAGMENTS,
    streams: Sequence[int] = STREAMS,
    steps: int = 2,
    seed: int = 0,
) -> Tuned:
    """Search along one dimension after the other; every trial sees stragglers of its own."""
    tried: dict[Streams, int] = {}

    def step_ns(scheme: Streams) -> int:
        if scheme not in tried:
            tried[scheme] = simulate(workload, fabric, scheme, steps=steps, seed=seed + len(tried)).step_ns
        return tried[scheme]

    best, before = Streams(streams[len(streams) // 2], fragments[len(fragments) // 2]), None
    while best != before:
        before = best
        best = min((replace(best, fragment_bytes=size) for size in fragments), key=step_ns)
        best = min((replace(best, streams=count) for count in streams), key=step_ns)
    return Tuned(best, tried[best], len(tried))


def exhaustive(
    workload: Workload,
    fabric: Fabric,
    *,
    fragments: Sequence[int] = FRAGMENTS,
    streams: Sequence[int] = STREAMS,
    steps: int = 2,
) -> Tuned:
    """The best of all settings without stragglers, for comparison."""
    steady = replace(fabric, straggle=0.0)
    schemes = [Streams(count, size) for size in fragments for count in streams]
    times = [simulate(workload, steady, scheme, steps=steps).step_ns for scheme in schemes]
    least_ns = min(times)
    return Tuned(schemes[times.index(least_ns)], least_ns, len(schemes))
