"""Attention in blocks is attention: the same losses, gradients and new parameters, by one device."""

from __future__ import annotations

import math

import numpy as np
import pytest

from strategy.base.errors import InputError
from strategy.layout.config import Context
from strategy.lowering.lower import products_flop
from strategy.models import Model
from strategy.models.bert import BertConfig
from strategy.models.gpt import GptConfig
from strategy.models.llama import LlamaConfig
from strategy.models.mlp import MlpConfig
from strategy.passes.planned import planned_graph
from strategy.passes.ring_attention import ring_attention
from strategy.passes.training import Training, training_graph
from tests.support.reference import random_batch, run_graph, start_variables
from tests.support.small_plans import config_of, in_float64

TRAINING = in_float64(Training(global_batch=2))
LLAMA = LlamaConfig(layers=2, width=16, heads=4, key_heads=2, hidden=24, sequence=7, vocabulary=32)
GPT = GptConfig(layers=1, width=8, heads=2, sequence=5, vocabulary=16)
BERT = BertConfig(layers=1, width=16, heads=4, sequence=6, vocabulary=24)


@pytest.mark.parametrize(("model", "ranks"), [(LLAMA, 2), (LLAMA, 3), (LLAMA, 7), (GPT, 2), (GPT, 4), (BERT, 4)])
def test_blocks_compute_what_attention_computes(model: Model, ranks: int) -> None:
    """Grouped, packed and masked heads; gradients are compared by the parameters after a step."""
    whole = training_graph(model, TRAINING)
    found = []
    for graph in (whole, ring_attention(whole, ranks)):
        rng = np.random.default_rng(3)
        variables = start_variables(graph, rng)
        batch = random_batch(graph, 2, rng)
        values = run_graph(graph, [batch], variables)
        found.append({**variables, **{name: values[name] for name in values if name in whole.values}})
    assert found[0].keys() >= found[1].keys()
    for name, one in found[1].items():
        np.testing.assert_allclose(one, found[0][name], rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("model", [LLAMA, GPT, BERT])
def test_every_attention_is_in_blocks_and_keeps_its_name(model: Model) -> None:
    whole = training_graph(model, TRAINING)
    graph = ring_attention(whole, 3)
    kinds = [op.kind for op in graph.ops]
    for kind in ("attention", "attention_grad"):
        count = sum(op.kind == kind for op in whole.ops)
        assert count > 0
        assert kinds.count(kind) == 0
        assert kinds.count(kind.replace("attention", "attention_block")) == 3 * count
    for op in whole.ops:
        if op.kind == "attention":
            assert graph.by_name[op.name].outputs == op.outputs
        for name in op.outputs:
            used = whole.consumers[name] and not name.endswith(".lse")
            assert not used or graph.values[name] == whole.values[name]
        assert op.kind.startswith("attention") or graph.by_name[op.name] == op


def test_a_block_is_less_work_the_later_it_is_seen() -> None:
    """Of causal attention over p chunks, p (p + 1) / 2 pairs of chunks are computed, forward and backward."""
    model = LlamaConfig(layers=1, width=16, heads=4, key_heads=4, hidden=24, sequence=8, vocabulary=32)
    whole = training_graph(model, TRAINING)
    before, after = products_flop(whole), products_flop(ring_attention(whole, 4))
    for kind in ("attention", "attention_grad"):
        assert math.isclose(after[kind.replace("attention", "attention_block")], before[kind] * 10 / 16)


@pytest.mark.parametrize("context", [str(context) for context in Context])
def test_what_cannot_be_split_is_refused(context: str) -> None:
    config = config_of(TRAINING, cp=8, context=context)
    with pytest.raises(InputError, match=r"context parallelism: 2 problems") as caught:
        planned_graph(LLAMA, TRAINING, config)
    assert "op layers.1.attn.attention: a sequence is too short to be split (got 7, expected at least 8)" in str(
        caught.value
    )
    with pytest.raises(InputError, match="the model has no attention"):
        planned_graph(MlpConfig(2, 4, 8, 4), TRAINING, config)
