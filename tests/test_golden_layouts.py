"""Golden layouts: what people write by hand follows from a few pins, and each plan moves exactly what they say it does.

The pins say where weights and activations are; every conversion is one that the layout inserts. What is small runs too,
on threads, and equals one device.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from strategy.graph.graph import Graph, Phase, Role
from strategy.layout.layout import Conversion, wanted_copies
from strategy.models import Model, find_model
from strategy.models.mixtral import MixtralConfig
from strategy.models.mlp import MlpConfig
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.program.program import ActKind
from strategy.sbp.sbp import parse_nd
from strategy.sbp.tensor import DType
from strategy.space.deduce import Deduction
from strategy.space.request import Pins
from tests.campaigns import transparency
from tests.support.long_parameters import long_but
from tests.support.small_plans import MODEL, config_of, plan_by_rules, request

TRAINING = Training(global_batch=4, dtype=DType.FLOAT64)
GRADIENTS_WHOLE = {"*:square": ("B", "B")}
"""Every gradient is wanted whole, by the update as by the norm."""
MEGATRON = {
    "layers.*.attn.qkv.weight": ("B", "S(1)"),
    "layers.*.attn.proj.weight": ("B", "S(0)"),
    "layers.*.mlp.fc1.weight": ("B", "S(1)"),
    "layers.*.mlp.fc2.weight": ("B", "S(0)"),
}
SPLIT_VOCABULARY = {"token": ("B", "S(0)"), "logits": ("B", "S(2)"), "loss:dlogits": ("B", "S(2)")}
STREAM = ("embed_position", "layers.*.residual?", "layers.*.norm?.norm.rstd", "norm.norm.rstd")
"""What lies between the halves of layers, and the norms on it."""
WHOLE_STREAM = dict.fromkeys(STREAM, ("B", "B"))
SPLIT_STREAM = dict.fromkeys(STREAM, ("B", "S(1)"))
REPORTED = {"loss", "loss.count"}


def plan_of(
    model: Model,
    pins: Mapping[str, Sequence[str]],
    *,
    dp: int = 1,
    tp: int = 1,
    rules: tuple[str, str] = ("data", "samples shared"),
    deduction: Deduction | None = None,
) -> Plan:
    layouts = {name: parse_nd(texts) for name, texts in pins.items()}
    asked = replace(request(dp * tp, TRAINING, model=model), pins=Pins(layouts=layouts), deduction=deduction)
    return plan_by_rules(asked, config_of(TRAINING, dp=dp, tp=tp), rules)


def data_parallel(model: Model) -> Plan:
    """Nothing is said but that samples are split and weights are not: the rest is deduced."""
    return plan_of(model, GRADIENTS_WHOLE, dp=2, deduction=Deduction.MATCH_ALL)


def collectives(conversion: Conversion) -> list[ActKind]:
    return [step.kind for step in conversion.steps if step.kind.is_communication]


def moved(plan: Plan, phase: Phase) -> dict[str, list[ActKind]]:
    """Value -> the collectives that convert it, of the values of one phase, without scalars."""
    found: dict[str, list[ActKind]] = {}
    for conversion in plan.layout.conversions:
        value = conversion.copy.value
        producer = plan.graph.producer.get(value)
        if producer is not None and producer.phase is phase and plan.graph.values[value].spec.shape:
            found.setdefault(value, []).extend(collectives(conversion))
    return {value: kinds for value, kinds in found.items() if kinds}


def activations(plan: Plan, phase: Phase) -> Counter[ActKind]:
    """The collectives on values of the residual stream's shape."""
    width = plan.graph.values["embed_position"].spec.shape
    return Counter(
        kind
        for value, kinds in moved(plan, phase).items()
        for kind in kinds
        if plan.graph.values[value].spec.shape == width
    )


def gradient_of(graph: Graph) -> dict[str, str]:
    """Weight -> its gradient of the step."""
    updates = [op for op in graph.ops if op.kind == "adamw"]
    return {op.updates[0]: op.inputs[0] for op in updates}


@pytest.mark.parametrize("model", [MlpConfig(layers=2, features=6, width=8, classes=5), MODEL], ids=["mlp", "gpt"])
def test_data_parallelism_is_one_all_reduce_per_weight(model: Model) -> None:
    """The sum of gradients emerges from weights that are whole and samples that are split."""
    plan = data_parallel(model)
    found = {c.copy.value: collectives(c) for c in plan.layout.conversions if collectives(c)}
    weights = gradient_of(plan.graph)
    assert len(weights) == sum(":" not in value.name for value in plan.graph.with_role(Role.VARIABLE))
    wanted = [*weights.values(), *REPORTED]
    assert found == {value: [ActKind.ALL_REDUCE] for value in wanted}
    assert len(plan.layout.conversions) == len(wanted)
    assert list(transparency.check(plan)) == []


def test_megatrons_layer_is_two_all_reduces_each_way() -> None:
    """Shoeybi et al. 2019 (arXiv:1909.08053), figure 4: g after either half forward, f after either half backward."""
    plan = plan_of(MODEL, WHOLE_STREAM, tp=2, rules=("data", "tensor"))
    two = [ActKind.ALL_REDUCE]
    layers = range(MODEL.layers)
    forward = {f"layers.{i}.{name}": two for i in layers for name in ("attn.proj.matmul", "mlp.fc2.matmul")}
    backward = {f"layers.{i}.{name}:dx": two for i in layers for name in ("attn.qkv.matmul", "mlp.fc1.matmul")}
    assert moved(plan, Phase.FORWARD) == forward
    assert moved(plan, Phase.BACKWARD) == backward
    assert moved(plan, Phase.UPDATE) == {}
    assert list(transparency.check(plan)) == []


def test_a_split_vocabulary_never_gathers_logits() -> None:
    """Two figures per token travel for the loss, and what the embedding and the head sum up."""
    plan = plan_of(MODEL, {**MEGATRON, **SPLIT_VOCABULARY, **WHOLE_STREAM}, tp=2)
    forward, backward = moved(plan, Phase.FORWARD), moved(plan, Phase.BACKWARD)
    one = [ActKind.ALL_REDUCE]
    assert {name: kinds for name, kinds in forward.items() if not name.startswith("layers.")} == {
        "embed": one,
        "loss.max": one,
        "loss.sum": one,
    }
    assert {name: kinds for name, kinds in backward.items() if not name.startswith("layers.")} == {"logits:dx": one}
    assert activations(plan, Phase.FORWARD) == {ActKind.ALL_REDUCE: 2 * MODEL.layers + 1}
    assert activations(plan, Phase.BACKWARD) == {ActKind.ALL_REDUCE: 2 * MODEL.layers + 1}
    largest = max(plan.graph.values[name].spec.shape[-1] for name in (*forward, *backward))
    assert largest < MODEL.vocabulary
    assert list(transparency.check(plan)) == []


def test_sequence_parallelism_scatters_and_gathers_twice_each_way() -> None:
    """Korthikanti et al. 2022 (arXiv:2205.05198), figure 5; embedding and head add one of each.

    Norms see a part of the positions, so that the gradients of their gains are reduced, once per step.
    """
    plan = plan_of(MODEL, {**MEGATRON, **SPLIT_VOCABULARY, **SPLIT_STREAM}, tp=2)
    each = {ActKind.REDUCE_SCATTER: 2 * MODEL.layers + 1, ActKind.ALL_GATHER: 2 * MODEL.layers + 1}
    assert activations(plan, Phase.FORWARD) == each
    assert activations(plan, Phase.BACKWARD) == each
    for layer in range(MODEL.layers):
        assert in_layer(plan, layer, Phase.FORWARD) == {ActKind.REDUCE_SCATTER: 2, ActKind.ALL_GATHER: 2}
        assert in_layer(plan, layer, Phase.BACKWARD) == {ActKind.REDUCE_SCATTER: 2, ActKind.ALL_GATHER: 2}
    rest = {n: k for n, k in moved(plan, Phase.BACKWARD).items() if len(plan.graph.values[n].spec.shape) == 1}
    norms = [f"layers.{i}.norm{j}.norm" for i in range(MODEL.layers) for j in (1, 2)]
    gains = [f"{norm}:grad.{part}" for norm in (*norms, "norm.norm") for part in ("dgamma", "dbeta")]
    assert rest == {gain: [ActKind.ALL_REDUCE] for gain in gains}
    assert list(transparency.check(plan)) == []


def in_layer(plan: Plan, layer: int, phase: Phase) -> Counter[ActKind]:
    """What a layer scatters of what it sums, and gathers of what it reads."""
    readers = wanted_copies(plan.graph, plan.layout.stages, plan.layout.signatures)
    width = plan.graph.values["embed_position"].spec.shape
    found: Counter[ActKind] = Counter()
    for conversion in plan.layout.conversions:
        producer = plan.graph.producer.get(conversion.copy.value)
        if producer is None or producer.phase is not phase:
            continue
        if plan.graph.values[conversion.copy.value].spec.shape != width:
            continue
        for kind in collectives(conversion):
            op = producer if kind is ActKind.REDUCE_SCATTER else readers[conversion.copy][0]
            found[kind] += op.layer == layer
    return found


EXPERTS = {
    **{f"layers.*.moe.{name}": ("S(0)", "B") for name in ("gate", "up", "down")},
    **{f"layers.*.{name}": ("S(0)", "B") for name in ("residual?", "moe.combine", "moe.combine:dweights")},
    **{f"layers.*.{name}": ("S(0)", "B") for name in ("moe.dispatch:dx", "moe.logits:sum0")},
}
"""Experts on the axis that splits samples; tokens by sample before and after them."""


def test_expert_parallelism_is_two_all_to_alls_each_way() -> None:
    """Lepikhin et al. 2021 (arXiv:2006.16668), section 3.3: to the experts and back, and nothing else."""
    tiny = find_model("mixtral-tiny")
    assert isinstance(tiny, MixtralConfig)
    model = replace(tiny, capacity_factor=1.0)
    pins = {**EXPERTS, "layers.*.moe.combine:drows": ("S(1)", "B")}
    plan = plan_of(model, pins, dp=2, rules=("samples split", "tensor"), deduction=Deduction.MATCH_ALL)
    two = [f"layers.{layer}.moe.{name}" for layer in range(model.layers) for name in ("reshape", "reshape_2")]
    one = [ActKind.ALL_TO_ALL]
    assert moved(plan, Phase.FORWARD) == {name: one for name in two}
    streams = {n: k for n, k in moved(plan, Phase.BACKWARD).items() if len(plan.graph.values[n].spec.shape) > 2}
    assert streams == {f"{name}:dx": one for name in two}
    assert list(transparency.check(plan)) == []


@pytest.mark.parametrize(("ranks", "choices"), long_but(itertools.product([2, 3, 4], [1, 2]), 0, 3))
def test_experts_that_drop_nothing_take_the_same_all_to_alls_with_the_rows_there_are(ranks: int, choices: int) -> None:
    """Gale et al. 2022 (arXiv:2211.15841), section 5; four experts and four samples split evenly and not.

    `transparency.check` counts the bytes: those of the rows that one device routes.
    """
    tiny = find_model("mixtral-tiny")
    assert isinstance(tiny, MixtralConfig)
    model = replace(tiny, choices=choices)
    plan = plan_of(model, EXPERTS, dp=ranks, rules=("samples split", "tensor"), deduction=Deduction.MATCH_ALL)
    ragged = {name for name, value in plan.graph.values.items() if value.spec.ragged is not None}
    one = [ActKind.ALL_TO_ALL]
    layers = range(model.layers)
    there_and_back = {f"layers.{layer}.moe.{name}": one for layer in layers for name in ("dispatch", "down_matmul")}
    assert moved(plan, Phase.FORWARD) == there_and_back
    backward = {name: kinds for name, kinds in moved(plan, Phase.BACKWARD).items() if name in ragged}
    names = ("combine:drows", "up_matmul:sum0")
    assert backward == {f"layers.{layer}.moe.{name}": one for layer in layers for name in names}
    streams = {n for n in moved(plan, Phase.BACKWARD) if len(plan.graph.values[n].spec.shape) > 2}
    assert streams <= ragged
    assert list(transparency.check(plan)) == []
