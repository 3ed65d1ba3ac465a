"""Laid out over ranks or not, a model trains alike.

Thirty-three plans here, ten thousand by `python -m tests.campaigns transparency --cases 10000`. What one device
computes is checked against a GPT written down anew, by finite differences.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from executor.train import program_of
from strategy.models.gpt import GptConfig
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.sbp.tensor import DType
from tests.campaigns.transparency import (
    MPI_EVERY,
    QUOTAS,
    batches,
    check,
    check_under_mpi,
    compare,
    exercised,
    mpi_case,
    mpi_ranks,
    on_one_device,
    pieces_of,
    ran,
)
from tests.support.long_parameters import long_but
from tests.support.plan_features import features_of
from tests.support.random_plans import PlanCase, random_plan_case, turn
from tests.support.reference import Array
from tests.support.small_plans import MODEL, config_of, corpus, deduced_plan, in_float64, request, train

CASES = 33
BATCH = 2
THREADS = [number for number in range(CASES) if number % MPI_EVERY]
PROCESSES = [number for number in range(CASES) if number % MPI_EVERY == 0]


@cache
def case(number: int) -> PlanCase:
    """A case of the campaign, made once for all who look at it."""
    return random_plan_case(number) if number % MPI_EVERY else mpi_case(number)


@pytest.mark.parametrize("first", long_but(range(0, len(THREADS), BATCH), 0))
def test_every_rank_holds_what_one_device_computes(first: int) -> None:
    for number in THREADS[first : first + BATCH]:
        made = case(number)
        assert list(check(made.plan, made.program)) == [], number


ONCE_WRONG = (37922,)
"""Found by the campaign: a weight's gradient that a schedule put off was waited for by what came from the host."""


@pytest.mark.parametrize("number", ONCE_WRONG)
def test_what_was_once_wrong_is_right(number: int) -> None:
    assert list(check(random_plan_case(number).plan)) == []


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", long_but([3, 4]))
def test_processes_compute_what_one_device_computes(ranks: int) -> None:
    numbers = [number for number in PROCESSES if mpi_ranks(number) == ranks]
    assert check_under_mpi(ranks, {number: case(number).plan for number in numbers}) == {
        number: [] for number in numbers
    }


@pytest.mark.long
@pytest.mark.mpi
def test_collectives_on_two_levels_run_beside_each_other() -> None:
    """Two nodes of two ranks, and a communicator for each stream of collectives; on threads and as processes."""
    training = in_float64(Training(global_batch=8, num_micro_batches=2))
    config = config_of(training, dp=2, tp=2, zero_stage=2, zero_min_size=8)
    plan = deduced_plan(request(4, training, backend="cupy", per_node=2), config, ("data", "tensor"))
    assert {stream.name for stream in program_of(plan).streams} == {
        "compute",
        "intra",
        "intra data",
        "inter data",
        "load",
    }
    assert list(check(plan)) == []
    assert check_under_mpi(4, {0: plan}) == {0: []}


@pytest.mark.long
def test_the_plans_differ_enough() -> None:
    """Half of each quota of the campaign, and one of each at least."""
    seen = Counter(name for number in range(CASES) for name in {*exercised(case(number))})
    seen["mpiexec"] = len(PROCESSES)
    least = {name: max(1, math.floor(0.5 * share * CASES)) for name, share in QUOTAS.items()}
    assert {name: seen[name] for name, count in least.items() if seen[name] < count} == {}


def test_a_case_keeps_the_program_of_its_plan() -> None:
    for number in range(1, 5):
        assert case(number).program == program_of(case(number).plan)


def test_what_is_asked_for_and_moves_nothing_does_not_count() -> None:
    training = in_float64(Training(global_batch=4))
    config = config_of(training, dp=2, zero_stage=1, recompute_values=("*.gelu",))
    plan = deduced_plan(request(2, training), config, ("data", "tensor"))
    assert {*features_of(plan)} >= {"data", "recompute by name"}
    assert "zero 1" not in {*features_of(plan)}  # no tensor is as large as the least that is shared out


def test_every_option_has_its_turn() -> None:
    options = ("a", "a", "b", "c")
    for lap in range(5):
        assert sorted(turn(4 * lap + place, "letters", options) for place in range(4)) == sorted(options)
    assert [turn(number, "letters", options) for number in range(40)] != list(options) * 10


def two_ranks(**settings: Any) -> Plan:
    training = replace(in_float64(Training(global_batch=4, num_micro_batches=2)), **settings)
    return deduced_plan(request(2, training), config_of(training, tp=2), ("data", "tensor"))


def test_another_training_is_noticed() -> None:
    plan = two_ranks()
    other = two_ranks(lr=plan.training.lr * (1 + 1e-6))
    wanted, _ = on_one_device(plan, steps=2)
    weight = "layers.0.mlp.fc1.weight"
    trained = train(other, corpus(MODEL.vocabulary), steps=2)
    gathered = np.concatenate([trainer.worker.read(weight) for trainer in trained.trainers], axis=1)
    assert np.max(np.abs(gathered - wanted[weight])) > 1e-9


@pytest.mark.long
def test_a_wrong_gradient_is_noticed_in_float32() -> None:
    """Adam's first moment is the gradient after the first step; a thousandth of it is too much."""
    plan, first = two_ranks(dtype=DType.FLOAT32), {}
    trained = train(
        plan, corpus(MODEL.vocabulary), steps=1, after_step=lambda one: first.update({one.rank: pieces_of(one)})
    )
    losses = [report.loss for report in trained.reports]
    ranks = [ran(trainer, losses, first[trainer.rank]) for trainer in trained.trainers]
    assert list(compare(plan, program_of(plan), ranks, steps=1)) == []
    name = max((n for n in first[0] if n.endswith(":m")), key=lambda n: np.max(np.abs(first[0][n])))
    spoilt = [replace(ranks[0], first={**first[0], name: first[0][name] * (1 + 1e-3)}), *ranks[1:]]
    found = list(compare(plan, program_of(plan), spoilt, steps=1))
    assert [problem.split(": off by")[0] for problem in found] == [f"{name} on rank 0"]


def test_one_device_computes_the_gpt() -> None:
    """Losses of two steps, and the gradient of the first by finite differences along random directions."""
    plan = two_ranks(max_norm=1e9)
    start = on_one_device(plan, steps=0)[0]
    after, losses = on_one_device(plan, steps=1)
    parts = batches(plan, 0)
    ids, labels = (np.concatenate([part[name] for part in parts]) for name in ("ids", "labels"))
    assert losses[0] == pytest.approx(gpt_loss(MODEL, start, ids, labels), rel=1e-12)
    rng = np.random.default_rng(0)
    for name in start:
        if ":" in name:
            continue
        gradient = after[f"{name}:m"] / (1 - plan.training.beta1)
        direction = rng.standard_normal(gradient.shape)
        ahead, behind = (
            gpt_loss(MODEL, {**start, name: start[name] + step * direction}, ids, labels) for step in (1e-5, -1e-5)
        )
        slope = float(np.sum(gradient * direction))
        assert slope == pytest.approx((ahead - behind) / 2e-5, rel=1e-5, abs=1e-8), name


def gpt_loss(config: GptConfig, p: Mapping[str, Array], ids: Array, labels: Array) -> float:
    """Mean token loss of a GPT-2 with tied embeddings, row by row and head by head."""
    losses = []
    for row, targets in zip(ids, labels, strict=True):
        x = p["token"][row] + p["position"]
        for layer in range(config.layers):
            q = {name.removeprefix(f"layers.{layer}."): array for name, array in p.items()}
            x = x + attention(config, q, norm(x, q["norm1.weight"], q["norm1.bias"]))
            hidden = norm(x, q["norm2.weight"], q["norm2.bias"]) @ q["mlp.fc1.weight"] + q["mlp.fc1.bias"]
            hidden = 0.5 * hidden * (1 + np.tanh(math.sqrt(2 / math.pi) * (hidden + 0.044715 * hidden**3)))
            x = x + hidden @ q["mlp.fc2.weight"] + q["mlp.fc2.bias"]
        logits = norm(x, p["norm.weight"], p["norm.bias"]) @ p["token"].T
        losses += [np.log(np.sum(np.exp(z))) - z[target] for z, target in zip(logits, targets, strict=True)]
    return float(np.mean(losses))


def attention(config: GptConfig, q: Mapping[str, Array], x: Array) -> Array:
    """Causal attention; the projection's columns are head, (query, key, value), dim."""
    size = config.width // config.heads
    packed = (x @ q["attn.qkv.weight"] + q["attn.qkv.bias"]).reshape(len(x), config.heads, 3, size)
    mixed = np.zeros((len(x), config.heads, size))
    for head in range(config.heads):
        query, key, value = (packed[:, head, i] for i in range(3))
        for t in range(len(x)):
            weights = np.exp(key[: t + 1] @ query[t] / math.sqrt(size))
            mixed[t, head] = weights @ value[: t + 1] / weights.sum()
    return np.asarray(mixed.reshape(len(x), config.width) @ q["attn.proj.weight"] + q["attn.proj.bias"])


def norm(x: Array, gain: Array, shift: Array) -> Array:
    """Layer norm over the last dim."""
    centred = x - x.mean(axis=-1, keepdims=True)
    return np.asarray(centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5) * gain + shift)


@pytest.mark.long
def test_float32_is_close_to_float64() -> None:
    plan = two_ranks()
    narrow = two_ranks(dtype=DType.FLOAT32)
    text = corpus(MODEL.vocabulary)
    wide_losses = [report.loss for report in train(plan, text, steps=3).reports]
    assert [report.loss for report in train(narrow, text, steps=3).reports] == pytest.approx(wide_losses, rel=1e-4)
