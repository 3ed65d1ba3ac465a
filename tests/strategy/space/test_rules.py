"""Rules and pins: what they keep, and what they say where nothing is left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from strategy.base.errors import InfeasibleError, InputError
from strategy.graph.experts import weights_of_experts as experts_read
from strategy.graph.graph import Graph, Phase, Role
from strategy.graph.ops import op_definition
from strategy.graph.ops.traits import Attention
from strategy.graph.signature import Signature, op_signatures
from strategy.models.decoder import DecoderConfig
from strategy.models.mixtral import MixtralConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.planned import planned_graph
from strategy.passes.training import Training, training_graph
from strategy.passes.updates import Optimizer
from strategy.sbp.sbp import B, NdSbp, Split
from strategy.space.pins import pinned
from strategy.space.rules import (
    RULES,
    along_axes,
    beside_experts,
    following_samples,
    staying_with_experts,
)
from tests.support.small_plans import MODEL, config_of, plan_by_rules, request

TRAINING = Training(global_batch=4)
GRAPH = training_graph(MODEL, TRAINING)
EXPERTS = MixtralConfig(
    layers=2, width=64, heads=2, key_heads=1, hidden=96, experts=4, choices=2, sequence=32, vocabulary=64,
    rotary_base=10000.0,
)  # fmt: skip


LATENT = DecoderConfig(
    3, 32, 4, 4, 16, 48, 16, 64, before=1, windows=(0, 0), sparse=(0, 1), key_latent=16, rotary_key=8, value_width=8,
    experts=4, choices=2, expert_hidden=16,
)  # fmt: skip


def test_every_rule_leaves_every_op_a_signature() -> None:
    for name in RULES:
        keep = along_axes(GRAPH, (2,), [name])
        for op in GRAPH.ops:
            assert any(keep(op, signature) for signature in op_signatures(GRAPH, op, (2,))), (name, op.name)


def test_data_parallel_replicates_parameters_and_splits_samples() -> None:
    plan = plan_by_rules(request(2, TRAINING), config_of(TRAINING, dp=2), ("data", "tensor"))
    for op in GRAPH.ops:
        signature = plan.layout.signatures[op.name]
        assert all(nd == (B, B) for nd in signature.updates)
        for name, nd in zip(op.inputs, signature.inputs, strict=True):
            if GRAPH.values[name].role is Role.INPUT:
                assert nd == (Split(0), B)


def test_products_take_weights_as_they_lie_and_give_gradients_so() -> None:
    """By Megatron's rule alone weights may be gathered and samples split, for as long as parameters lie split."""
    plan = plan_by_rules(request(2, TRAINING), config_of(TRAINING, tp=2), ("data", "tensor as it lies"))
    for name, sbp in (("attn.qkv", Split(1)), ("attn.proj", Split(0)), ("mlp.fc1", Split(1)), ("mlp.fc2", Split(0))):
        products = [op for op in plan.graph.ops if op.name.startswith(f"layers.1.{name}.matmul")]
        weights = {f"layers.1.{name}.weight", f"layers.1.{name}.weight:float16"}
        read = [
            nd[1]
            for op in products
            for value, nd in zip(op.inputs, plan.layout.signatures[op.name].inputs, strict=True)
            if value in weights
        ]
        assert read == [sbp, sbp], name
        assert plan.layout.signatures[f"layers.1.{name}.matmul:dw"].outputs == ((B, sbp),)


def test_megatron_splits_columns_then_rows() -> None:
    plan = plan_by_rules(request(2, TRAINING), config_of(TRAINING, tp=2), ("data", "tensor"))
    home = {
        name: plan.layout.signatures[f"{name}:adamw"].updates[0][1] for name in ("token", "layers.0.attn.qkv.weight")
    }
    assert home == {"token": B, "layers.0.attn.qkv.weight": Split(1)}
    for name, sbp in (("fc1.weight", Split(1)), ("fc1.bias", Split(0)), ("fc2.weight", Split(0)), ("fc2.bias", B)):
        assert plan.layout.signatures[f"layers.1.mlp.{name}:adamw"].updates == ((B, sbp),) * 3


def kept_by(rule: str) -> tuple[Graph, dict[str, list[Signature]]]:
    """A graph with experts, and what a rule of an axis of two ranks leaves of every op."""
    graph = training_graph(EXPERTS, TRAINING)
    keep = along_axes(graph, (2,), [rule])
    kept = {op.name: [one for one in op_signatures(graph, op, (2,)) if keep(op, one)] for op in graph.ops}
    assert all(kept.values())
    return graph, kept


def weights_of_experts(graph: Graph, kept: Mapping[str, Sequence[Signature]]) -> set[NdSbp]:
    places = ((op, op_definition(op.kind).expert_weights) for op in graph.ops)
    return {one.inputs[place] for op, place in places if place is not None for one in kept[op.name]}


def test_along_the_data_axis_experts_are_whole() -> None:
    graph, kept = kept_by("samples")
    assert weights_of_experts(graph, kept) == {(B,)}
    followed = beside_experts(graph) & following_samples(graph, 2).keys()
    assert {len(kept[name]) for name in followed} == {1}
    assert len(followed) > 10


@pytest.mark.parametrize("precision", list(Precision))
def test_all_of_an_experts_parameters_stay_with_it_in_whatever_codes_they_are_read(precision: Precision) -> None:
    graph = training_graph(EXPERTS, replace(TRAINING, precision=precision, optimizer=Optimizer.ADAMW))
    parameters = {graph.parameter_of(name) for name in experts_read(graph).values()}
    assert parameters == {f"layers.{layer}.moe.{name}" for layer in range(2) for name in ("up", "gate", "down")}
    state = {value.name for value in graph.with_role(Role.VARIABLE) if graph.parameter_of(value.name) in parameters}
    assert parameters < state <= staying_with_experts(graph)


@pytest.mark.parametrize("rule", ["experts", "experts split", "expert"])
def test_along_their_axis_experts_are_split_by_expert(rule: str) -> None:
    graph, kept = kept_by(rule)
    assert weights_of_experts(graph, kept) == {(Split(0),)}
    updated = {"layers.0.moe.up": Split(0), "layers.0.moe.down": Split(0)}
    for name, sbp in updated.items():
        assert {one.updates for one in kept[f"{name}:adamw"]} == {((sbp,),) * 3}


@pytest.mark.parametrize("parts", [2, 3])
def test_along_a_tensor_axis_attention_is_split_by_heads_where_these_can_be(parts: int) -> None:
    """Two heads, not among three ranks where queries are more than keys; nothing else is ruled."""
    for graph in (GRAPH, training_graph(EXPERTS, TRAINING)):
        free, keep = (along_axes(graph, (parts,), [name]) for name in ("samples shared", "heads split"))
        ruled = 0
        for op in graph.ops:
            options = [one for one in op_signatures(graph, op, (parts,)) if free(op, one)]
            by_heads = [one for one in options if one.inputs and one.inputs[0] == (Split(2),)]
            is_ruled = isinstance(op_definition(op.kind).cost, Attention) and bool(by_heads)
            assert [one for one in options if keep(op, one)] == (by_heads if is_ruled else options), op.name
            ruled += is_ruled
        assert ruled == (2 * 2 if parts == 2 else 0)


@pytest.mark.parametrize("context", ["ring", "all_to_all"])
def test_along_a_context_axis_all_that_has_positions_is_split_by_them(context: str) -> None:
    """What attention exchanges for heads is not; gradients of weights are terms, and what updates do is free."""
    config = config_of(TRAINING, cp=2, context=context)
    graph = planned_graph(MODEL, request(2, TRAINING).training_with(config), config)
    flow, free = (along_axes(graph, (2,), [name]) for name in ("positions", "positions split"))
    (positions,) = {value.spec.shape for value in graph.with_role(Role.INPUT) if len(value.spec.shape) > 1}
    options = updates = 0
    for op in graph.ops:
        listed = [one for one in op_signatures(graph, op, (2,)) if free(op, one)]
        kept = [one for one in listed if flow(op, one)]
        assert kept, op.name
        if op.phase is Phase.UPDATE:
            updates += len(kept)
            assert kept == listed, op.name
        options += len(listed) - len(kept)
        is_attention = isinstance(op_definition(op.kind).cost, Attention)
        for signature in () if is_attention else kept:
            for name, layout in zip(op.outputs, signature.outputs, strict=True):
                spec = graph.values[name].spec
                if spec.shape[:2] == positions and len(spec.shape) > 2:
                    assert isinstance(layout[0], Split), (op.name, name)
                    assert layout[0].dim == 1, (op.name, name)
    assert options > 100
    assert updates > 50


def test_an_axis_of_one_rank_has_nothing_to_rule() -> None:
    keep = along_axes(GRAPH, (1, 2), ["data", "samples shared"])
    assert all(any(keep(op, s) for s in op_signatures(GRAPH, op, (1, 2))) for op in GRAPH.ops)


def test_pins_name_values_wherever_they_are() -> None:
    keep = pinned(GRAPH, {"layers.*.fc1.weight": (Split(1),)}, (2,))
    for op in GRAPH.ops:
        for signature in op_signatures(GRAPH, op, (2,)):
            named = zip((*op.inputs, *op.outputs, *op.updates), signature.layouts, strict=True)
            wrong = any(name.endswith("mlp.fc1.weight") and nd != (Split(1),) for name, nd in named)
            assert keep(op, signature) != wrong
    with pytest.raises(InputError, match=r"fc9.*did you mean"):
        pinned(GRAPH, {"layers.0.mlp.fc9.weight": (B,)}, (2,))


def test_rules_without_a_plan_say_so() -> None:
    three = Training(global_batch=1)
    with pytest.raises(InfeasibleError, match="no legal signature of op"):
        plan_by_rules(request(2, three), config_of(three, dp=2), ("data", "tensor"))


def test_slices_of_samples_are_slices_and_no_terms() -> None:
    """Latent attention slices queries and keys: a rank could write those of others as zeros, to be added up."""
    graph = training_graph(LATENT, TRAINING)
    fixed = following_samples(graph, 2)
    slices = [op for op in graph.ops if op.kind == "slice" and op.any_layer is not None]
    assert {op.any_layer for op in slices} == {"before.0", 0, 1, 2}
    assert {op.phase for op in slices} == {Phase.FORWARD, Phase.BACKWARD}
    for op in slices:
        assert set(fixed[op.name].values()) == {Split(0)}, op.name
