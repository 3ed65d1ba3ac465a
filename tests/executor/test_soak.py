"""A short soak of a real job, and what a long one must not accept: `python -m tests.campaigns soak --seconds 3600`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.campaigns.soak import EVERY, MOST_GROWTH_BYTES, Window, compared, soak

FIRST = Window(100, 1.0e-3, 3.0, {1: 10**8, 2: 10**8}, 200, 0.5)
LATER = replace(FIRST, loss=2.5)


@pytest.mark.mpi
def test_a_job_trains_and_saves_until_it_is_ended(tmp_path: Path) -> None:
    windows = list(soak(tmp_path, "mixed", windows=2, seconds=6.0))
    assert all(one.steps > 1 and one.step_time_s > 0 for one in windows)
    assert windows[0].loss > windows[1].loss
    assert windows[0].resident_bytes.keys() == windows[1].resident_bytes.keys()
    assert min(windows[0].resident_bytes.values()) > 2**20
    assert windows[-1].saved_step % EVERY == 0


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (replace(LATER, resident_bytes={1: 10**8, 2: 10**8 + 2 * MOST_GROWTH_BYTES}), "process 2 has grown"),
        (replace(LATER, resident_bytes={1: 10**8}), "processes"),
        (replace(LATER, step_time_s=1.2e-3), "a step takes 2.40 times what was predicted, at first 2.00"),
        (replace(LATER, loss=3.0), "loss 3.0000"),
    ],
)
def test_what_a_soak_must_not_accept(last: Window, said: str) -> None:
    assert list(compared([FIRST, LATER, LATER], 5e-4)) == []
    assert list(compared([FIRST, last], 5e-4)) == [], "the second is what others are compared with"
    (found,) = compared([FIRST, LATER, last], 5e-4)
    assert said in found
