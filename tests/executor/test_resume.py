"""A training that is stopped and gone on with learns what one learns that is not: every optimiser, other layouts.

Pairs of plans that are drawn at random: `python -m tests.campaigns resume`.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from executor.checkpoint import Reader, latest, load, save
from executor.train import checkpoint_meta
from strategy.base.errors import InputError
from strategy.graph.graph import Role
from strategy.graph.ops.learning_rate import Decay
from strategy.passes.training import Training
from strategy.passes.updates import Optimizer
from strategy.plan.plan import Plan
from strategy.sbp.tensor import Box, DType
from tests.campaigns import resume
from tests.support.long_parameters import long_but
from tests.support.small_plans import MODEL, Trained, config_of, corpus, deduced_plan, request, train

TEXT = corpus(MODEL.vocabulary)
TRAINING = Training(4, 2, dtype=DType.FLOAT64, decay=Decay.COSINE, decay_steps=6, warm_up=2)


@cache
def plan_of(training: Training, *, dp: int = 1, tp: int = 1, **zero: Any) -> Plan:
    return deduced_plan(request(dp * tp, training), config_of(training, dp=dp, tp=tp, **zero), ("data", "tensor"))


def keep(folder: Path, plan: Plan, trained: Trained) -> None:
    """One rank writes what all own."""
    pieces = [piece for trainer in trained.trainers for piece in trainer.owned_pieces()]
    save(folder, trained.trainers[0].step, pieces, checkpoint_meta(plan, TEXT))


OWNED = {"zero_stage": 2, "zero_owner": True, "zero_min_size": 9}


@pytest.mark.parametrize("zero", long_but([{}, OWNED], 1), ids=["whole", "owned"])
@pytest.mark.parametrize("optimizer", long_but(Optimizer, [*Optimizer].index(Optimizer.MUON)))
def test_two_steps_and_two_are_four(optimizer: Optimizer, zero: dict[str, Any], tmp_path: Path) -> None:
    """The act numbers count on, and with them the learning rate and the correction of Adam's moments."""
    training = replace(TRAINING, optimizer=optimizer)
    first, second = plan_of(training, dp=2, **zero), plan_of(training, tp=2)
    keep(tmp_path / "half", first, train(first, TEXT, steps=2))
    half = latest(tmp_path / "half")
    assert half is not None
    resumed = train(second, TEXT, steps=2, checkpoint=half)
    whole = train(second, TEXT, steps=4)
    keep(tmp_path / "resumed", second, resumed)
    keep(tmp_path / "whole", second, whole)
    found, wanted = latest(tmp_path / "resumed"), latest(tmp_path / "whole")
    assert found is not None
    assert wanted is not None
    assert (found.step, [report.step for report in resumed.reports]) == (4, [3, 4])
    for value in second.graph.with_role(Role.VARIABLE):
        one, other = load(found, value.name), load(wanted, value.name)
        assert np.abs(one - other).max() <= 1e-9 * max(1.0, float(np.abs(other).max())), value.name
    for report, other in zip(resumed.reports, whole.reports[2:], strict=True):
        assert report.loss == pytest.approx(other.loss, rel=1e-9)


def test_another_optimiser_or_schedule_is_another_run(tmp_path: Path) -> None:
    plan = plan_of(TRAINING)
    keep(tmp_path, plan, train(plan, TEXT, steps=1))
    checkpoint = latest(tmp_path)
    for other in ({"optimizer": Optimizer.ADAM}, {"warm_up": 3}, {"frozen": ("token",)}, {"lr": 1.0}):
        with pytest.raises(InputError, match=r"optimiser: the checkpoint is of another run|optimiser"):
            train(plan_of(replace(TRAINING, **other)), TEXT, steps=1, checkpoint=checkpoint)


MESHES: list[dict[str, int]] = [{}, {"dp": 2}, {"tp": 2}, {"dp": 2, "tp": 2}, {"dp": 2, "zero_stage": 2}]


@pytest.mark.parametrize("saved_on", long_but(range(len(MESHES)), 3))
def test_what_one_mesh_saved_any_other_gathers_bit_by_bit(saved_on: int, tmp_path: Path) -> None:
    """Parameters and moments, over all 20 pairs of these meshes: loaded there, and saved again."""
    training = replace(TRAINING, dtype=DType.FLOAT32)
    first = plan_of(training, **MESHES[saved_on])
    keep(tmp_path / "one", first, train(first, TEXT, steps=1))
    one = latest(tmp_path / "one")
    assert one is not None
    wanted = {name: load(one, name).tobytes() for name in one.manifest.tensors}
    others = [mesh for number, mesh in enumerate(MESHES) if number != saved_on]
    for number, mesh in enumerate(others):
        second = plan_of(training, **mesh)
        keep(tmp_path / f"other-{number}", second, train(second, TEXT, steps=0, checkpoint=one))
        other = latest(tmp_path / f"other-{number}")
        assert other is not None
        assert {name: load(other, name).tobytes() for name in other.manifest.tensors} == wanted, mesh
    assert len(others) == 4


@pytest.mark.parametrize("cases", long_but([2, 6]))
def test_what_one_random_plan_saved_another_gathers_bit_by_bit(cases: int) -> None:
    outcome = resume.run(cases, seed=0)
    assert outcome.failures == []


@pytest.mark.long
def test_a_piece_that_is_loaded_from_elsewhere_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the campaign must not accept: the first rows of a tensor wherever its others are asked for."""
    real = Reader.load

    def astray(self: Reader, name: str, box: Box | None = None) -> Any:
        moved = None if box is None else tuple((0, end - begin) for begin, end in box)
        return real(self, name, moved)

    monkeypatch.setattr(Reader, "load", astray)
    assert any("has other bits under" in failure for failure in resume.run(2, seed=0).failures)
