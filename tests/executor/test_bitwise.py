"""Bitwise mode: the same bits whatever the number of ranks and stages, at micro-batches of one size."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from executor.checkpoint import latest, save
from executor.train import checkpoint_meta
from strategy.base.errors import InputError
from strategy.passes.training import Training
from strategy.plan.plan import Plan, write_plan
from strategy.sbp.sbp import B, P
from strategy.space.request import Pins
from tests.mpi.jobs import run_well
from tests.support.small_plans import MODEL, Trained, config_of, corpus, plan_by_rules, request, train

TEXT = corpus(MODEL.vocabulary)


PINS = {"token:grad": (B, B), "embed_position:db": (P, B)}
"""The tokens' weights are used twice: each use is reduced before they are added up. All else, after the last
micro-batch."""


def plan_of(
    leaves: int, *, dp: int = 1, pp: int = 1, schedule: str = "1f1b", zero_stage: int = 0, pinned: bool = True
) -> Plan:
    """Of so many micro-batches of two samples in the global batch of a step, dealt out to `dp` ranks."""
    training = Training(2 * leaves, leaves // dp, lr=0.02)
    config = config_of(training, dp=dp, pp=pp, schedule=schedule, zero_stage=zero_stage)
    asked = replace(request(dp * pp, training), pins=Pins(layouts=PINS if pinned and dp > 1 else {}))
    return plan_by_rules(asked, config, ("data", "tensor"))


def learned(trained: Trained) -> tuple[list[tuple[float, float]], dict[str, bytes]]:
    """Losses and norms of all steps, and all parameters and moments as bytes."""
    found = {piece.name: piece.array.tobytes() for trainer in trained.trainers for piece in trainer.owned_pieces()}
    return [(report.loss, report.grad_norm) for report in trained.reports], found


@pytest.mark.parametrize(
    ("leaves", "others"),
    [
        (8, [{"dp": 2}, {"dp": 4}, {"pp": 2}, {"dp": 2, "pp": 2}, {"pp": 2, "schedule": "gpipe"}]),
        (6, [{"dp": 3}]),
        (12, [{"dp": 3}, {"dp": 3, "pp": 2}]),
    ],
)
def test_ranks_and_stages_change_no_bit(leaves: int, others: list[dict[str, int]]) -> None:
    alone = learned(train(plan_of(leaves), TEXT, steps=3, bitwise=True))
    assert all(learned(train(plan_of(leaves, **more), TEXT, steps=3, bitwise=True)) == alone for more in others)


def test_without_it_another_order_of_sums_gives_other_bits() -> None:
    """What the comparison is worth: figures agree, and are not the same."""
    alone, four = (train(plan_of(8, dp=dp), TEXT, steps=3) for dp in (1, 4))
    assert learned(alone) != learned(four)
    for one, other in zip(alone.reports, four.reports, strict=True):
        assert one.loss == pytest.approx(other.loss, rel=1e-4)


def test_a_resumed_training_goes_on_bit_by_bit_on_other_ranks(tmp_path: Path) -> None:
    first = train(plan_of(8, dp=4), TEXT, steps=2, bitwise=True)
    pieces = [piece for trainer in first.trainers for piece in trainer.owned_pieces()]
    save(tmp_path, 2, pieces, checkpoint_meta(plan_of(8), TEXT, bitwise=True))
    half = latest(tmp_path)
    whole = learned(train(plan_of(8), TEXT, steps=4, bitwise=True))
    for more in ({"dp": 2}, {"pp": 2}):
        found = learned(train(plan_of(8, **more), TEXT, steps=2, bitwise=True, checkpoint=half))
        assert found == (whole[0][2:], whole[1])
    with pytest.raises(InputError, match=r"sums: .*got 'in one tree', expected as planned"):
        train(plan_of(8), TEXT, steps=1, checkpoint=half)


@pytest.mark.parametrize(
    ("plan", "problem"),
    [
        (plan_of(12, dp=2), r"no node of the tree \(got '6 micro-batches on each of 2 ranks', expected a power of two"),
        (plan_of(8, dp=2, pinned=False), r"still to add up.*got 'token:grad'.; pin \"token:grad\" to B in .sbp."),
        (plan_of(8, dp=2, zero_stage=1, pinned=False), r"terms that ranks are still to add up.*zero_stage = 0"),
        (plan_of(8, dp=2, pp=2, pinned=False), r"added up between ranks in every micro-batch.*once a step"),
    ],
    ids=["six micro-batches", "used twice", "stage 1", "in every micro-batch"],
)
def test_what_is_not_in_one_tree_is_refused(plan: Plan, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        train(plan, TEXT, steps=1, bitwise=True)


@pytest.mark.mpi
def test_two_three_and_four_processes_learn_what_one_does(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(TEXT.train[:].tobytes())
    found: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for leaves, dp in ((8, 1), (8, 2), (8, 4), (6, 1), (6, 3)):
        path = tmp_path / f"{leaves}-{dp}.json"
        write_plan(plan_of(leaves, dp=dp), path)
        ended = run_well(tmp_path, "train", path, "--bitwise", "--steps", 3, "--data", text, "--json", ranks=dp)
        documents = [json.loads(line) for line in ended.stdout.splitlines()]
        found[leaves, dp] = [(one["loss"], one["grad_norm"]) for one in documents if "grad_norm" in one]
    assert len(found[8, 1]) == 3
    assert found[8, 1] == found[8, 2] == found[8, 4]
    assert found[6, 1] == found[6, 3]
