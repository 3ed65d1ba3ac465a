"""Recompute: nothing changes but memory and work; clones draw what their originals drew, and never start early."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from executor.train import program_of
from simulator.simulate import simulate
from strategy.base.budget import Budget
from strategy.base.errors import InputError
from strategy.graph.graph import Graph, Op, Phase, Role
from strategy.layout.config import Recompute
from strategy.lowering.lower import hardware_flop, model_flop
from strategy.models import Model, find_model
from strategy.models.decoder import DecoderConfig
from strategy.models.mlp import MlpConfig
from strategy.models.resnet import ResNetConfig
from strategy.passes.recompute import recompute
from strategy.passes.training import Training, training_graph
from strategy.plan.plan import Plan
from strategy.plan.verify import verify
from strategy.program.program import ActKind
from strategy.sbp.tensor import DType
from strategy.search.search import search
from strategy.space.request import Pins
from tests.support.long_parameters import long_but
from tests.support.megatron import MegatronConfig
from tests.support.reference import run_graph, start_variables
from tests.support.small_plans import (
    MODEL,
    config_of,
    corpus,
    deduced_plan,
    exchange_left_alone,
    request,
    simulated,
    train,
)

Array = npt.NDArray[Any]
MEGATRON = MegatronConfig(layers=2, width=8, heads=2, sequence=4, vocabulary=16, dropout=0.25)
LLAMA = find_model("llama-tiny")
DEEPSEEK = DecoderConfig(
    2, 8, 2, 2, 4, 12, 6, 16, before=1, windows=(0, 0), sparse=(0, 1), key_latent=6, rotary_key=2, value_width=4,
    experts=4, choices=2, expert_hidden=6, ahead=1,
)  # fmt: skip
"""A dense layer, two of experts, and one that predicts further ahead."""
RESNET = ResNetConfig(side=8, classes=5, blocks=(1, 1), width=4, bottleneck=False)
CASES = [
    pytest.param(MODEL, Recompute.SELECTIVE, id="gpt-selective"),
    pytest.param(MODEL, Recompute.FULL, id="gpt-full"),
    pytest.param(MODEL, Recompute.MEMORY_BOUND, id="gpt-memory-bound"),
    pytest.param(LLAMA, Recompute.MEMORY_BOUND, id="llama-memory-bound"),
    pytest.param(find_model("mixtral-tiny"), Recompute.MEMORY_BOUND, id="mixtral-memory-bound"),
    pytest.param(MEGATRON, Recompute.SELECTIVE, id="megatron-selective"),
    pytest.param(MEGATRON, Recompute.FULL, id="megatron-full"),
    pytest.param(DEEPSEEK, Recompute.FULL, id="deepseek-full"),
    pytest.param(DEEPSEEK, Recompute.MEMORY_BOUND, id="deepseek-memory-bound"),
    pytest.param(RESNET, Recompute.FULL, id="resnet-full"),
]


@cache
def graph_of(model: Model) -> Graph:
    return training_graph(model, Training(4, 2, dtype=DType.FLOAT64, max_norm=1e9, lr=0.01))


def clones(graph: Graph) -> list[Op]:
    return [op for op in graph.ops if op.repeats]


def micro_batches(graph: Graph, rng: np.random.Generator) -> Iterator[dict[str, Array]]:
    for _ in range(2):
        yield {
            v.name: np.asarray(
                rng.standard_normal(v.spec.shape)
                if v.spec.dtype.is_float
                else rng.integers(0, 5, v.spec.shape, v.spec.dtype)
            )
            for v in graph.with_role(Role.INPUT)
        }


def after_two_steps(graph: Graph) -> dict[str, Array]:
    """All variables, running statistics among them."""
    rng = np.random.default_rng(0)
    variables = start_variables(graph, rng)
    for step in range(2):
        run_graph(graph, list(micro_batches(graph, rng)), variables, step=step)
    return variables


@pytest.mark.parametrize(("model", "kind"), CASES)
def test_parameters_are_the_same_to_the_bit(model: Model, kind: Recompute) -> None:
    wanted, found = after_two_steps(graph_of(model)), after_two_steps(recompute(graph_of(model), kind))
    assert list(wanted) == list(found)
    for name in wanted:
        assert np.array_equal(found[name], wanted[name]), name


@pytest.mark.parametrize(("model", "kind"), CASES)
def test_clones_stand_in_the_backward_pass_for_forward_ops_of_their_layer(model: Model, kind: Recompute) -> None:
    kept = graph_of(model)
    graph = recompute(kept, kind)
    assert clones(graph)
    for op in clones(graph):
        original = kept.by_name[op.repeats]
        assert (op.name, op.phase) == (f"{original.name}:recompute", Phase.BACKWARD)
        assert (op.kind, op.attrs, op.layer) == (original.kind, original.attrs, original.layer)
        assert not op.updates
        assert op.kind != "accumulate"
    originals = [op for op in graph.ops if not op.repeats and op.kind != "copy"]
    assert [op.name for op in originals] == [op.name for op in kept.ops]


def test_full_keeps_the_inputs_of_layers_alone() -> None:
    graph = recompute(graph_of(MODEL), Recompute.FULL)
    crossing = {
        name
        for op in graph.ops
        if op.phase is Phase.BACKWARD and op.layer is not None
        for name in op.inputs
        if name in graph.producer and graph.producer[name].phase is Phase.FORWARD
    }
    assert crossing == {"embed_position", "layers.0.residual2"}


def test_layers_that_stand_alone_keep_their_inputs_alone() -> None:
    """DeepSeek-V3's first dense layers and those that predict further ahead are layers as the others are."""
    graph = recompute(graph_of(DEEPSEEK), Recompute.FULL)
    layers = {op.any_layer for op in graph.ops} - {None}
    assert layers == {"before.0", 0, 1, "ahead.0"}
    crossing = {
        (name, graph.producer[name].any_layer)
        for op in graph.ops
        if op.phase is Phase.BACKWARD and op.any_layer is not None
        for name in op.inputs
        if name in graph.producer and graph.producer[name].phase is Phase.FORWARD
    }
    handed_on = {name for name, layer in crossing if layer is not None}
    assert handed_on == {"before.0.residual2", "layers.0.residual2", "layers.1.residual2"}
    assert {op.any_layer for op in clones(graph)} == layers


def test_selective_drops_what_is_between_the_two_products_of_attention() -> None:
    graph = recompute(graph_of(MEGATRON), Recompute.SELECTIVE)
    inside = ("scores", "scaled", "softmax", "dropout.dropout")
    assert [op.repeats for op in clones(graph) if op.layer == 0] == [f"layers.0.attn.{name}" for name in inside]
    fences = [op.inputs[0] for op in graph.ops if op.kind == "copy" and op.layer == 0]
    assert fences == ["layers.0.attn.q.by_head", "layers.0.attn.k.by_head"]


def test_memory_bound_repeats_what_follows_from_what_is_kept_anyway() -> None:
    kept = graph_of(LLAMA)
    graph = recompute(kept, Recompute.MEMORY_BOUND)
    again = [op.repeats.removeprefix("layers.1.") for op in clones(graph) if op.layer == 1]
    assert sorted(again) == ["attn.merge", "mlp.hidden", "mlp.hidden.silu", "norm1.norm", "norm2.norm"]
    read = {name for op in kept.ops if op.phase is Phase.BACKWARD for name in op.inputs}
    fences = {op.inputs[0] for op in graph.ops if op.kind == "copy" and op.phase is Phase.BACKWARD}
    assert fences
    assert fences <= read, "nothing is kept for clones alone"


def test_a_softmax_that_is_no_attention_is_left_alone() -> None:
    graph = training_graph(find_model("mixtral-tiny"), Training(2))
    softmaxes = {op.name for op in graph.ops if op.kind == "softmax" and op.phase is Phase.FORWARD}
    assert softmaxes
    assert not softmaxes & {op.repeats for op in clones(recompute(graph, Recompute.SELECTIVE))}


def test_values_by_name() -> None:
    graph = recompute(graph_of(MODEL), Recompute.NONE, ("layers.1.mlp.gelu",))
    assert [op.repeats for op in clones(graph)] == ["layers.1.mlp.gelu"]
    assert recompute(graph_of(MODEL), Recompute.NONE) is graph_of(MODEL)


@pytest.mark.parametrize("kind", [Recompute.SELECTIVE, Recompute.FULL, Recompute.MEMORY_BOUND])
def test_layers_that_keep_everything_compute_nothing_again(kind: Recompute) -> None:
    graph = graph_of(replace(MEGATRON, layers=4))
    again = recompute(graph, kind, kept_layers=(0, 2))
    assert {op.layer for op in clones(again)} == {1, 3}
    alike = [op for op in clones(recompute(graph, kind)) if op.layer in {1, 3}]
    assert [(op.name, op.inputs) for op in clones(again)] == [(op.name, op.inputs) for op in alike]
    for layer in (0, 2):
        ours, kept = ([op for op in one.ops if op.layer == layer] for one in (again, graph))
        assert ours == kept
    wanted, found = after_two_steps(graph), after_two_steps(again)
    assert all(np.array_equal(found[name], wanted[name]) for name in wanted)


@pytest.mark.parametrize(
    ("kept", "kind", "message"),
    [
        ((9,), Recompute.FULL, "kept_layers: a layer that is not there .*got 9, expected numbers of layers, 0 to 1"),
        ((1, 0), Recompute.FULL, "kept_layers: no choice of layers .*ascending"),
        ((-1,), Recompute.FULL, "kept_layers: no choice of layers"),
        ((0,), Recompute.NONE, "kept_layers: all layers keep everything .*set recompute"),
    ],
)
def test_wrong_layers_to_keep_are_refused(kept: tuple[int, ...], kind: Recompute, message: str) -> None:
    with pytest.raises(InputError, match=message):
        recompute(
            graph_of(MODEL), kind, kept_layers=config_of(Training(4), recompute=kind, kept_layers=kept).kept_layers
        )


@pytest.mark.parametrize(
    ("model", "kind", "patterns", "message"),
    [
        (MODEL, Recompute.NONE, ("layers.*.mlp.geluu",), "matches no activation.*geluu.*did you mean.*gelu"),
        (MODEL, Recompute.NONE, ("embed",), "matches no activation"),
        (MODEL, Recompute.FULL, ("logits:dx",), "matches no activation"),
        (MlpConfig(2, 4, 4, 3), Recompute.SELECTIVE, (), "nothing to recompute.*attention"),
    ],
)
def test_what_cannot_be_recomputed_is_refused(
    model: Model, kind: Recompute, patterns: tuple[str, ...], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        recompute(graph_of(model), kind, patterns)


def laid_out(kind: Recompute, *, backend: str = "numpy", model: Model = MEGATRON, **degrees: int) -> Plan:
    training = Training(4, 2 if degrees.get("pp", 1) > 1 else 1, dtype=DType.FLOAT64)
    asked = request(degrees.get("pp", 1) * 2, training, model=model, backend=backend)
    return deduced_plan(asked, config_of(training, tp=2, recompute=kind, **degrees), ("data", "tensor"))


@pytest.mark.parametrize("degrees", long_but([{}, {"pp": 2}], 1), ids=["tensor", "pipeline"])
def test_memory_falls_and_losses_do_not_change(degrees: dict[str, int]) -> None:
    """All laid out by one rule: what costs least would be laid out otherwise each time."""
    training = Training(4, 2 if degrees else 1, dtype=DType.FLOAT64)
    asked = request(degrees.get("pp", 1) * 2, training, model=MEGATRON)
    plans = [
        deduced_plan(asked, config_of(training, tp=2, recompute=kind, **degrees), ("data", "tensor"))
        for kind in (Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL, Recompute.MEMORY_BOUND)
    ]
    assert [problem for plan in plans for problem in verify(plan)] == []
    nothing, *peaks, memory_bound = [plan.claims.peak_memory_bytes[0] for plan in plans]
    assert max(*peaks, memory_bound) < nothing
    assert degrees or peaks == sorted(
        set(peaks), reverse=True
    )  # of two stages the first peaks where no layer is at work
    losses = [[report.loss for report in train(plan, corpus(16), steps=2).reports] for plan in plans]
    for again in losses[1:]:
        assert again == pytest.approx(losses[0], rel=1e-12)


@pytest.mark.parametrize("kind", long_but([Recompute.SELECTIVE, Recompute.FULL, Recompute.MEMORY_BOUND], 1))
def test_nothing_of_it_starts_before_the_backward_pass_of_its_layer(kind: Recompute) -> None:
    """Collectives run beside computation here; without the fence those of clones would run ahead."""
    training = Training(4, dtype=DType.FLOAT64)
    asked = request(4, training, model=MEGATRON, backend="cupy")
    plan = deduced_plan(asked, config_of(training, dp=2, tp=2, recompute=kind), ("data", "tensor"))
    timeline = simulate(program_of(plan), steps=2).timeline
    graph = plan.graph
    begins: dict[tuple[int, int], int] = {}  # (layer, step) -> when its first gradient op begins
    again: dict[tuple[int, int], list[int]] = {}
    conversions = 0
    for record in timeline.records:
        label = timeline.actors[record.actor]
        if label.rank:
            continue
        name = label.name.partition(">")[0]
        op = graph.by_name.get(name) or graph.producer.get(name)
        if op is None or op.layer is None or op.phase is not Phase.BACKWARD:
            continue
        key = op.layer, record.number // label.acts_per_step
        if op.repeats or op.kind == "copy":
            again.setdefault(key, []).append(record.start_ns)
            conversions += label.kind is not ActKind.COMPUTE
        elif label.kind is ActKind.COMPUTE:
            begins[key] = min(begins.get(key, record.start_ns), record.start_ns)
    # What is inside of attention stays where the heads are.
    assert bool(conversions) == (kind is not Recompute.SELECTIVE)
    assert len(again) == 4
    for key, starts in again.items():
        assert min(starts) >= begins[key], key


def test_the_hardware_works_more_than_the_model() -> None:
    kept, full = laid_out(Recompute.NONE), laid_out(Recompute.FULL)
    assert model_flop(full.graph, full.pipeline) == model_flop(kept.graph, kept.pipeline)
    assert hardware_flop(kept.graph, kept.pipeline) == model_flop(kept.graph, kept.pipeline)
    program = program_of(full)
    assert program.hardware_flop_per_step == hardware_flop(full.graph, full.pipeline)
    assert program.model_flop_per_step == model_flop(full.graph, full.pipeline)
    layers = [op for op in kept.graph.ops if op.layer is not None and op.phase is Phase.FORWARD]
    again = {op.repeats for op in clones(full.graph)}
    last = {f"layers.{layer}.mlp.fc2.matmul" for layer in range(2)}
    products = {op.name for op in layers if op.kind in ("matmul", "batch_matmul")}
    assert products - again == last  # the layer's output is the next one's input, which is kept


def test_a_pinned_stage_that_cuts_a_layer_cannot_recompute_all_of_it() -> None:
    training = Training(4, 2)
    asked = request(2, training)
    stages = {"layers.1.mlp.*": 1, "layers.0.*": 0, "layers.1.attn*": 0, "layers.1.norm*": 0, "layers.1.residual1*": 0}
    pins = Pins(dp=1, tp=1, pp=2, num_micro_batches=2, recompute=Recompute.FULL, stages=stages)
    with pytest.raises(InputError, match=r"against the pipeline.*recompute"):
        search(replace(asked, pins=pins), simulate=simulated, budget=Budget.of(60))


@pytest.mark.long
@exchange_left_alone()
def test_where_memory_is_short_the_search_recomputes() -> None:
    training = Training(4, dtype=DType.FLOAT64)
    pins = Pins(micro_batch=4)
    asked = replace(request(1, training, model=MEGATRON), pins=pins)
    roomy = search(asked, simulate=simulated, budget=Budget.of(60)).plan
    assert roomy.config.recompute is Recompute.NONE
    short = replace(asked, memory_limit_bytes=roomy.claims.peak_memory_bytes[0] * 9 // 10)
    found = search(short, simulate=simulated, budget=Budget.of(60))
    assert found.plan.config.recompute is not Recompute.NONE
    assert verify(found.plan) == []
    losses = [train(plan, corpus(16), steps=2).reports[-1].loss for plan in (roomy, found.plan)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)
