"""Published configs become models of the published size; wrong ones are refused with all that is wrong."""

from __future__ import annotations

import csv
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strategy.base.errors import InputError
from strategy.models import PRESETS, Model, find_model, find_preset, model_name
from strategy.models.decoder import DecoderConfig
from strategy.models.huggingface.config import MOST_BYTES, TABLES, read_config
from strategy.models.vit import VitConfig
from tests.pytorch.parameter_counts import COUNTS, configs

CONFIGS = configs()
with COUNTS.open() as _file:
    PARAMETERS = {row["name"]: int(row["parameters"]) for row in csv.DictReader(_file)}
LLAMA: dict[str, Any] = json.loads(CONFIGS["Meta-Llama-3-8B"].read_text())


def written(folder: Path, content: object) -> str:
    """A config in a folder."""
    (folder / "config.json").write_text(json.dumps(content))
    return str(folder)


def changed(folder: Path, **keys: Any) -> Model:
    """Llama 3 with other keys."""
    return find_model(written(folder, {**LLAMA, **keys}))


def test_every_config_has_a_count() -> None:
    assert set(PARAMETERS) == set(CONFIGS)
    assert {json.loads(path.read_text())["model_type"] for path in CONFIGS.values()} <= set(TABLES)


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_of_transformers(name: str) -> None:
    model = find_model(str(CONFIGS[name]))
    further = model.ahead_parameters if isinstance(model, DecoderConfig) else 0
    assert model.parameters - further == PARAMETERS[name]


@pytest.mark.parametrize("name", ["DeepSeek-V3", "DeepSeek-R1"])
def test_what_predicts_further_tokens_is_counted(name: str) -> None:
    """The model's card: 671 billion and 14 more, among which embedding and head once more."""
    model = find_model(str(CONFIGS[name]))
    assert isinstance(model, DecoderConfig)
    assert model.ahead == 1
    again = 2 * model.vocabulary * model.width
    assert model.parameters + again == pytest.approx(685e9, rel=5e-3)
    assert model.parameters - model.ahead_parameters == pytest.approx(671e9, rel=5e-3)


def test_a_folder_and_its_file_are_one_model(tmp_path: Path) -> None:
    folder = tmp_path / "Llama-3-8B"
    folder.mkdir()
    path = written(folder, LLAMA)
    assert find_preset(path) == find_preset(f"{path}/config.json")
    assert model_name(path) == model_name(f"{path}/config.json") == "Llama-3-8B"
    assert model_name(str(CONFIGS["gpt2"])) == "gpt2"
    assert model_name("gpt2-small") == "gpt2-small"


def test_a_preset_comes_before_a_folder_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gpt2-small").mkdir()
    written(tmp_path / "gpt2-small", LLAMA)
    monkeypatch.chdir(tmp_path)
    assert find_preset("gpt2-small") == PRESETS["gpt2-small"]


def test_the_context_can_be_shortened_and_a_step_has_four_mi_tokens() -> None:
    path = str(CONFIGS["Meta-Llama-3-8B"])
    assert find_preset(path).global_batch == 4 * 2**20 // 8192
    short = find_preset(path, sequence=2048)
    assert short.model.tokens_per_sample == 2048
    assert short.global_batch == 4 * 2**20 // 2048


@pytest.mark.parametrize(
    ("name", "layers"),
    [
        ("DeepSeek-V3", (3, 58, 0, (0, 0, 0, 0), (0, 0, 0, 1))),
        ("gemma-2-9b", (0, 21, 0, (4096, 0), (0, 0))),
        ("gemma-3-1b-pt", (0, 4, 2, (512,) * 5 + (0, 512, 512), (0,) * 8)),
        ("gpt-oss-120b", (0, 18, 0, (128, 0), (1, 1))),
        ("Mistral-7B-v0.1", (0, 32, 0, (4096,), (0,))),
        ("Qwen2.5-7B", (0, 28, 0, (0,), (0,))),
    ],
)
def test_layers_are_arranged_as_they_repeat(name: str, layers: tuple[object, ...]) -> None:
    model = find_model(str(CONFIGS[name]))
    assert isinstance(model, DecoderConfig)
    assert (model.before, model.layers, model.after, model.windows, model.sparse) == layers


def test_what_is_left_out_is_as_transformers_has_it(tmp_path: Path) -> None:
    content = json.loads(CONFIGS["Mistral-7B-v0.1"].read_text())
    del content["sliding_window"]
    mistral = find_model(written(tmp_path, content))
    assert isinstance(mistral, DecoderConfig)
    assert mistral.windows == (4096,)
    content = json.loads(CONFIGS["DeepSeek-V2-Lite"].read_text())
    del content["q_lora_rank"]
    with pytest.raises(InputError, match="q_lora_rank: the key is missing"):
        find_model(written(tmp_path, content))
    llama = changed(tmp_path, num_key_value_heads=None, rms_norm_eps=None)
    assert isinstance(llama, DecoderConfig)
    assert (llama.key_heads, llama.epsilon) == (32, 1e-6)


def test_keys_that_published_files_say_twice_have_to_agree(tmp_path: Path) -> None:
    for name, key, value in (("gpt-oss-20b", "experts_per_token", 4), ("gemma-2-9b", "sliding_window_size", 4096)):
        content = json.loads(CONFIGS[name].read_text())
        assert find_model(written(tmp_path, {**content, key: value})) == find_model(str(CONFIGS[name]))
        with pytest.raises(InputError, match=f"{key}: this is not built"):
            find_model(written(tmp_path, {**content, key: value + 1}))


def test_the_text_of_gemma3_may_say_what_is_its_own_alone(tmp_path: Path) -> None:
    """Published files of gemma3 say neither words nor context: those of transformers' Gemma3TextConfig."""
    text = {"hidden_size": 3840, "intermediate_size": 15360, "model_type": "gemma3_text", "num_attention_heads": 16,
            "num_hidden_layers": 48, "num_key_value_heads": 8, "sliding_window": 1024,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}}  # fmt: skip
    content = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}}
    model = find_model(written(tmp_path, content))
    assert model.parameters == pytest.approx(11.77e9, rel=1e-3)  # gemma-3-12b's, without its vision tower
    assert model.tokens_per_sample == 131072


def test_the_text_of_mistral3_is_a_mistral(tmp_path: Path) -> None:
    """Mistral Small 3.1 is Mistral Small 3, of 23.6 billion parameters, with eyes."""
    text = {"model_type": "mistral", "hidden_size": 5120, "intermediate_size": 32768, "num_attention_heads": 32,
            "num_hidden_layers": 40, "num_key_value_heads": 8, "head_dim": 128, "sliding_window": None,
            "max_position_embeddings": 131072, "rope_theta": 1e9, "vocab_size": 131072}  # fmt: skip
    eyes = {"model_type": "pixtral", "hidden_size": 1024}
    beside = {"vision_config": eyes, "spatial_merge_size": 2, "vision_feature_layer": -1, "image_token_index": 10}
    model = find_model(written(tmp_path, {"model_type": "mistral3", "text_config": text, **beside}))
    assert model == find_model(written(tmp_path, text))
    assert model.parameters == pytest.approx(23.57e9, rel=1e-3)
    with pytest.raises(InputError, match="text_config: model_type: this is not built"):
        find_model(written(tmp_path, {"model_type": "mistral3", "text_config": {**text, "model_type": "ministral3"}}))


def test_kimi_k2_is_a_deepseek_v3_of_other_sizes(tmp_path: Path) -> None:
    """A trillion parameters, as its card says."""
    sizes = {"model_type": "kimi_k2", "num_attention_heads": 64, "num_key_value_heads": 64, "n_routed_experts": 384,
             "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1, "vocab_size": 163840,
             "routed_scaling_factor": 2.827, "num_nextn_predict_layers": 0, "aux_loss_alpha": 0.001}  # fmt: skip
    content = {**json.loads(CONFIGS["DeepSeek-V3"].read_text()), **sizes}
    assert find_model(written(tmp_path, content)).parameters == pytest.approx(1.026e12, rel=2e-3)


def test_encoders_are_those_of_the_authors() -> None:
    bert = find_model(str(CONFIGS["bert-base-uncased"]))
    assert bert == replace(find_model("bert-base"), activation="gelu_exact")  # type: ignore[type-var]
    vit = find_model(str(CONFIGS["vit-base-patch16-224-in21k"]))
    assert isinstance(vit, VitConfig)
    assert (vit.layers, vit.width, vit.patch, vit.classes, vit.epsilon) == (12, 768, 16, 2, 1e-12)


def test_a_window_as_long_as_the_samples_is_none() -> None:
    model = find_model(str(CONFIGS["Mistral-7B-v0.1"]), sequence=4096)
    assert isinstance(model, DecoderConfig)
    assert model.windows == (0,)


@pytest.mark.parametrize(
    ("keys", "messages"),
    [
        ({"model_type": "mamba"}, ["model_type: no such family of models is known (got 'mamba'", "qwen3_moe"]),
        ({"model_type": "llamma"}, ["did you mean 'llama'?"]),
        ({"model_type": "llama4"}, ["got 'llama4'", "a model of another family can be given as a program"]),
        ({"model_type": "qwen3_next"}, ["got 'qwen3_next'", "a model of another family can be given as a program"]),
        ({"model_type": ["llama"]}, ["model_type: no such family"]),
        ({"num_key_value_head": 4}, ["unknown key (got 'num_key_value_head'); did you mean 'num_key_value_heads'?"]),
        ({"sliding_window": 4096, "qk_layernorm": True}, ["2 problems", "'sliding_window'", "'qk_layernorm'"]),
        ({"hidden_size": 0, "vocab_size": 1.5}, ["hidden_size: not a size (got 0", "vocab_size: not a size (got 1.5"]),
        ({"hidden_size": None}, ["hidden_size: the key is missing"]),
        ({"num_hidden_layers": 10**9}, ["num_hidden_layers: not a size"]),
        ({"hidden_size": 10**400}, ["hidden_size: not a size"]),
        ({"rms_norm_eps": -1.0}, ["rms_norm_eps: not a figure"]),
        ({"rope_theta": 10**400}, ["rope_theta: not a figure"]),
        ({"hidden_act": "mish"}, ["hidden_act: unknown word (got 'mish'"]),
        ({"tie_word_embeddings": "no"}, ["tie_word_embeddings: not a flag"]),
        ({"num_attention_heads": 33}, ["the width is no multiple of the heads"]),
        ({"num_key_value_heads": 5}, ["the heads are no multiple of the key heads (got (32, 5))"]),
        ({"head_dim": 127}, ["no such part of a head turns (got 127)"]),
        ({"rope_scaling": {"type": "spiral"}}, ["rope_scaling: type: unknown word (got 'spiral'"]),
        ({"rope_scaling": [8.0]}, ["rope_scaling: not an object"]),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "slope": 1}}, ["unknown key (got 'slope')"]),
        (
            {"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "default"}},
            ["positions are given twice"],
        ),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 1}},
            ["no higher than low_freq_factor"],
        ),
    ],
)
def test_all_that_is_wrong_is_in_one_message(tmp_path: Path, keys: dict[str, Any], messages: list[str]) -> None:
    with pytest.raises(InputError) as caught:
        changed(tmp_path, **keys)
    assert str(tmp_path) in str(caught.value)
    for message in messages:
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "keys", "message"),
    [
        ("Mixtral-8x7B-v0.1", {"num_experts_per_tok": 9}, "not so many choices of experts"),
        ("gpt-oss-20b", {"layer_types": ["full_attention"]}, "layer_types: not a word per layer"),
        ("gpt-oss-20b", {"layer_types": ["chunked_attention"] * 24}, "layer_types: not a word per layer"),
        ("DeepSeek-V3", {"first_k_dense_replace": 62}, "more layers than there are"),
        ("DeepSeek-V3", {"scoring_func": "softmax"}, "scoring_func: this is not built"),
        ("DeepSeek-V3", {"n_group": 7}, "no such groups of experts"),
        ("Qwen3-30B-A3B", {"mlp_only_layers": [48]}, "mlp_only_layers: not a list of layers"),
        ("Qwen3-30B-A3B", {"shared_expert_intermediate_size": 8}, "shared_expert_intermediate_size: this is not built"),
        ("Phi-3.5-mini-instruct", {"partial_rotary_factor": 0.5}, "long_factor: not a list of figures"),
        ("Mixtral-8x7B-v0.1", {"num_key_value_heads": None}, "num_key_value_heads: the key is missing"),
        ("gpt2", {"n_inner": 100}, "n_inner: this is not built"),
        ("gpt-neox-20b", {"rotary_pct": 0.001}, "no even number of elements turns"),
        ("bert-base-uncased", {"intermediate_size": 768}, "intermediate_size: this is not built"),
        ("vit-base-patch16-224-in21k", {"num_channels": 1}, "num_channels: this is not built"),
        ("vit-base-patch16-224-in21k", {"patch_size": 15}, "the image is no multiple of the patch"),
        ("gemma-3-4b__maxtext", {"text_config": None}, "text_config: the key is missing"),
    ],
)
def test_what_contradicts_is_refused(tmp_path: Path, name: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_model(written(tmp_path, {**json.loads(CONFIGS[name].read_text()), **keys}))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ("[]", "not a config"),
        ("{", "the file ends in the middle"),
        ('{"model_type": "llama", "model_type": "gpt2"}', "key 'model_type' is given 2 times"),
        ('{"model_type": "llama", "rope_theta": NaN}', "NaN is not a JSON number"),
        ('{"model_type": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deeply"),
        (json.dumps({**LLAMA, "note": "x" * MOST_BYTES}), "too large"),
        ("{}", "model_type: no such family of models is known"),
    ],
)
def test_hostile_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=message):
        read_config(str(tmp_path))


def test_what_is_no_config_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        find_model(str(tmp_path))
    with pytest.raises(InputError, match="no such file"):
        find_model("nowhere.json")
    with pytest.raises(InputError, match="unknown model"):
        find_model("nowhere")


VALUES = (None, True, -1, 0, 1, 3, 2**31, 10**30, -0.5, 1e308, "", "silu", [], [1], {}, {"type": "yarn"}, "x" * 5000)


@pytest.mark.parametrize("seed", range(20))
def test_mutated_configs_end_in_a_model_or_a_message(tmp_path: Path, seed: int) -> None:
    """Keys dropped, doubled under another name, or given values of any type; nothing else than a refusal comes out."""
    rng, read = random.Random(seed), 0
    for _ in range(40):
        content = dict(json.loads(CONFIGS[rng.choice(list(CONFIGS))].read_text()))
        for key in rng.sample(sorted(content), min(3, len(content))):
            del content[key]
        for key in rng.sample(sorted(content), rng.randint(0, 2)):
            if key != "model_type":
                content[key] = rng.choice(VALUES)
        try:
            read += find_model(written(tmp_path, content)).parameters > 0
        except InputError:
            continue
    assert read > 0
