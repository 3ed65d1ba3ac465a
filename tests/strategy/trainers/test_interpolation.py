"""Interpolations of YAML: values of other keys, put in."""

from __future__ import annotations

from pathlib import Path

import pytest

from strategy.base.errors import InputError
from strategy.trainers.architecture import PositionKind
from strategy.trainers.interpolation import interpolated
from strategy.trainers.read import read_configuration

NEMO = """
trainer: {devices: 8, num_nodes: 4, precision: bf16}
model:
  micro_batch_size: 1
  global_batch_size: 256
  tensor_model_parallel_size: 2
  encoder_seq_length: 4096
  max_position_embeddings: ${.encoder_seq_length}
  num_layers: 32
  hidden_size: 4096
  ffn_hidden_size: ${multiply:4, ${.hidden_size}}
  num_attention_heads: 32
  num_query_groups: 8
  kv_channels: null
  normalization: rmsnorm
  activation: fast-swiglu
  bias: false
  position_embedding_type: rope
  share_embeddings_and_output_weights: false
  optim: {name: distributed_fused_adam}
  data: {seq_length: "${model.encoder_seq_length}"}
"""


def test_values_are_those_of_other_keys() -> None:
    document = {
        "a": {"b": 8, "c": "${.b}", "d": {"e": "${..c}", "f": "x${a.b}-${a.c}"}},
        "g": "${multiply:2,${a.b}}",
        "h": "${oc.env:HOME,7}",
    }
    found = interpolated(document)
    assert found == {"a": {"b": 8, "c": 8, "d": {"e": 8, "f": "x8-8"}}, "g": 16, "h": "7"}


@pytest.mark.parametrize(
    "text", ["${nowhere}", "${a}", "${oc.env:HOME}", "${ring}", "${", "${multiply:x,2}", "${list}"]
)
def test_what_has_no_value_stands_as_it_is(text: str) -> None:
    found = interpolated({"a": {"b": 1}, "list": [1], "ring": "${ring}", "key": text})
    assert found["key"] == text


def test_what_grows_ends() -> None:
    document = {"k0": "x" * 100, **{f"k{n}": f"${{k{n - 1}}}" * 20 for n in range(1, 12)}}
    assert len(interpolated(document)["k11"]) < 10**6


def test_a_llama_of_nemo_is_no_gpt2(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "llama.yaml"
    path.write_text(NEMO)
    read = read_configuration(path)
    model = read.trained.model
    assert (model.key_heads, model.head_width, model.ffn, model.table) == (8, 128, 16384, 0)
    assert (model.gated, model.activation, model.rms_norm, model.biases) == (True, "silu", True, False)
    assert (model.positions, model.tied) == (PositionKind.ROTARY, False)
    assert not read.not_understood


def test_an_activation_that_is_not_known_is_told(tmp_path: Path) -> None:
    pytest.importorskip("yaml")
    path = tmp_path / "llama.yaml"
    path.write_text(NEMO.replace("fast-swiglu", "squared-relu"))
    with pytest.raises(InputError, match=r"model.activation: cannot be used \(got 'squared-relu'"):
        read_configuration(path)
