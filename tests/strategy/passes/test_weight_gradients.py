"""Weight gradients set apart: nothing of the backward pass waits for them, and nothing is computed differently."""

from __future__ import annotations

import numpy as np
import pytest

from strategy.graph.graph import Graph, Phase, check_graph
from strategy.layout.config import Recompute
from strategy.models import Model
from strategy.models.gpt import GptConfig
from strategy.models.mlp import MlpConfig
from strategy.passes.offload import offload_activations
from strategy.passes.recompute import recompute
from strategy.passes.training import Training, training_graph
from strategy.passes.weight_gradients import defer_weight_gradients
from strategy.sbp.tensor import DType
from tests.support.reference import random_batch, run_graph, start_variables

GPT = GptConfig(layers=2, width=8, heads=2, sequence=5, vocabulary=11)
MODELS: list[Model] = [GPT, MlpConfig(3, 5, 8, 4)]


def graph_of(model: Model, num_micro_batches: int) -> Graph:
    return training_graph(model, Training(4, num_micro_batches=num_micro_batches, dtype=DType.FLOAT64))


@pytest.mark.parametrize("num_micro_batches", [1, 2])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: type(model).__name__)
def test_the_graph_is_sound_and_the_backward_pass_waits_for_none(model: Model, num_micro_batches: int) -> None:
    before = graph_of(model, num_micro_batches)
    after = defer_weight_gradients(before)
    check_graph(after)
    assert sorted(op.name for op in after.ops) == sorted(op.name for op in before.ops)
    order = [list(Phase).index(op.phase) for op in after.ops]
    assert order == sorted(order)
    for op in after.ops:
        if op.phase is Phase.WEIGHT:
            readers = {reader.phase for name in op.outputs for reader in after.consumers[name]}
            assert readers <= {Phase.WEIGHT, Phase.UPDATE}


def test_what_comes_back_from_the_host_waits_for_no_weight_gradient() -> None:
    """An op that a copy of the backward pass waits for stays there, though no op reads what it writes."""
    before = offload_activations(recompute(graph_of(MODELS[1], 2), Recompute.NONE, ("*.bias_add",)), ())
    after = defer_weight_gradients(before)
    check_graph(after)
    waits = {name for op in after.ops if op.phase is Phase.BACKWARD for name in (*op.inputs, *op.after)}
    apart = {name for op in after.ops if op.phase is Phase.WEIGHT for name in op.outputs}
    assert any(op.after for op in after.ops)
    assert apart
    assert not waits & apart


def test_what_is_set_apart_from_a_layer() -> None:
    after = defer_weight_gradients(graph_of(GPT, 2))
    apart = [op.name for op in after.ops if op.phase is Phase.WEIGHT and op.layer == 1]
    linear = ("mlp.fc2", "mlp.fc1", "attn.proj", "attn.qkv")
    parts = ("bias_add:db", "matmul:dw")
    assert apart == [f"layers.1.{name}.{part}{end}" for name in linear for part in parts for end in ("", ":sum")]


def test_products_for_weights_are_half_of_the_backward_pass() -> None:
    after = defer_weight_gradients(graph_of(GPT, 1))
    kinds = {
        phase: sum(op.kind.startswith("matmul") for op in after.ops if op.phase is phase and op.layer is not None)
        for phase in Phase
    }
    assert kinds[Phase.FORWARD] == kinds[Phase.BACKWARD] == kinds[Phase.WEIGHT] > 0


def test_a_step_computes_the_same() -> None:
    before = graph_of(GPT, 2)
    results = []
    for graph in (before, defer_weight_gradients(before)):
        variables = start_variables(graph, np.random.default_rng(0))
        batch = random_batch(graph_of(GPT, 1), GPT.vocabulary, np.random.default_rng(1))
        pieces = {name: np.split(array, 2) for name, array in batch.items()}
        run_graph(graph, [{name: piece[i] for name, piece in pieces.items()} for i in range(2)], variables, step=0)
        results.append(variables)
    for name, array in results[0].items():
        assert np.array_equal(array, results[1][name]), name
