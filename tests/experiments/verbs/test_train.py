"""Training by a plan on real ranks: nothing that a plan decides may show in what is learnt."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.checkpoint import Checkpoint, latest, load
from experiments.store.store import RunStatus, RunStore
from strategy.base.files import LOCK_NAME
from strategy.graph.graph import Role
from strategy.layout.layout import home_of
from strategy.plan.plan import read_plan
from strategy.program.timeline import read_timeline
from strategy.sbp.sbp import local_box
from strategy.sbp.tensor import DType
from tests.mpi.jobs import Ended, run, run_well
from tests.mpi.plans import DEGREES, LAYOUTS, small_plan, write_small_plan
from tests.support.long_parameters import long_but

pytestmark = pytest.mark.mpi
STEPS = 7
STEP_KEYS = {"step", "loss", "skipped", "step_time_s", "tokens_per_s", "grad_norm"}
SUMMARY_KEYS = {
    "steps",
    "predicted_step_time_s",
    "measured_step_time_s",
    "error",
    "final_loss",
    "skipped_steps",
    "peak_memory_bytes",
    "plan_hash",
}


@dataclass(frozen=True, slots=True)
class Trained:
    """A training run of `STEPS` steps: what it said, and what it left."""

    ended: Ended
    checkpoint: Checkpoint
    run_folder: Path

    @property
    def steps(self) -> list[dict[str, Any]]:
        """The document of every step."""
        return self.ended.documents[:-1]

    @property
    def losses(self) -> list[float]:
        """The loss of every step."""
        return [document["loss"] for document in self.steps]

    @property
    def summary(self) -> dict[str, Any]:
        """The last document."""
        return self.ended.documents[-1]


Train = Callable[[str, DType], Trained]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Train:
    """Train by a layout, once per module."""

    @cache
    def train(layout: str, dtype: DType) -> Trained:
        folder = tmp_path_factory.mktemp(f"{layout}-{dtype}")
        plan = write_small_plan(folder, layout, dtype)
        ranks = small_plan(layout, dtype).ranks
        ended = run_well(
            folder,
            "train",
            plan,
            "--steps",
            STEPS,
            "--json",
            "--checkpoint",
            "saved",
            ranks=ranks if ranks > 1 else None,
        )
        checkpoint = latest(folder / "saved")
        assert checkpoint is not None
        return Trained(ended, checkpoint, folder / ended.documents[-1]["run"])

    return train


def relative(a: list[float], b: list[float]) -> float:
    """The largest relative difference."""
    return max(abs(x - y) / abs(y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize(
    ("layout", "dtype"),
    long_but(itertools.product(("stages", "grid", "mixed", "ring", "groups"), (DType.FLOAT32, DType.FLOAT64)), 4),
)
def test_a_plan_learns_what_one_rank_learns(trained: Train, layout: str, dtype: DType) -> None:
    found, alone = trained(layout, dtype), trained("alone", dtype)
    assert found.checkpoint.step == alone.checkpoint.step == STEPS
    assert len(found.losses) == STEPS
    assert alone.losses[-1] < 0.9 * alone.losses[0]
    assert relative(found.losses, alone.losses) <= (1e-4 if dtype is DType.FLOAT32 else 1e-10)
    assert set(found.checkpoint.manifest.tensors) == set(alone.checkpoint.manifest.tensors)
    assert {v.name for v in small_plan(layout, dtype).graph.with_role(Role.VARIABLE)} == set(
        found.checkpoint.manifest.tensors
    )
    tolerance = 1e-3 if dtype is DType.FLOAT32 else 1e-9
    for name in alone.checkpoint.manifest.tensors:
        expected, got = load(alone.checkpoint, name), load(found.checkpoint, name)
        assert got.dtype == np.dtype(dtype)
        assert np.abs(got - expected).max() <= tolerance * max(1.0, np.abs(expected).max()), name


@pytest.mark.parametrize("layout", long_but(["stages", "grid", "mixed", "groups"], 2))
def test_ranks_hold_and_send_what_the_plan_says(trained: Train, layout: str) -> None:
    found, plan = trained(layout, DType.FLOAT32), small_plan(layout)
    assert found.summary["sent_bytes_per_step"] == list(plan.claims.sent_bytes_per_step)
    assert min(found.summary["sent_bytes_per_step"]) > 0
    assert found.summary["register_bytes"] == list(plan.claims.peak_memory_bytes)
    assert all(0 < nbytes < 1e6 for nbytes in found.summary["scratch_bytes"])
    seen = 0
    for value in plan.graph.with_role(Role.VARIABLE):
        home = home_of(plan.graph, plan.layout.stages, plan.layout.signatures, value.name)
        assert home is not None
        placement = plan.layout.stages.placements[home.stage]
        pieces = {
            rank: local_box(value.spec.shape, home.layout, placement.mesh, placement.coords(rank))
            for rank in placement.devices
        }
        shards = found.checkpoint.manifest.tensors[value.name].shards
        assert {shard.box for shard in shards} == set(pieces.values())
        assert all(pieces[int(shard.file[len("rank-") : -len(".safetensors")])] == shard.box for shard in shards)
        seen += len(shards) > 1
    assert seen > 0, "no parameter is split: this layout shows nothing"


def test_the_mixed_plan_mixes_op_by_op() -> None:
    """Attention's weights whole and the MLP's split, on one axis."""
    signatures = small_plan("mixed").layout.signatures
    attention = signatures["layers.0.attn.qkv.matmul"].inputs[1]
    mlp = signatures["layers.0.mlp.fc1.matmul"].inputs[1]
    assert attention != mlp


@pytest.mark.parametrize("layout", long_but(["alone", "mixed", "stages"], 0, 1))
def test_one_line_per_step_then_the_summary(trained: Train, layout: str) -> None:
    found, plan = trained(layout, DType.FLOAT32), small_plan(layout)
    assert [set(document) for document in found.steps] == [STEP_KEYS] * STEPS
    assert [document["step"] for document in found.steps] == list(range(1, STEPS + 1))
    for document in found.steps:
        assert document["step_time_s"] > 0
        assert document["grad_norm"] > 0
        assert document["tokens_per_s"] == pytest.approx(plan.tokens_per_step / document["step_time_s"])
    summary = found.summary
    assert set(summary) >= SUMMARY_KEYS
    assert summary["steps"] == STEPS
    assert summary["final_loss"] == found.losses[-1]
    assert summary["plan_hash"] == plan.plan_hash
    assert summary["predicted_step_time_s"] == plan.claims.step_time_s
    measured = sorted(document["step_time_s"] for document in found.steps)
    assert measured[0] <= summary["measured_step_time_s"] <= measured[-1]
    assert summary["error"] == pytest.approx(
        abs(plan.claims.step_time_s - summary["measured_step_time_s"]) / summary["measured_step_time_s"]
    )


def test_a_run_leaves_its_plan_its_timeline_and_its_row(trained: Train) -> None:
    found, plan = trained("mixed", DType.FLOAT32), small_plan("mixed")
    assert read_plan(found.run_folder / "plan.json").plan_hash == plan.plan_hash
    timeline = read_timeline(found.run_folder / "timeline.json.gz")
    assert {timeline.actors[record.actor].rank for record in timeline.records} == set(range(plan.ranks))
    (row,) = RunStore(found.run_folder.parent).list()
    assert (row.status, row.plan_hash, row.folder.name) == (RunStatus.DONE, plan.plan_hash, found.run_folder.name)
    assert row.summary["final_loss"] == found.losses[-1]


def test_people_read_steps_on_stderr(tmp_path: Path) -> None:
    ended = run_well(tmp_path, "train", write_small_plan(tmp_path, "alone"), "--steps", 2)
    assert ended.stdout == ""
    assert [line.split("loss")[0].split() for line in ended.messages[:2]] == [["step", "1"], ["step", "2"]]
    assert ended.messages[2].startswith("run folder: runs/train-")


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, but the lock: that names the process that held the folder last."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != LOCK_NAME)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def damage(folder: Path, how: str) -> Path:
    """A copy of what two ranks saved, spoilt in one way; its folder."""
    for step in (folder / "saved").glob("step-*"):
        if how == "truncated shard":
            (step / "rank-0.safetensors").write_bytes((step / "rank-0.safetensors").read_bytes()[:500])
        if how == "missing shard":
            (step / "rank-1.safetensors").unlink()
        if how == "truncated manifest":
            (step / "manifest.json").write_bytes((step / "manifest.json").read_bytes()[:100])
    return folder / "saved"


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what two ranks saved after two steps."""
    folder = tmp_path_factory.mktemp("two-ranks")
    plan = write_small_plan(folder, "mixed")
    run_well(folder, "train", plan, "--steps", 2, "--checkpoint", "saved", ranks=2)
    return folder / "saved"


OTHER_RANKS = "the plan is for another number of ranks (got '{} processes', expected {}); start it with mpiexec -n {}"
NOTHING = "--resume: nothing to resume from; name the folder with --checkpoint DIR"
NO_CHECKPOINT = "--checkpoint nowhere: no checkpoint to resume from; leave out --resume"
ONE_IS_THERE = (
    "--checkpoint saved: the folder holds a checkpoint of step 2; add --resume to go on from it, or name another folder"
)
NO_DATA = "data no.txt: no such file or folder"


@pytest.mark.parametrize(
    ("ranks", "layout", "arguments", "message"),
    long_but(
        [
            (3, "stages", [], OTHER_RANKS.format(3, 4, 4)),
            (None, "mixed", [], OTHER_RANKS.format(1, 2, 2)),
            (2, "mixed", ["--resume"], NOTHING),
            (None, "alone", ["--resume"], NOTHING),
            (2, "mixed", ["--resume", "--checkpoint", "nowhere"], NO_CHECKPOINT),
            (2, "mixed", ["--checkpoint", "saved"], ONE_IS_THERE),
            (2, "mixed", ["--checkpoint", "mixed-float32.json"], "--checkpoint mixed-float32.json: not a folder"),
            (None, "alone", ["--checkpoint", "alone-float32.json"], "--checkpoint alone-float32.json: not a folder"),
            (2, "mixed", ["--data", "no.txt"], NO_DATA),
            (None, "alone", ["--data", "no.txt"], NO_DATA),
        ],
        *(1, 5),
    ),
)
def test_what_cannot_be_trained_is_told_once(
    tmp_path: Path, saved: Path, ranks: int | None, layout: str, arguments: list[str], message: str
) -> None:
    copy_tree(saved, tmp_path / "saved")
    before = snapshot(tmp_path / "saved")
    plan = write_small_plan(tmp_path, layout)
    ended = run(tmp_path, "train", plan, "--json", *arguments, ranks=ranks)
    assert (ended.code, ended.stdout, ended.stderr) == (2, "", f"sbplan: {message}\n")
    assert snapshot(tmp_path / "saved") == before
    assert not (tmp_path / "nowhere").exists()


def copy_tree(source: Path, target: Path) -> None:
    for name, content in snapshot(source).items():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(content)


SPOILT = [
    ("truncated shard", DType.FLOAT32, r"rank-0\.safetensors: the shard file has another size \(got 500\); remove"),
    ("missing shard", DType.FLOAT32, r"rank-1\.safetensors: the shard file is missing, or is not a plain file; "),
    ("truncated manifest", DType.FLOAT32, r"manifest\.json: not a manifest of ours .*; remove step-00000002 to "),
    ("of another run", DType.FLOAT64, r"dtype: the checkpoint is of another run \(got 'float32', expected float64"),
]


@pytest.mark.parametrize(
    ("layout", "how", "dtype", "message"),
    long_but([(layout, *one) for layout in ("alone", "mixed") for one in SPOILT], 0),
)
def test_a_checkpoint_that_is_not_whole_or_not_ours_is_refused(
    tmp_path: Path, saved: Path, layout: str, how: str, dtype: DType, message: str
) -> None:
    copy_tree(saved, tmp_path / "saved")
    before = snapshot(damage(tmp_path, how))
    plan, ranks = write_small_plan(tmp_path, layout, dtype), None if layout == "alone" else 2
    ended = run(tmp_path, "train", plan, "--steps", 4, "--json", "--resume", "--checkpoint", "saved", ranks=ranks)
    assert (ended.code, ended.stdout, len(ended.messages)) == (2, "", 1), ended
    assert re.search(message, ended.stderr), ended.stderr
    assert snapshot(tmp_path / "saved") == before


@pytest.mark.parametrize("how", long_but(["missing", "truncated"], 1))
def test_a_plan_that_is_not_there_or_not_whole_is_refused(tmp_path: Path, how: str) -> None:
    plan = write_small_plan(tmp_path, "mixed")
    if how == "missing":
        plan.unlink()
    else:
        plan.write_bytes(plan.read_bytes()[:3000])
    ended = run(tmp_path, "train", plan, "--json", "--checkpoint", "saved", ranks=2)
    assert (ended.code, ended.stdout, len(ended.messages)) == (2, "", 1), ended
    assert ended.messages[0].startswith(f"sbplan: {plan}: ")
    assert ("no such file" if how == "missing" else "the file ends in the middle") in ended.stderr
    assert not (tmp_path / "saved").exists()


def test_a_gpu_that_is_not_there_is_told_once(tmp_path: Path) -> None:
    plan = write_small_plan(tmp_path, "alone")
    if has_gpu():
        pytest.skip("there is a GPU here")
    ended = run(tmp_path, "train", plan, "--json", "--backend", "cupy")
    assert (ended.code, ended.stdout, len(ended.messages)) == (5, "", 1), ended
    assert ended.stderr.startswith("sbplan: --backend cupy needs ")


def has_gpu() -> bool:
    try:
        import cupy
    except ImportError:
        return False
    return bool(cupy.cuda.is_available())


@pytest.mark.long
def test_every_layout_is_of_its_degrees() -> None:
    for name, (asked, _) in LAYOUTS.items():
        config = small_plan(name).config
        assert {key: getattr(config, key) for key in (*DEGREES, *asked)} == {**dict.fromkeys(DEGREES, 1), **asked}
