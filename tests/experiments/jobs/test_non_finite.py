"""A loss that is no number: training stops in the step, names the op that began it, and keeps the state before it."""

from __future__ import annotations

from pathlib import Path

import pytest

from executor.checkpoint import latest
from tests.mpi.faults import losses_of, never_killed
from tests.mpi.jobs import Job, run_well
from tests.mpi.plans import MODEL, write_small_plan
from tests.support.long_parameters import long_but

pytestmark = pytest.mark.mpi
STEP = 4


@pytest.mark.parametrize(("layout", "ranks", "victim"), long_but([("mixed", 2, 1), ("stages", 4, 2), ("tensor", 2, 0)]))
def test_the_first_op_is_named_and_the_state_before_it_saved(
    tmp_path: Path, layout: str, ranks: int, victim: int
) -> None:
    plan = write_small_plan(tmp_path, layout)
    start = ("train", plan, "--json", "--checkpoint", "saved")
    job = Job(tmp_path, "nan", victim, STEP, *start, "--steps", 50, ranks=ranks, module="tests.mpi.broken")
    ended = job.wait()
    assert ended.code == 6
    saved, told = ended.messages
    assert saved == f"sbplan: the state before step {STEP} is saved in saved"
    assert told.startswith(f"sbplan: rank {victim} (pid ")
    first = {"stages": MODEL.layers // 2}.get(layout, 0)
    assert (
        f"failed in layers.{first}.mlp.gelu (compute), step {STEP}: the first nan of step {STEP}, micro-batch 2 of 2"
        in told
    )
    assert "the state was finite before it" in told
    gelus = MODEL.layers // (2 if layout == "stages" else 1)
    assert len((tmp_path / "poisoned").read_text().splitlines()) == 2 * gelus  # the step, and once more
    checkpoint = latest(tmp_path / "saved")
    assert checkpoint is not None
    assert checkpoint.step == STEP - 1
    resumed = run_well(tmp_path, *start, "--steps", STEP + 1, "--resume", ranks=ranks)
    whole = never_killed(layout, STEP + 1)
    assert losses_of(resumed) == {step: whole[step] for step in (STEP, STEP + 1)}
