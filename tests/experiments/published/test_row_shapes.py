"""Row shapes: what the columns of a row say of its model."""

from __future__ import annotations

import pytest

from experiments.published.cells import INPUTS, MORE, Unsupported
from experiments.published.row_shapes import adapter_rank, guessed_of_model, shapes_of
from strategy.closed_form.job import Shape


def cells(**given: str) -> dict[str, str]:
    blank = dict.fromkeys((*INPUTS, *MORE), "")
    return (
        blank | {"layers": "12", "hidden": "512", "heads": "8", "vocab": "50304", "framework": "Megatron-Core"} | given
    )


def shape(**given: str) -> Shape:
    (found,) = shapes_of(cells(**given), 1)
    return found


def test_a_plain_row_is_a_plain_transformer() -> None:
    assert shape(arch="gpt") == Shape.transformer(layers=12, hidden=512, heads=8, ffn=2048, vocab=50304)
    llama = shape(arch="llama", kv_heads="2", ffn="1376")
    assert (llama.gated, llama.tied, llama.kv_heads, llama.ffn) == (True, False, 2, 1376)


def test_the_name_of_a_model_is_read_only_where_its_dimensions_are_blank() -> None:
    assert shape(model="deepseekv3", arch="gpt") == shape(model="", arch="gpt")
    public = shape(model="Qwen3_30B_a3B", hidden="", layers="", heads="")
    assert (public.hidden, public.experts) == (2048, 128)
    assert shape(model="x", hidden="", layers="", heads="", params_b="7").hidden == 4224, "33 layers of 4,224"


def test_a_t5_has_encoder_and_decoder_and_few_logits() -> None:
    found = shape(arch="t5", layers="24")
    assert (found.decoder_layers, found.attention_layers, found.dense_layers) == (12, 36, 24)
    assert found.logit_share == found.decoder_share == 0.25


def test_bert_computes_all_logits_in_megatron_core_alone() -> None:
    assert shape(arch="bert").logit_share == 1.0
    assert shape(arch="bert", framework="NGC PyTorch").logit_share == 0.16
    assert shape(arch="bert", vocab="").vocab == 30522


def test_experts_take_the_place_of_feed_forwards() -> None:
    all_layers = shape(arch="moe", experts="8", topk="2", moe_ffn="1024")
    assert (all_layers.moe_layers, all_layers.dense_layers, all_layers.top_k) == (12, 0, 2)
    staggered = shape(arch="moe gated", experts="8", moe_layer_freq="([0]*3+[1]*9)", shared_expert_ffn="256")
    assert (staggered.moe_layers, staggered.dense_layers, staggered.shared_ffn, staggered.gated) == (9, 3, 256, True)
    assert staggered.head_qk == 128, "mixtures of gated experts have heads of 128"


def test_latent_attention_is_five_numbers() -> None:
    found = shape(arch="moe gated", experts="8", mla="1536,512,128,64,96")
    assert (found.q_rank, found.kv_rank, found.head_qk, found.head_v, found.kv_heads) == (1536, 576, 192, 96, 8)
    for wrong in ("1536,512", "1536,512,128,64,x", "0,1,2,3,4"):
        with pytest.raises(Unsupported, match="mla: got"):
            shape(mla=wrong)


def test_tokens_further_ahead_are_predicted_by_one_more_layer_each() -> None:
    found = shape(arch="moe", experts="8", mtp_layers="2")
    assert (found.mtp_layers, found.attention_layers, found.moe_layers, found.layers) == (2, 14, 14, 12)
    assert shape(arch="gpt", mtp_layers="0").mtp_layers == 0


def test_a_hybrid_is_its_pattern() -> None:
    found = shape(arch="hybrid M-M*-|MEM/*E num-heads=16 head-dim=32", layers="12", experts="4", topk="2", moe_ffn="64")
    assert (found.layers, found.mamba_layers, found.attention_layers) == (8, 4, 1)
    assert (found.dense_layers, found.moe_layers, found.mamba_inner) == (2, 1, 512)
    assert shape(arch="hybrid M-*").mamba_inner == 1024
    usual = shape(arch="hybrid MX")
    assert (usual.mamba_layers, usual.attention_layers, usual.dense_layers) == (6, 1, 5), "12 layers in the usual order"


def test_what_has_to_be_guessed_of_a_model_is_named() -> None:
    assert guessed_of_model(cells(arch="gpt")) == []
    assert guessed_of_model(cells(arch="gpt", layers="")) == ["layers"]
    assert guessed_of_model(cells(arch="hybrid MX")) == guessed_of_model(cells(arch="")) == ["arch"]
    assert guessed_of_model(cells(arch="gpt", hidden="", model="x", params_b="7")) == ["hidden"]
    assert guessed_of_model(cells(arch="gpt", hidden="", model="x")) == ["model"]
    assert guessed_of_model(cells(arch="gpt", hidden="", model="Llama-3.1-8B")) == []


def test_adapters_have_the_rank_that_is_said() -> None:
    assert adapter_rank(cells(arch="llama LoRA rank 8")) == 8
    assert adapter_rank(cells(arch="llama LoRA")) == 16
    assert adapter_rank(cells(arch="llama")) == 0
