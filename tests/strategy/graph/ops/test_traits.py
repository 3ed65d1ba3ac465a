"""Traits: each kind has those that it should, and they alone decide; what a kind is called decides nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from simulator.exchange.workload import workload
from strategy.base.errors import SbplanError
from strategy.bounds import quick_bound
from strategy.cost import cost
from strategy.cost.measurement import Features
from strategy.graph.graph import Graph, Op
from strategy.graph.ops import REGISTRY
from strategy.graph.ops.traits import (
    MEMORY_BOUND,
    Attention,
    Convolution,
    CostClass,
    FlopBound,
    Gemm,
    Movement,
    Operands,
    PrecisionClass,
    Product,
    RecomputeClass,
)
from strategy.graph.signature import op_signatures
from strategy.hardware.devices import DEVICES
from strategy.layout.config import Recompute
from strategy.layout.layout import assign_stages
from strategy.lowering.lower import products_flop
from strategy.models import Model, find_model
from strategy.models.resnet import ResNetConfig
from strategy.passes.mixed_precision import Precision, mixed_precision
from strategy.passes.offload import offload_activations, offload_optimizer
from strategy.passes.planned import planned_graph
from strategy.passes.recompute import recompute
from strategy.passes.ring_attention import ring_attention
from strategy.passes.tiling import tile
from strategy.passes.training import Training, evaluation_graph, training_graph
from strategy.passes.updates import Optimizer
from strategy.passes.weight_gradients import defer_weight_gradients
from strategy.passes.zero import share_out
from strategy.passes.zero_layouts import zero_filter
from strategy.sbp.placement import MOVES, Placement, Space
from strategy.sbp.sbp import parse_nd
from strategy.sbp.tensor import DType
from strategy.space.pins import pinned
from strategy.space.rules import along_axes
from tests.support.megatron import MegatronConfig
from tests.support.small_plans import MODEL, cluster, config_of, request

TRAINING = Training(4, num_micro_batches=2)
ZERO = config_of(TRAINING, dp=2, zero_stage=3, zero_min_size=9)
BY_EXPERT = replace(ZERO, dp=4, ep=2)
PLAIN = config_of(TRAINING)
MEGATRON = MegatronConfig(layers=2, width=8, heads=2, sequence=4, vocabulary=16, dropout=0.25)
EXPERTS = find_model("mixtral-tiny")
CONVOLUTIONS = ResNetConfig(side=8, classes=5, blocks=(1,), width=4, bottleneck=False)
MESH = (2, 2)
PLACEMENTS = tuple(Placement((2 * i, 2 * i + 1), (2, 1), ("data", "tensor")) for i in range(2))

COSTS: Mapping[str, CostClass] = {
    "matmul": Product(),
    "matmul_nt": Product(operands=Operands.NT),
    "matmul_tn": Product(operands=Operands.TN),
    "batch_matmul": Product(Gemm.BATCHED, batch_dims=True),
    "grouped_matmul": Product(Gemm.GROUPED),
    "grouped_matmul_tn": Product(Gemm.GROUPED, Operands.TN, batch_dims=True),
    "scaled_matmul": Product(),
    "scaled_matmul_nt": Product(operands=Operands.NT),
    "scaled_matmul_tn": Product(operands=Operands.TN),
    "scaled_grouped_matmul": Product(Gemm.GROUPED),
    "scaled_grouped_matmul_tn": Product(Gemm.GROUPED, Operands.TN, batch_dims=True),
    "block_scaled_matmul": Product(blocks=True),
    "block_scaled_matmul_nt": Product(operands=Operands.NT, blocks=True),
    "block_scaled_matmul_tn": Product(operands=Operands.TN, blocks=True),
    "block_scaled_grouped_matmul": Product(Gemm.GROUPED, blocks=True),
    "attention": Attention(),
    "attention_grad": Attention(gradient=True),
    "attention_block": Attention(block=True),
    "attention_block_grad": Attention(block=True, gradient=True),
    "conv2d": Convolution(filters=1),
    "conv2d_dx": Convolution(filters=0),
    "conv2d_dw": Convolution(filters=2),
    "muon_direction": FlopBound(),
    "to_host": Movement(Space.HOST),
    "to_device": Movement(Space.DEVICE),
}
PRECISIONS: Mapping[PrecisionClass, str] = {
    PrecisionClass.HALF: "matmul matmul_nt matmul_tn batch_matmul grouped_matmul conv2d attention",
    PrecisionClass.SINGLE: (
        "exp log sqrt rsqrt square pow softmax log_softmax sum_exp cross_entropy arc_margin reduce_sum reduce_mean "
        "reduce_max reduce_min square_sum accumulate report batch_norm batch_norm_sums square_deviations "
        "running_average group_norm accumulate_max history_amax record_amax"
    ),
    PrecisionClass.CONVERTS: (
        "cast amax quantize scaled_matmul scaled_matmul_nt scaled_matmul_tn scaled_grouped_matmul "
        "scaled_grouped_matmul_tn quantize_blocks block_scaled_matmul block_scaled_matmul_nt block_scaled_matmul_tn "
        "block_scaled_grouped_matmul"
    ),
}
RECOMPUTED: Mapping[RecomputeClass, str] = {
    RecomputeClass.ATTENTION: "attention",
    RecomputeClass.SCORES: "batch_matmul",
    RecomputeClass.SOFTMAX: "softmax",
    RecomputeClass.PRODUCT: (
        "matmul matmul_nt matmul_tn grouped_matmul scaled_matmul scaled_matmul_nt scaled_matmul_tn "
        "scaled_grouped_matmul block_scaled_matmul block_scaled_matmul_nt block_scaled_matmul_tn "
        "block_scaled_grouped_matmul"
    ),
}
OTHERS: Mapping[str, Mapping[str, object]] = {
    "accumulates": {"accumulate": True, "accumulate_max": True},
    "repeats": {"repeat": True},
    "trains": dict.fromkeys(("sgd", "adam", "adamw", "adagrad", "lamb_apply", "descend"), True),
    "clips": {"clip_scale": True},
    "rearranges": {"copy": True},
    "piecewise": {"repeat": True, "slice": True, "quantize": True, "quantize_blocks": True},
    "in_blocks": {"quantize_blocks": True},
    "expert_weights": dict.fromkeys(
        ("grouped_matmul", "scaled_grouped_matmul", "block_scaled_grouped_matmul", "batch_matmul", "add_by_expert"), 1
    ),
    "coded": {
        kind: f"scaled_{kind}" for kind in ("matmul", "matmul_nt", "matmul_tn", "grouped_matmul", "grouped_matmul_tn")
    },
    "block_coded": {kind: f"block_scaled_{kind}" for kind in ("matmul", "matmul_nt", "matmul_tn", "grouped_matmul")},
}


USUAL = {"expert_weights": None, "coded": "", "block_coded": ""}
"""What most kinds say, where that is not False."""


def classes(table: Mapping[Any, str]) -> dict[str, Any]:
    return {kind: what for what, kinds in table.items() for kind in kinds.split()}


@pytest.mark.parametrize(
    ("trait", "usual", "expected"),
    [
        ("cost", MEMORY_BOUND, COSTS),
        ("precision", PrecisionClass.FOLLOWS, classes(PRECISIONS)),
        ("recompute", RecomputeClass.BETWEEN, classes(RECOMPUTED)),
        *((trait, USUAL.get(trait, False), kinds) for trait, kinds in OTHERS.items()),
    ],
)
def test_kinds_have_their_traits(trait: str, usual: object, expected: Mapping[str, object]) -> None:
    found = {kind: getattr(definition, trait) for kind, definition in REGISTRY.items()}
    assert {kind: value for kind, value in found.items() if value != usual} == expected


@cache
def graph_of(model: Model, config: str = "plain") -> Graph:
    match config:
        case "zero":
            return planned_graph(model, TRAINING, ZERO)
        case "forward":
            return evaluation_graph(model, replace(TRAINING, precision=Precision.FULL))
        case "ring":
            return ring_attention(training_graph(model, TRAINING), 2)
    return training_graph(model, TRAINING)


def signed(graph: Graph, keep: Callable[..., bool]) -> list[list[bool]]:
    """What of the signatures of every op is kept."""
    return [[keep(op, one) for one in op_signatures(graph, op, MESH)] for op in graph.ops]


def prices(graph: Graph) -> list[tuple[Features, float]]:
    """What ops cost, in pieces as small as they can be, on a GPU and on a CPU."""
    models = [cost.CostModel(cluster(4, backend=backend), {}) for backend in ("cupy", "numpy")]
    cost._known_act.cache_clear()
    priced = [(op, op_signatures(graph, op, MESH)[-1]) for op in graph.ops]
    features = [cost.op_features(graph, op, signature, MESH) for op, signature in priced]
    return [(replace(one, kind=called(one.kind)), model.seconds(one)) for model in models for one in features]


def stages(graph: Graph) -> object:
    return assign_stages(graph, PLACEMENTS).stage_of


def content(graph: Graph) -> object:
    return [(op.name, called(op.kind), *parts(op)) for op in graph.ops], dict(graph.values)


def parts(op: Op) -> tuple[object, ...]:
    return op.inputs, op.outputs, op.updates, dict(op.attrs), op.phase, op.layer, op.repeats, op.after


def rules(graph: Graph) -> object:
    return signed(graph, along_axes(graph, MESH, ("samples split", "context")))


def pins(graph: Graph) -> object:
    copy = next(op for op in graph.ops if called(op.kind) == "copy")
    layouts = {copy.inputs[0]: parse_nd(("B", "S(0)")), copy.outputs[0]: parse_nd(("S(0)", "B"))}
    return signed(graph, pinned(graph, layouts, MESH))


USES: Mapping[str, tuple[Model, str, Callable[[Graph], object]]] = {
    "cost": (MODEL, "plain", prices),
    "cost of experts": (EXPERTS, "plain", prices),
    "cost of convolutions": (CONVOLUTIONS, "plain", prices),
    "cost of blocks": (MODEL, "ring", prices),
    "flop": (MODEL, "plain", lambda graph: sum(products_flop(graph).values())),
    "precision": (MEGATRON, "forward", lambda graph: content(mixed_precision(graph, DType.BFLOAT16))),
    "precision of convolutions": (CONVOLUTIONS, "forward", lambda g: content(mixed_precision(g, DType.BFLOAT16))),
    "precision of experts": (EXPERTS, "forward", lambda graph: content(mixed_precision(graph, DType.BFLOAT16))),
    "recompute": (MEGATRON, "plain", lambda graph: content(recompute(graph, Recompute.SELECTIVE))),
    "recompute fused": (MODEL, "plain", lambda graph: content(recompute(graph, Recompute.SELECTIVE))),
    "offload": (
        MODEL,
        "plain",
        lambda graph: content(offload_activations(recompute(graph, Recompute.FULL))),
    ),
    "optimizer": (MODEL, "plain", lambda graph: content(offload_optimizer(graph))),
    "tiling": (MODEL, "zero", lambda graph: content(tile(graph, 2, ("*",)))),
    "ring": (MODEL, "plain", lambda graph: content(ring_attention(graph, 2))),
    "weight gradients": (
        MODEL,
        "plain",
        lambda graph: content(defer_weight_gradients(replace(graph))),
    ),  # not known yet
    "zero": (MODEL, "plain", lambda graph: content(share_out(graph, ZERO))),
    "stages": (MODEL, "zero", stages),
    "sharing": (MODEL, "zero", lambda graph: signed(graph, zero_filter(graph, ZERO, {}))),
    "sharing of tiles": (MODEL, "zero", lambda g: signed(t := tile(g, 2, ("*",)), zero_filter(t, ZERO, {}))),
    "sharing of experts": (EXPERTS, "zero", lambda graph: signed(graph, zero_filter(graph, BY_EXPERT, {}))),
    "rules": (MODEL, "ring", rules),
    "rules for all of attention": (MODEL, "plain", rules),
    "pins": (MODEL, "ring", pins),
}
"""What is known of ops: a model, what its graph has been through, and what is done with it."""


def opaque(kind: str) -> str:
    """A name that says nothing."""
    return f"k{list(REGISTRY).index(kind)}" if kind not in MOVES else kind


CALLED: dict[str, str] = {}
"""Opaque name -> kind."""


def called(kind: str) -> str:
    return CALLED.get(kind, kind)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """Every kind has a second name, but for copies between memories, which are called after those."""
    found = {kind: opaque(kind) for kind in REGISTRY}
    for kind, name in found.items():
        monkeypatch.setitem(REGISTRY, name, replace(REGISTRY[kind], kind=name))  # type: ignore[arg-type]
        monkeypatch.setitem(CALLED, name, kind)
    return found


@pytest.mark.parametrize("use", USES)
def test_what_a_kind_is_called_decides_nothing(use: str, names: Mapping[str, str]) -> None:
    model, config, done = USES[use]
    graph = graph_of(model, config)
    renamed = replace(graph, ops=tuple(replace(op, kind=names[op.kind]) for op in graph.ops))
    assert {op.kind for op in renamed.ops}.isdisjoint({op.kind for op in graph.ops} - set(MOVES))
    assert done(renamed) == done(graph)


@pytest.mark.parametrize(
    ("use", "kind", "traits"),
    [
        ("cost", "matmul", {"cost": MEMORY_BOUND}),
        ("cost", "matmul_tn", {"cost": MEMORY_BOUND}),
        ("cost", "attention", {"cost": FlopBound()}),
        ("cost", "gelu", {"cost": FlopBound()}),
        ("cost of blocks", "attention_block", {"cost": Attention()}),
        ("cost of experts", "grouped_matmul", {"cost": Product()}),
        ("cost of experts", "grouped_matmul_tn", {"cost": Product(Gemm.GROUPED)}),
        ("cost of convolutions", "conv2d", {"cost": FlopBound()}),
        ("flop", "matmul_nt", {"cost": MEMORY_BOUND}),
        ("precision", "matmul", {"precision": PrecisionClass.SINGLE}),
        ("precision", "softmax", {"precision": PrecisionClass.FOLLOWS}),
        ("precision of convolutions", "conv2d", {"precision": PrecisionClass.SINGLE}),
        ("precision of experts", "grouped_matmul", {"precision": PrecisionClass.SINGLE}),
        ("recompute", "softmax", {"recompute": RecomputeClass.PRODUCT}),
        ("recompute", "batch_matmul", {"recompute": RecomputeClass.PRODUCT}),
        ("recompute", "dropout", {"recompute": RecomputeClass.PRODUCT}),
        ("recompute fused", "attention", {"recompute": RecomputeClass.BETWEEN}),
        ("offload", "copy", {"rearranges": False}),
        ("tiling", "matmul", {"cost": Product(Gemm.BATCHED)}),
        ("tiling", "matmul_nt", {"cost": Product()}),
        ("tiling", "matmul_tn", {"cost": Product(operands=Operands.NT)}),
        ("tiling", "repeat", {"repeats": False}),
        ("ring", "attention", {"cost": FlopBound()}),
        ("ring", "attention_grad", {"cost": Attention(block=True, gradient=True)}),
        ("weight gradients", "accumulate", {"accumulates": False}),
        ("stages", "repeat", {"repeats": False}),
        ("sharing", "repeat", {"piecewise": False}),
        ("sharing", "accumulate", {"accumulates": False}),
        ("sharing of tiles", "slice", {"piecewise": False}),
        ("sharing of experts", "grouped_matmul", {"expert_weights": None}),
        ("rules", "attention_block", {"cost": Attention()}),
        ("rules", "copy", {"rearranges": False}),
        ("rules for all of attention", "attention", {"cost": FlopBound()}),
        ("pins", "copy", {"rearranges": False}),
    ],
)
def test_traits_decide(use: str, kind: str, traits: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    model, config, done = USES[use]
    graph = graph_of(model, config)
    before = done(graph)
    monkeypatch.setitem(REGISTRY, kind, replace(REGISTRY[kind], **traits))  # type: ignore[arg-type]
    try:
        after = done(graph)
    except SbplanError as error:  # a pass refuses what is then left
        after = error
    finally:
        cost._known_act.cache_clear()
    assert after != before


def test_conversions_of_parameters_have_no_gradient_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    halves = replace(TRAINING, precision=Precision.BF16)
    before = training_graph(MODEL, halves)
    monkeypatch.setitem(REGISTRY, "cast", replace(REGISTRY["cast"], precision=PrecisionClass.FOLLOWS))  # type: ignore[arg-type]
    assert [op.name for op in training_graph(MODEL, halves).ops] != [op.name for op in before.ops]


def test_workloads_know_trained_parameters_and_filters_by_traits(monkeypatch: pytest.MonkeyPatch) -> None:
    def made() -> Any:
        return workload("small", model, 32, DEVICES["V100-16"])

    model = ResNetConfig(side=64, classes=5, blocks=(1,), width=128, bottleneck=False)
    before = made()
    updates = training_graph(model, Training(32, optimizer=Optimizer.SGD)).ops
    assert len(before.nbytes) == sum(op.kind == "sgd" for op in updates) > 0
    monkeypatch.setitem(REGISTRY, "conv2d", replace(REGISTRY["conv2d"], cost=Convolution(filters=0)))  # type: ignore[arg-type]
    assert made().compute_ns != before.compute_ns
    monkeypatch.setitem(REGISTRY, "sgd", replace(REGISTRY["sgd"], trains=False))  # type: ignore[arg-type]
    assert made().nbytes == ()


def test_the_quick_bound_knows_products_by_traits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Samples are among the many of a batched product."""
    model = MegatronConfig(layers=2, width=512, heads=4, sequence=512, vocabulary=512)
    was = REGISTRY["batch_matmul"].cost
    assert isinstance(was, Product)

    def bound_ns() -> int:
        quick_bound._least_work.cache_clear()
        return quick_bound.quick_bound_ns(asked, config_of(asked.training, dp=2, tp=2))

    asked = request(4, Training(32, num_micro_batches=8), model=model, backend="cupy")
    before = bound_ns()
    other = replace(was, gemm=Gemm.GROUPED)
    monkeypatch.setitem(REGISTRY, "batch_matmul", replace(REGISTRY["batch_matmul"], cost=other))
    after = bound_ns()
    quick_bound._least_work.cache_clear()
    assert after != before
