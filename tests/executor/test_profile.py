"""What a profile makes of times that a loaded machine gives."""

from __future__ import annotations

from collections import Counter

import pytest

from executor import profile
from executor.collective_profile import CollectiveSample, collective_samples
from executor.profile import TRIES, profile_collectives
from executor.runtime.transport.base import Transport
from executor.runtime.transport.loopback import LoopbackHub
from strategy.base.errors import RunError
from strategy.cost.calibrate import fitted_kinds
from strategy.cost.measurement import CostKey, Measurement
from strategy.program.program import ActKind
from tests.support.small_plans import cluster

KEY = CostKey(ActKind.TRANSFER, level="intra")
QUIET_S_PER_BYTE = 1e-9


def profiled(monkeypatch: pytest.MonkeyPatch, loaded: int) -> tuple[list[Measurement], Counter[CostKey]]:
    """Rows of two ranks, the first so many rounds of transfers on a machine that holds up small messages for long."""
    samples, timed = collective_samples(cluster(2)), Counter[CostKey]()
    sizes = len([sample for sample in samples if sample.features.key == KEY])

    def time_one(sample: CollectiveSample, _transport: Transport) -> list[float]:
        key, quiet_s = sample.features.key, 1e-5 + QUIET_S_PER_BYTE * sample.features.nbytes
        held_up = key == KEY and timed[key] < loaded * sizes
        timed[key] += 1
        return [1.0 / sample.features.nbytes**0.1 if held_up else quiet_s] * 7

    monkeypatch.setattr(profile, "time_collective", time_one)
    transport = LoopbackHub(2).transport(0)
    rows = profile_collectives(samples, transport, longest=list, progress=lambda _: None)
    return rows, timed


def test_bytes_that_seem_free_are_measured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of that kind alone; what load added is not in the row."""
    rows, timed = profiled(monkeypatch, loaded=2)
    found = fitted_kinds(rows)
    assert found[KEY].coefficients.s_per_byte == pytest.approx(QUIET_S_PER_BYTE, rel=1e-6)
    assert all(one.coefficients.s_per_byte > 0 for one in found.values())
    once = {count for key, count in timed.items() if key != KEY}
    assert {timed[KEY] // count for count in once} == {3}


def test_bytes_that_stay_free_are_no_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RunError, match=r"transfer@intra does not grow with its bytes \(128 bytes in .*quiet"):
        profiled(monkeypatch, loaded=TRIES + 1)
