"""Pairs of ops become the op that does both; what is trained is the same, on one device and on several ranks."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Graph, Role, Value
from strategy.graph.ops import REGISTRY
from strategy.models import find_model
from strategy.models.llama import LlamaConfig
from strategy.passes.fusion import fuse
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training, evaluation_graph, training_graph
from strategy.plan.plan import plan_text, read_plan, write_plan
from strategy.plan.verify import verify
from strategy.sbp.tensor import DType, Rate, TensorSpec
from tests.campaigns.transparency import on_one_device
from tests.support.long_parameters import long_but
from tests.support.reference import random_batch, run_graph, start_variables
from tests.support.small_plans import config_of, corpus, deduced_plan, request, train

GATED = ("llama-tiny", "mixtral-tiny")
WIDE = LlamaConfig(layers=4, width=8, heads=2, key_heads=2, hidden=96, sequence=8, vocabulary=16)


def kinds(graph: Graph) -> set[str]:
    return {op.kind for op in graph.ops}


@pytest.mark.parametrize("name", GATED)
def test_gated_layers_are_fused_and_train_alike(name: str) -> None:
    how = Training(4, num_micro_batches=2, dtype=DType.FLOAT64)
    graphs = [training_graph(find_model(name), replace(how, fused=fused)) for fused in (False, True)]
    assert {"silu", "silu_grad"} <= kinds(graphs[0])
    assert {"swiglu", "swiglu_grad"} <= kinds(graphs[1])
    assert kinds(graphs[1]).isdisjoint({"silu", "silu_grad"})
    assert len(graphs[1].ops) < len(graphs[0].ops)
    states = [start_variables(graph, np.random.default_rng(0)) for graph in graphs]
    for graph, state in zip(graphs, states, strict=True):
        rng = np.random.default_rng(1)
        run_graph(graph, [random_batch(graph, 256, rng) for _ in range(2)], state)
    for variable, array in states[0].items():
        np.testing.assert_allclose(states[1][variable], array, rtol=1e-9, atol=1e-12)


def test_halves_and_evaluation_are_fused_too() -> None:
    how = Training(4, precision=Precision.BF16, fused=True)
    graph = training_graph(find_model("llama-tiny"), how)
    fused = [op for op in graph.ops if op.kind == "swiglu"]
    assert {graph.values[name].spec.dtype for op in fused for name in (*op.inputs, *op.outputs)} == {DType.BFLOAT16}
    assert "swiglu" in kinds(evaluation_graph(find_model("llama-tiny"), how))


def test_pairs_of_the_registry_are_of_two_ops_that_there_are() -> None:
    pairs = [found.fuses for found in REGISTRY.values() if found.fuses is not None]
    assert len({(pair.first, pair.then) for pair in pairs}) == len(pairs) == 2
    assert {kind for pair in pairs for kind in (pair.first, pair.then)} <= set(REGISTRY)


def residual_graph(
    shape: tuple[int, ...] = (4, 6), *, flipped: bool = False, first_layer: int | None = 0
) -> GraphBuilder:
    """x -> dropout -> added to a residual."""
    builder = GraphBuilder()
    builder.declare(Value("x", TensorSpec((4, 6)), Rate.MICRO_BATCH, Role.INPUT))
    builder.declare(Value("r", TensorSpec(shape), Rate.MICRO_BATCH, Role.INPUT))
    builder.add("drop", "dropout", ("x",), attrs={"rate": 0.25, "seed": 7}, layer=first_layer)
    operands = ("r", "drop") if flipped else ("drop", "r")
    builder.add("sum", "add", operands, layer=0)
    return builder


@pytest.mark.parametrize("flipped", [False, True])
def test_dropout_is_fused_with_the_residual_behind_it(flipped: bool) -> None:
    graph = residual_graph(flipped=flipped).build()
    fused = fuse(graph, ())
    (op,) = fused.ops
    assert (op.name, op.kind, op.inputs, op.layer) == ("sum", "add_dropped", ("x", "r"), 0)
    assert "drop" not in fused.values
    batch = {name: np.random.default_rng(3).standard_normal((4, 6)) for name in ("x", "r")}
    found = [run_graph(one, [batch], {})["sum"] for one in (graph, fused)]
    np.testing.assert_allclose(found[1], found[0])


def test_what_others_read_or_what_differs_in_shape_or_layer_stays() -> None:
    assert fuse(residual_graph((6,)).build(), ()).ops[-1].kind == "add"
    assert fuse(residual_graph(first_layer=None).build(), ()).ops[-1].kind == "add"
    assert fuse(residual_graph().build(), ("drop",)).ops[-1].kind == "add"
    read_twice = residual_graph()
    read_twice.add("other", "neg", ("drop",), layer=0)
    assert fuse(read_twice.build(), ()).ops[1].kind == "add"
    doubled = residual_graph()
    doubled.ops[-1] = replace(doubled.ops[-1], inputs=("drop", "drop"))
    assert fuse(doubled.build(), ()).ops[-1].kind == "add"


@pytest.mark.parametrize("degrees", long_but([((2, 1, 1),), ((1, 2, 1),), ((1, 2, 2),)], 0, 2))
def test_plans_with_fused_ops_train_as_one_device_does_and_cost_less(
    tmp_path: Path, degrees: tuple[int, int, int]
) -> None:
    """Fewer bytes are moved by its acts, and less is kept for the backward pass."""
    dp, tp, pp = degrees
    how = Training(4, num_micro_batches=2, dtype=DType.FLOAT64)
    plans = []
    for training in (how, replace(how, fused=True)):
        asked = request(dp * tp * pp, training, model=WIDE)
        plans.append(deduced_plan(asked, config_of(training, dp=dp, tp=tp, pp=pp), ("data", "tensor")))
    plain, fused = plans
    assert verify(fused) == []
    assert max(fused.claims.peak_memory_bytes) < max(plain.claims.peak_memory_bytes)
    assert fused.claims.objective_s < plain.claims.objective_s
    _, losses = on_one_device(plain, steps=2)
    reports = train(fused, corpus(fused.model.vocabulary), steps=2).reports
    assert [report.loss for report in reports] == pytest.approx(losses, rel=1e-9)
    write_plan(fused, tmp_path / "plan.json")
    assert plan_text(read_plan(tmp_path / "plan.json")) == plan_text(fused)
    assert '"fused"' not in plan_text(plain)
