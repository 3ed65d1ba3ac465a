"""Goodput: the closed form is what random histories come to, and its best interval is the best."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulator.goodput import Failures, best_interval_s, goodput, of_cluster, simulate_goodput
from strategy.base.errors import InputError

CASES = [Failures(3600.0, 300.0, 20.0), Failures(50_000.0, 600.0, 5.0), Failures(900.0, 400.0, 60.0)]


@pytest.mark.parametrize("failures", CASES)
@pytest.mark.parametrize("share", [0.3, 1.0, 3.0])
def test_random_histories_come_to_the_expectation(failures: Failures, share: float) -> None:
    interval_s = share * best_interval_s(failures)
    found = [simulate_goodput(failures, interval_s, segments=2000, seed=seed) for seed in range(8)]
    mean = sum(found) / len(found)
    half_width = 3 * math.sqrt(sum((x - mean) ** 2 for x in found) / len(found) / (len(found) - 1))
    assert abs(mean - goodput(failures, interval_s)) < half_width + 1e-3


@given(st.floats(100, 1e7), st.floats(0, 1e4), st.floats(0.1, 1e3), st.floats(0.2, 5))
def test_no_interval_beats_the_best(mtbf_s: float, restart_s: float, stall_s: float, share: float) -> None:
    failures = Failures(mtbf_s, restart_s, stall_s)
    best = best_interval_s(failures)
    assert goodput(failures, best) >= goodput(failures, share * best) - 1e-9
    assert 0 <= goodput(failures, best) < 1


def test_rare_failures_leave_youngs_interval() -> None:
    """Young 1974: the root of twice the stall times the mean time between failures."""
    failures = Failures(1e7, 60.0, 10.0)
    assert best_interval_s(failures) == pytest.approx(math.sqrt(2 * 10.0 * 1e7), rel=0.01)
    assert goodput(failures, best_interval_s(failures)) > 0.99


def test_more_devices_fail_more_often() -> None:
    found = [
        goodput(failures, best_interval_s(failures))
        for failures in (Failures(of_cluster(5e7, devices), 600.0, 30.0) for devices in (8, 512, 4096, 32768))
    ]
    assert found == sorted(found, reverse=True)
    assert found[0] > 0.995
    assert found[-1] < 0.7
    assert goodput(Failures(10.0, 1e5, 1.0), 10.0) == 0.0


@pytest.mark.parametrize(
    ("values", "name"),
    [
        ((0.0, 1.0, 1.0), "mtbf_s"),
        ((-1.0, 1.0, 1.0), "mtbf_s"),
        ((math.nan, 1.0, 1.0), "mtbf_s"),
        ((1.0, -1.0, 1.0), "restart_s"),
        ((1.0, 1.0, math.inf), "stall_s"),
    ],
)
def test_durations_are_told_apart_from_nonsense(values: tuple[float, float, float], name: str) -> None:
    with pytest.raises(InputError, match=f"failures: {name}: not a duration"):
        Failures(*values)


@pytest.mark.parametrize("interval_s", [0.0, -5.0, math.nan, math.inf])
def test_an_interval_is_above_zero(interval_s: float) -> None:
    with pytest.raises(InputError, match="not an interval"):
        goodput(CASES[0], interval_s)
