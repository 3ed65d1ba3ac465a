"""What predicts further tokens: its losses against plain NumPy, its part in the training, and its tensors in files."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from executor.data.text import Corpus, TextLoader
from strategy.base.errors import InputError
from strategy.models.decoder import DecoderConfig
from strategy.models.huggingface.weights import decoder_recipes, left_out_of_decoders
from strategy.passes.training import REPORT, Training, training_graph
from strategy.passes.updates import Optimizer
from strategy.program.program import LoadTask
from strategy.sbp.tensor import DType
from tests.campaigns.transparency import check
from tests.support.reference import Array, random_batch, run_graph, start_variables
from tests.support.small_plans import config_of, plan_by_rules, request

MODEL = DecoderConfig(
    layers=2, width=16, heads=2, key_heads=1, head_width=8, hidden=24, sequence=6, vocabulary=29, ahead=2
)
TRAINING = Training(
    4, dtype=DType.FLOAT64, optimizer=Optimizer.SGD, lr=0.1, momentum=0.0, max_norm=1e9, weight_decay=0.0
)
Weights = dict[str, Array]


def rms(x: Array, gain: Array) -> Array:
    return np.asarray(x / np.sqrt((x * x).mean(-1, keepdims=True) + MODEL.epsilon) * gain)


def turned(x: Array) -> Array:
    """[b, s, h, d] in pairs (i, i + d/2)."""
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[1])[:, None] * MODEL.rotary_base ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    first, second = x[..., :half], x[..., half:]
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def layer(x: Array, weights: Weights, name: str) -> Array:
    """A layer of Llama's kind."""
    b, s, _ = x.shape
    y = rms(x, weights[f"{name}.norm1.weight"])
    q, k, v = (
        (y @ weights[f"{name}.attn.{part}.weight"]).reshape(b, s, -1, MODEL.head_width) for part in ("q", "k", "v")
    )
    q, k = turned(q), turned(k)
    k, v = (np.repeat(one, MODEL.heads // MODEL.key_heads, axis=2) for one in (k, v))
    scores = np.einsum("bshd,bthd->bhst", q, k) / np.sqrt(MODEL.head_width)
    scores = np.where(np.tril(np.ones((s, s), bool)), scores, -np.inf)
    odds = np.exp(scores - scores.max(-1, keepdims=True))
    odds /= odds.sum(-1, keepdims=True)
    mixed = np.einsum("bhst,bthd->bshd", odds, v).reshape(b, s, -1)
    x = x + mixed @ weights[f"{name}.attn.proj.weight"]
    y = rms(x, weights[f"{name}.norm2.weight"])
    gate = y @ weights[f"{name}.mlp.gate.weight"]
    hidden = gate / (1 + np.exp(-gate)) * (y @ weights[f"{name}.mlp.up.weight"])
    return np.asarray(x + hidden @ weights[f"{name}.mlp.down.weight"])


def token_losses(logits: Array, labels: Array) -> float:
    lse = np.log(np.exp(logits).sum(-1))
    return float((lse - np.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]).sum())


def reference(weights: Weights, batch: dict[str, Array]) -> tuple[float, list[float]]:
    """The loss, and those of the tokens: the next one, and one and two further."""
    labels = [batch["labels"], batch["labels2"], batch["labels3"]]
    x = weights["token.weight"][batch["ids"]]
    for number in range(MODEL.layers):
        x = layer(x, weights, f"layers.{number}")
    found = [token_losses(rms(x, weights["norm.weight"]) @ weights["head.weight"], labels[0])]
    for k in range(MODEL.ahead):
        name = f"ahead.{k}"
        token = rms(weights["token.weight"][labels[k]], weights[f"{name}.token_norm.weight"])
        joined = np.concatenate([token, rms(x, weights[f"{name}.stream_norm.weight"])], axis=-1)
        x = layer(joined @ weights[f"{name}.join.weight"], weights, f"{name}.layer")
        found.append(token_losses(rms(x, weights[f"{name}.norm.weight"]) @ weights["head.weight"], labels[k + 1]))
    return found[0] + MODEL.ahead_share / MODEL.ahead * sum(found[1:]), found


def drawn() -> tuple[Weights, dict[str, Array]]:
    """Weights large enough that all of them matter, and a batch."""
    graph = training_graph(MODEL, TRAINING)
    rng = np.random.default_rng(0)
    weights = {
        name: array + 0.2 * rng.standard_normal(array.shape) for name, array in start_variables(graph, rng).items()
    }
    return weights, random_batch(graph, MODEL.vocabulary, rng)


def test_losses_are_those_of_plain_numpy() -> None:
    weights, batch = drawn()
    loss, each = reference(weights, batch)
    values = run_graph(
        training_graph(MODEL, TRAINING), [batch], {name: array.copy() for name, array in weights.items()}
    )
    assert float(values["loss"]) == pytest.approx(loss, rel=1e-12)
    assert [float(values[name]) for name in ("token_loss", "ahead0", "ahead1")] == pytest.approx(each, rel=1e-12)
    assert values[REPORT][1] == 4 * MODEL.sequence, "the count is that of the next tokens"


def test_updates_follow_differences_of_the_reference() -> None:
    """Of embedding, head, a layer of the model, and what is the module's own."""
    weights, batch = drawn()
    after = {name: array.copy() for name, array in weights.items()}
    count = run_graph(training_graph(MODEL, TRAINING), [batch], after)[REPORT][1]
    rng = np.random.default_rng(1)
    for name in ("token.weight", "head.weight", "layers.0.mlp.up.weight", "norm.weight", *_own()):
        direction = rng.standard_normal(weights[name].shape)
        ahead, behind = (
            reference({**weights, name: weights[name] + step * direction}, batch)[0] for step in (1e-5, -1e-5)
        )
        slope = float(((weights[name] - after[name]) * direction).sum()) / TRAINING.lr * count
        assert slope == pytest.approx((ahead - behind) / 2e-5, rel=1e-5, abs=1e-6), name


def _own() -> list[str]:
    return [f"ahead.0.{part}.weight" for part in ("token_norm", "stream_norm", "join", "layer.attn.k", "norm")]


@pytest.mark.long
def test_it_trains_over_ranks_as_on_one_device() -> None:
    how = Training(4, num_micro_batches=2, dtype=DType.FLOAT64)
    plan = plan_by_rules(request(4, how, model=MODEL), config_of(how, dp=2, pp=2), ("data", "tensor"))
    assert list(check(plan, steps=3)) == []


def test_without_it_the_graph_is_as_it_was() -> None:
    plain = replace(MODEL, ahead=0)
    assert list(plain.inputs(4)) == ["ids", "labels"]
    assert "token_loss" not in training_graph(plain, TRAINING).values
    assert MODEL.parameters - plain.parameters == MODEL.ahead_parameters


def test_labels_are_as_far_ahead_as_they_say_and_reach_beyond_the_sample() -> None:
    text = np.arange(200, dtype=np.uint8) % 97
    load = TextLoader(text, 0, dict.fromkeys(MODEL.inputs(2), (2, 6)), num_micro_batches=1, shifts=shifts())
    arrays = [np.zeros((2, 6), np.int32) for _ in MODEL.inputs(2)]
    load(LoadTask(tuple(MODEL.inputs(2)), (((0, 2), (0, 6)),) * 4), 3, arrays)
    for shift, array in enumerate(arrays):
        np.testing.assert_array_equal(array, (arrays[0] + shift) % 97)
    with pytest.raises(InputError, match="at least 9 bytes"):
        TextLoader(text[:8], 0, dict.fromkeys(MODEL.inputs(2), (2, 6)), num_micro_batches=1, shifts=shifts())
    assert len(Corpus("", text, text, "").train) == 200


def shifts() -> dict[str, int]:
    return {"labels": 1, "labels2": 2, "labels3": 3}


def test_files_hold_them_behind_the_last_layer_or_not_at_all() -> None:
    theirs = "model.layers.2"
    recipes = decoder_recipes(MODEL, {f"{theirs}.eh_proj.weight"})
    assert recipes["ahead.0.join.weight"].sources == ((f"{theirs}.eh_proj.weight", (16, 32)),)
    assert recipes["ahead.0.token_norm.weight"].sources == ((f"{theirs}.enorm.weight", (16,)),)
    assert recipes["ahead.0.layer.mlp.up.weight"].sources == ((f"{theirs}.mlp.up_proj.weight", (24, 16)),)
    assert not any(name.startswith("ahead.1") for name in recipes)
    assert left_out_of_decoders(MODEL, f"{theirs}.embed_tokens.weight")
    assert not left_out_of_decoders(MODEL, f"{theirs}.eh_proj.weight")


def test_what_cannot_be_is_refused() -> None:
    for changes, problem in (({"ahead": -1}, "decoder: ahead"), ({"ahead_share": -0.5}, "decoder: ahead_share")):
        with pytest.raises(InputError, match=problem):
            replace(MODEL, **changes)
