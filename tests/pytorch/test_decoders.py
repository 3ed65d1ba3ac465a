"""Small decoders of every family compute what transformers computes, with the weights that it saved."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from strategy.graph.graph import Role
from strategy.models import Model, find_model
from strategy.models.decoder import DecoderConfig
from strategy.models.pretrained import open_pretrained
from strategy.passes.training import REPORT, Training, training_graph
from tests.pytorch.decoders import CONFIGS, FOLDER, REFERENCE, SAMPLES, SEQUENCE, SHARDED, batch, logits_and_loss
from tests.support.long_parameters import long_but
from tests.support.reference import Array, run_graph

WITHIN = 1e-5
"""Of the largest logit, or of 1: in float32 on both sides."""
OFF: Mapping[str, tuple[dict[str, Any], ...]] = {
    "llama": ({"rotary_frequencies": ()}, {"rotary_base": 0.0}, {"mlp_bias": False}, {"qkv_bias": False}),
    "llama_dynamic": ({"rotary_frequencies": ()},),
    "mistral": ({"windows": (0,)},),
    "qwen2": ({"windows": (0, 0)}, {"qkv_bias": False}, {"tied": False}),
    "qwen3": ({"head_norm": "none"},),
    "phi3": ({"windows": (0,)}, {"rotary_frequencies": (), "rotary_width": 0}, {"rotary_scale": 1.0}),
    "olmo2": ({"norm_position": "before"}, {"head_norm": "none"}),
    "mixtral": ({"choices": 1}, {"choices": 4}, {"windows": (0,)}),
    "qwen2_moe": ({"shared_hidden": 0, "shared_gate": False}, {"shared_gate": False}, {"normalised": True}),
    "qwen3_moe": ({"normalised": False}, {"head_norm": "none"}),
    "gpt_oss": (
        *({"sinks": False}, {"windows": (0, 0)}, {"router_bias": False}, {"gate_limit": 100.0}, {"output_bias": False}),
        *({"rotary_frequencies": ()}, {"rotary_scale": 1.0}, {"expert_bias": False}),
    ),
    "deepseek_v2": (
        *({"groups": 1, "chosen_groups": 1}, {"routed_scale": 1.0}, {"normalised": True}, {"score_scale": 0.0}),
        *({"rotary_frequencies": ()}, {"rotary_scale": 1.0}, {"shared_hidden": 0}),
    ),
    "deepseek_v3": (
        *({"groups": 1, "chosen_groups": 1}, {"router": "softmax"}, {"normalised": False}, {"shared_hidden": 0}),
        {"routed_scale": 1.0},
    ),
    "gemma2": (
        *({"score_cap": 0.0}, {"logit_cap": 0.0}, {"windows": (0, 0)}, {"score_scale": 0.0}),
        *({"embedding_scale": 1.0}, {"activation": "silu"}),
    ),
    "gemma3_text": (
        *({"window_rotary_base": 0.0}, {"head_norm": "none"}, {"rotary_frequencies": ()}),
        {"windows": (0, 0, 0, 0)},
    ),
    "gpt_neox": ({"norm_position": "before"}, {"activation": "gelu"}, {"rotary_frequencies": (), "rotary_width": 0}),
    "gpt_neox_serial": ({"norm_position": "parallel"},),
    "gpt2": (),
}
"""Features that a family has, each as the description says it without."""
CASES = [(name, change) for name, changes in OFF.items() for change in changes]


@cache
def theirs() -> Mapping[str, Array]:
    """What transformers computed."""
    with np.load(REFERENCE) as file:
        return dict(file)


def model_of(name: str) -> Model:
    """The model of a small config."""
    return find_model(str(FOLDER / name), sequence=SEQUENCE)


def computed(model: Model, weights: Mapping[str, Array]) -> tuple[Array, float]:
    """Logits of the batch, and the mean loss of its tokens."""
    graph = training_graph(model, Training(global_batch=SAMPLES))
    variables = {
        value.name: np.array(weights[value.name], value.spec.dtype.numpy)
        if value.name in weights
        else np.zeros(value.spec.shape, value.spec.dtype.numpy)
        for value in graph.with_role(Role.VARIABLE)
    }
    ids, labels = batch()
    values = run_graph(graph, [{"ids": ids, "labels": labels}], variables)
    logits = next(values[name] for name in ("bounded", "logits", "head.matmul") if name in values)
    return logits, float(values["token_loss" if "token_loss" in values else "loss"] / values[REPORT][1])


def test_every_family_is_there() -> None:
    assert set(OFF) == set(CONFIGS)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_and_loss_are_those_of_transformers(name: str) -> None:
    model = model_of(name)
    weights = open_pretrained(FOLDER / name, model)
    assert set(weights) == {key for key, _ in model.module().parameters()}
    assert sum(array.size for array in weights.values()) == model.parameters
    logits, loss = computed(model, weights)
    wanted = theirs()[f"{name}.logits"]
    assert np.max(np.abs(logits - wanted)) <= WITHIN * max(1.0, float(np.abs(wanted).max()))
    assert loss == pytest.approx(float(theirs()[f"{name}.loss"]), rel=WITHIN)


@pytest.mark.parametrize(
    ("name", "change"),
    long_but(CASES, *range(0, len(CASES), 2)),
    ids=[f"{name} {' '.join(change)}" for name, change in CASES],
)
def test_every_feature_is_alive(name: str, change: dict[str, Any]) -> None:
    model = model_of(name)
    assert isinstance(model, DecoderConfig)
    assert all(getattr(model, key) != value for key, value in change.items())
    weights = dict(open_pretrained(FOLDER / name, model))
    without = replace(model, **change)
    if "tied" in change:
        weights["head.weight"] = 2 * weights["token.weight"].T
    logits, _ = computed(without, weights)
    assert np.max(np.abs(logits - theirs()[f"{name}.logits"])) > 10 * WITHIN


def test_weights_in_several_files_are_found_by_the_index() -> None:
    folder = FOLDER / SHARDED
    files = sorted(path.name for path in folder.glob("*.safetensors"))
    assert len(files) > 1
    model = model_of(SHARDED)
    by_index = open_pretrained(folder / "model.safetensors.index.json", model)
    assert {held.path.name for held in by_index.held.values()} == set(files)
    assert all(np.array_equal(by_index[name], array) for name, array in open_pretrained(folder, model).items())


def test_samples_are_longer_than_windows_and_scaled_contexts() -> None:
    for name, content in CONFIGS.items():
        assert content.get("sliding_window", 0) < SEQUENCE, name
        scaling = content.get("rope_scaling", {})
        assert scaling.get("original_max_position_embeddings", 0) < SEQUENCE, name
        assert math.isfinite(float(theirs()[f"{name}.loss"]))


@pytest.mark.slow
@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_still_computes_this(name: str) -> None:
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'sbplan[torch]'")
    logits, loss = logits_and_loss(name)
    np.testing.assert_allclose(logits, theirs()[f"{name}.logits"], atol=WITHIN)
    assert loss == pytest.approx(float(theirs()[f"{name}.loss"]), rel=WITHIN)
