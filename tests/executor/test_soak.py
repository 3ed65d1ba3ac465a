"""A short soak of a real job, and what a long one must not accept: `python -m tests.campaigns soak --seconds 3600`."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from tests.campaigns.soak import EVERY, MOST_GROWTH_BYTES, Window, compared, soak
from tests.mpi.jobs import Job
from tests.mpi.plans import MODEL, small_plan, write_small_plan

FIRST = Window(100, 1.0e-3, 3.0, {1: 10**8, 2: 10**8}, 200, 0.01)
LATER = replace(FIRST, loss=2.5)


@pytest.mark.mpi
@pytest.mark.long
def test_a_job_trains_and_saves_until_it_is_ended(tmp_path: Path) -> None:
    windows = list(soak(tmp_path, "mixed", windows=2, seconds=6.0))
    assert all(one.steps > 1 and one.step_time_s > 0 for one in windows)
    untrained = math.log(MODEL.vocabulary)  # two windows of a busy machine may be too close to tell apart
    assert all(one.loss < untrained - 1 for one in windows)
    assert windows[0].resident_bytes.keys() == windows[1].resident_bytes.keys()
    assert min(windows[0].resident_bytes.values()) > 2**20
    assert windows[-1].saved_step % EVERY == 0


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.parametrize("layout", ["mixed", "tensor", "stages", "grid", "ring", "shared", "groups"])
def test_a_step_leaves_nothing_to_the_garbage_collector(tmp_path: Path, layout: str) -> None:
    """It looks seldom, so that memory would grow until then: a collector that has nothing to do may be as lazy."""
    plan, ranks = write_small_plan(tmp_path, layout), small_plan(layout).ranks
    saves = ("--checkpoint", "saved", "--checkpoint-every", 5, "--keep", 2)
    verb = ("train", plan, "--steps", 56, *saves, "--json")
    ended = Job(tmp_path, tmp_path, 35, 55, *verb, ranks=ranks, module="tests.mpi.reference_cycles").wait()
    assert ended.code == 0, ended.stderr
    assert [json.loads((tmp_path / f"cycles.{rank}").read_text()) for rank in range(ranks)] == [{}] * ranks


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
    assert list(compared([last], 5e-4)) == [], "the first is what others are compared with"
    (found,) = compared([FIRST, LATER, last], 5e-4)
    assert said in found


def test_a_step_has_no_time_of_its_own_where_a_rank_waits_for_a_core() -> None:
    slower = replace(LATER, step_time_s=1.2e-3, waited=0.3)
    assert list(compared([FIRST, slower], 5e-4)) == []
    assert list(compared([replace(FIRST, waited=0.3), replace(slower, waited=0.0)], 5e-4)) == []
