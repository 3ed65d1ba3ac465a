"""Bitwise mode: the same bits whatever the number of ranks and stages, at micro-batches of one size.

Plans that are drawn at random: `python -m tests.campaigns bitwise`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from executor.checkpoint import latest, save
from executor.runtime.tree_sums import TreeSums
from executor.train import checkpoint_meta
from strategy.base.errors import InputError, PlanError
from strategy.passes.training import Training
from strategy.passes.updates import Optimizer
from strategy.plan.plan import Plan, write_plan
from strategy.sbp.sbp import B, NdSbp, P, Split
from strategy.space.request import Pins
from tests.campaigns import bitwise
from tests.mpi.jobs import run_well
from tests.support.long_parameters import long_but
from tests.support.small_plans import MODEL, Trained, config_of, corpus, plan_by_rules, request, train

TEXT = corpus(MODEL.vocabulary)


PINS: dict[str, NdSbp] = {"token:grad": (B, B), "embed_position:db": (P, B)}
"""The tokens' weights are used twice: each use is reduced before they are added up. All else, after the last
micro-batch."""
SPLIT: dict[str, NdSbp] = {"token:grad": (Split(0), B)}
"""The same where the updates are shared out."""


def plan_of(leaves: int, *, pins: Mapping[str, NdSbp] = PINS, dp: int = 1, **more: Any) -> Plan:
    """Of so many micro-batches of two samples in the global batch of a step, dealt out to `dp` ranks."""
    return _plan_of(leaves, tuple(pins.items()) if dp > 1 else (), dp=dp, **more)


@cache
def _plan_of(
    leaves: int, pins: tuple[tuple[str, NdSbp], ...], *, dp: int, pp: int = 1, max_norm: float = 1.0, **more: Any
) -> Plan:
    training = Training(2 * leaves, leaves // dp, lr=0.02, max_norm=max_norm)
    config = config_of(training, dp=dp, pp=pp, zero_min_size=9, **more)
    asked = replace(request(dp * pp * config.tp, training), pins=Pins(layouts=dict(pins)))
    return plan_by_rules(asked, config, ("data", "tensor"))


def learned(trained: Trained) -> tuple[list[tuple[float, float]], Mapping[str, bytes]]:
    """Losses and norms of all steps, and all parameters and moments as bytes."""
    return [(report.loss, report.grad_norm) for report in trained.reports], bitwise.learned(trained)[1]


@pytest.mark.parametrize(
    ("leaves", "others"),
    long_but(
        [
            (8, [{"dp": 2}, {"dp": 4}, {"pp": 2}, {"dp": 2, "pp": 2}, {"pp": 2, "schedule": "gpipe"}]),
            (6, [{"dp": 2}, {"dp": 3}]),
            (9, [{"dp": 3}]),
            (
                12,
                [
                    {"dp": 2},
                    {"dp": 3},
                    {"dp": 2, "pp": 2},
                    {"dp": 2, "bucket_bytes": 256},
                    {"dp": 4, "bucket_bytes": 1 << 30},
                ],
            ),
            (12, [{"dp": 3}, {"dp": 2, "bucket_bytes": 256}]),
        ],
        4,
    ),
)
def test_ranks_and_stages_change_no_bit(leaves: int, others: list[dict[str, int]]) -> None:
    alone = learned(train(plan_of(leaves), TEXT, steps=3, bitwise=True))
    assert all(learned(train(plan_of(leaves, **more), TEXT, steps=3, bitwise=True)) == alone for more in others)


@pytest.mark.parametrize(
    ("leaves", "more"),
    long_but(
        [
            (8, {"dp": 2, "zero_stage": 1, "pins": SPLIT}),
            (9, {"dp": 3, "zero_stage": 1, "pins": SPLIT}),
            (12, {"dp": 2, "zero_stage": 1, "pins": SPLIT, "bucket_bytes": 1 << 30}),
            (12, {"dp": 2, "zero_stage": 2, "pins": {}}),
            (8, {"dp": 4, "zero_stage": 2, "pins": {}, "zero_owner": True}),
            (8, {"dp": 2, "zero_stage": 3, "pins": {}, "pp": 2}),
        ],
        5,
    ),
)
def test_shares_of_updates_change_no_bit(leaves: int, more: dict[str, Any]) -> None:
    """The norm, of which nothing is learned where it has no limit, is added up by pieces and may differ."""
    alone = bitwise.alone(leaves, math.inf, Optimizer.ADAMW)
    plan = plan_of(leaves, max_norm=math.inf, **more)
    assert bitwise.learned(train(plan, TEXT, steps=bitwise.STEPS, bitwise=True)) == alone


@pytest.mark.parametrize(("plans", "seed"), long_but([(4, 6), (12, 0)], 0))
def test_random_plans_learn_the_same_bits_or_are_refused(plans: int, seed: int) -> None:
    outcome = bitwise.run(plans, seed=seed)
    assert outcome.failures == []
    assert outcome.coverage["equal"] >= plans // 4
    assert outcome.coverage["refused"] >= 1


@pytest.mark.long
def test_sums_of_ranks_that_are_no_nodes_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the campaign must not accept: the sums of ranks that have six micro-batches each, added up."""
    monkeypatch.setattr(TreeSums, "splits", lambda self, actor: False)
    found = learned(train(plan_of(12, dp=2), TEXT, steps=3, bitwise=True))
    assert found != learned(train(plan_of(12), TEXT, steps=3, bitwise=True))


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
    ("asked", "problem"),
    [
        (
            {"leaves": 12, "dp": 3, "pins": {}, "zero_stage": 2, "max_norm": math.inf},
            r"along the data axis one micro-batch of all ranks is no node of the tree \(got '3 ranks that exchange",
        ),
        (
            {"leaves": 8, "dp": 2, "pins": {}},
            r"along the data axis .*still to add up.*got 'token:grad'.*; pin \"token:grad\" to B or S in .sbp.$",
        ),
        (
            {"leaves": 8, "dp": 2, "pins": SPLIT, "zero_stage": 1},
            r"along the data axis .*got 'token:square'.*; pin .*, or train without a limit on the norm \(max_",
        ),
        (
            {"leaves": 8, "tp": 2},
            r"along the tensor axis terms of a micro-batch are added up that one rank would not cut",
        ),
        ({"leaves": 8, "dp": 2, "tp": 2}, r"along the tensor axis terms of a micro-batch .*pin tp = 1"),
    ],
    ids=["three in every micro-batch", "used twice", "a norm with a limit", "tensor", "data and tensor"],
)
def test_what_is_not_in_one_tree_is_refused(asked: dict[str, Any], problem: str) -> None:
    plan = plan_of(**asked)
    with pytest.raises(InputError, match=problem):
        train(plan, TEXT, steps=1, bitwise=True)


@pytest.mark.mpi
@pytest.mark.parametrize(("leaves", "ranks"), long_but([(8, (4,)), (8, (2,)), (6, (2, 3))], 1))
def test_processes_learn_what_one_does(leaves: int, ranks: tuple[int, ...], tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(TEXT.train[:].tobytes())
    found: dict[int, list[tuple[float, float]]] = {}
    for dp in (1, *ranks):
        path = tmp_path / f"{dp}.json"
        write_plan(plan_of(leaves, dp=dp), path)
        ended = run_well(tmp_path, "train", path, "--bitwise", "--steps", 3, "--data", text, "--json", ranks=dp)
        documents = [json.loads(line) for line in ended.stdout.splitlines()]
        found[dp] = [(one["loss"], one["grad_norm"]) for one in documents if "grad_norm" in one]
    assert len(found[1]) == 3
    assert all(found[dp] == found[1] for dp in ranks)


@pytest.mark.parametrize(
    ("leaves", "more"),
    long_but(
        [
            (8, {}),
            (8, {"dp": 2}),
            (12, {"dp": 2}),
            (12, {"dp": 3, "pp": 2}),
            (12, {"dp": 2, "bucket_bytes": 256}),
            (12, {"dp": 2, "zero_stage": 1, "pins": SPLIT, "max_norm": math.inf}),
            (12, {"dp": 2, "zero_stage": 2, "pins": {}, "max_norm": math.inf}),
        ],
        *(4, 6),
    ),
)
def test_the_memory_of_sums_is_what_was_planned(leaves: int, more: dict[str, Any]) -> None:
    """On every rank, to the byte: nodes that wait, and those that are exchanged where a rank has several."""
    found = train(plan_of(leaves, **more), TEXT, steps=2, bitwise=True).trainers
    planned = [trainer.summation_nbytes for trainer in found]
    assert len(set(planned)) == 1
    assert list(planned[0]) == [trainer.worker.summation_nbytes for trainer in found]
    assert min(planned[0]) > 0
    plain = train(plan_of(leaves, **more), TEXT, steps=1).trainers
    assert {(trainer.worker.summation_nbytes, *trainer.summation_nbytes) for trainer in plain} == {
        (0,) * (1 + len(plain))
    }


def test_sums_that_do_not_fit_are_refused_with_what_is_missing() -> None:
    plan = plan_of(12, dp=2)
    trainers = train(plan, TEXT, steps=1, bitwise=True).trainers
    needed = max(map(sum, zip(plan.claims.peak_memory_bytes, trainers[0].summation_nbytes, strict=True)))
    for spare, fits in ((0, True), (-1, False)):
        tight = replace(plan, claims=replace(plan.claims, memory_limit_bytes=needed + spare))
        if fits:
            train(tight, TEXT, steps=1, bitwise=True)
            continue
        with pytest.raises(PlanError, match=r"--bitwise: sums in one tree do not fit.*, 1 B less"):
            train(tight, TEXT, steps=1, bitwise=True)
        train(tight, TEXT, steps=1)
