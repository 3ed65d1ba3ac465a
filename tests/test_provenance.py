"""Provenance is a field, never a name: ops and values called by opaque tokens are planned as they were.

Metamorphic: everything that a graph names is called otherwise, in another alphabetical order, once in the forward pass
before the passes and once in the graph that they make. Stages, ties, choices, signatures, conversions, the program and
its simulated times are what they were, under the renaming.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from simulator.simulate import simulate
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Graph, Op
from strategy.layout.config import Offload, PlanConfig, Recompute
from strategy.layout.convert import lay_out
from strategy.lowering.lower import lower
from strategy.models import PRESETS, Model
from strategy.passes import planned
from strategy.passes import training as training_pass
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.passes.updates import Optimizer
from strategy.program.program import Program
from strategy.space import candidate_space
from strategy.space.candidate_space import free_rules, space_of
from strategy.space.classes import classify
from strategy.space.deduce import deduce
from strategy.space.layout_problem import layout_problem
from strategy.space.rules import along_axes
from strategy.space.space import SearchSpace
from tests.support.long_parameters import long_but
from tests.support.random_graphs import random_case
from tests.support.small_plans import MODEL, config_of, request

FAMILIES = [name for name in PRESETS if name.endswith("-tiny")]
LARGE = ("arcface-tiny", "inception-tiny", "resnet-tiny", "vit-tiny", "bert-tiny", "gpt-tiny")
"""Of many ops, which are convolutions like those of a residual network."""
GPT = replace(MODEL, layers=4)
CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "zero 1": ({"dp": 2, "tp": 2, "zero_stage": 1, "zero_min_size": 1}, {}),
    "zero 2": ({"dp": 2, "zero_stage": 2, "zero_min_size": 1}, {"num_micro_batches": 1}),
    "zero 3": ({"dp": 2, "pp": 2, "zero_stage": 3, "zero_min_size": 1}, {}),
    "owner": ({"dp": 2, "pp": 2, "zero_stage": 1, "zero_owner": True, "zero_min_size": 1}, {}),
    "owner 3 muon": (
        {"dp": 2, "zero_stage": 3, "zero_owner": True, "zero_min_size": 1},
        {"optimizer": Optimizer.MUON, "precision": Precision.FP16},
    ),
    "tiles": ({"dp": 2, "pp": 2, "zero_stage": 3, "tiles": 2, "zero_min_size": 1}, {}),
    "tiles recomputed": ({"tp": 2, "tiles": 2, "recompute": Recompute.FULL}, {}),
    "recompute full": ({"dp": 2, "pp": 2, "recompute": Recompute.FULL}, {"precision": Precision.BF16}),
    "recompute selective": ({"dp": 2, "pp": 2, "recompute": Recompute.SELECTIVE}, {"optimizer": Optimizer.LAMB}),
    "recompute memory-bound": ({"dp": 2, "tp": 2, "recompute": Recompute.MEMORY_BOUND}, {}),
    "zero bubble": ({"pp": 2, "schedule": "zb-h1", "recompute": Recompute.FULL}, {}),
    "interleaved": ({"dp": 2, "pp": 2, "schedule": "interleaved", "zero_stage": 2}, {}),
    "offload": ({"dp": 2, "pp": 2, "offload": Offload.ALL}, {"precision": Precision.BF16}),
    "ring": ({"cp": 2, "pp": 2, "recompute": Recompute.FULL}, {"skip_nonfinite": True}),
}
SPREAD = ("zero 3", "owner", "offload")
"""Configurations that every family is planned under, where it can be."""


def test_every_family_is_here() -> None:
    assert len(FAMILIES) == 11


@pytest.mark.parametrize("name", long_but(CONFIGS, 4, 13))
def test_a_gpt_called_otherwise_is_planned_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = _compared(GPT, name, monkeypatch, programs=True)
    assert seen["ops renamed before the passes"] > 60
    assert seen["ops renamed after the passes"] > 200
    assert seen["signatures"] > 500
    assert seen["acts"] > 500


@pytest.mark.parametrize("family", long_but(FAMILIES, *(at for at, name in enumerate(FAMILIES) if name not in LARGE)))
def test_every_family_called_otherwise_is_planned_alike(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen = PRESETS[family].model, Counter[str]()
    names = [name for name in SPREAD if model.layers > 1 or name != "offload"]
    for name in names:
        seen += _compared(model, name, monkeypatch, programs=False)
    assert seen["ops renamed before the passes"] > 40
    assert seen["ops renamed after the passes"] > 200
    assert seen["signatures"] > 1000
    assert seen["ties"] >= 2 * (len(names) - 1), "owners have no running statistics"


@pytest.mark.parametrize("cases", long_but([20, 60], 0))
def test_random_graphs_called_otherwise_have_the_same_problem(cases: int) -> None:
    """Their ties, costs, edges and memory, at graphs of one stage and of two."""
    seen = Counter[str]()
    for seed in range(cases):
        case = random_case(seed, stages=1 + seed % 2)
        graph, values, ops = renamed(case.graph, seed)
        options = {ops[name]: found for name, found in case.options.items()}
        stages = replace(case.stages, stage_of={ops[name]: stage for name, stage in case.stages.stage_of.items()})
        space, other = case.space, replace(case, graph=graph, stages=stages, options=options).space
        for limit in (None, 10**6):
            mine, theirs = layout_problem(space, limit=limit), layout_problem(other, limit=limit)
            assert [tuple(ops[name] for name in names) for names, _ in mine.classes] == [n for n, _ in theirs.classes]
            assert _figures(mine.problem) == _figures(theirs.problem)
            seen["nodes"] += len(mine.problem.nodes)
        seen["tied"] += any(len(names) > 1 for names, _ in mine.classes)
        seen["graphs whose alphabet differs"] += sorted(values) != sorted(values, key=values.__getitem__)
    assert seen["nodes"] > 1000 * cases / 60
    assert seen["tied"] >= cases // 12
    assert seen["graphs whose alphabet differs"] >= 0.9 * cases


def renamed(graph: Graph, seed: int) -> tuple[Graph, dict[str, str], dict[str, str]]:
    """The graph with other names; with them, value -> its name, and op -> its name.

    A template is called otherwise too; what a name says of a path of attributes, or of a label, is a field.
    """
    tokens = _Tokens(seed)
    values = {name: tokens() for name in graph.values}
    ops = {op.name: tokens() for op in graph.ops}
    templates = {template: tokens() for template in dict.fromkeys(op.template for op in graph.ops) if template}
    templates.update({name: token for name, token in ops.items() if name in templates})

    def called(op: Op) -> Op:
        return replace(
            op,
            name=ops[op.name],
            inputs=_through(values, op.inputs),
            outputs=_through(values, op.outputs),
            updates=_through(values, op.updates),
            after=_through(values, op.after),
            repeats=ops.get(op.repeats, ""),
            origin=ops.get(op.origin, ""),
            parameter=values.get(op.parameter, ""),
            template=templates.get(op.template, ""),
        )

    made = {
        values[name]: replace(value, name=values[name], parameter=values.get(value.parameter, ""))
        for name, value in graph.values.items()
    }
    return Graph(made, tuple(map(called, graph.ops)), values.get(graph.loss, "")), values, ops


class _Tokens:
    """Opaque names, of which no two are alike."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)

    def __call__(self) -> str:
        return f"{self.rng.getrandbits(96):024x}"


def _through(names: Mapping[str, str], found: Iterable[str]) -> tuple[str, ...]:
    return tuple(names[name] for name in found)


def _compared(model: Model, name: str, monkeypatch: pytest.MonkeyPatch, *, programs: bool) -> Counter[str]:
    """Plan a model as it is called and twice otherwise; gives how much was compared."""
    degrees, more = CONFIGS[name]
    training = Training(**{"global_batch": 8, "num_micro_batches": 2, **more})
    config = config_of(training, **degrees)
    plain = _space(model, training, config)
    seen = Counter[str]()
    trace: Callable[..., Any] = training_pass._trace  # type: ignore[attr-defined]

    def traced_otherwise(*arguments: Any, **keywords: Any) -> tuple[GraphBuilder, str, str]:
        builder, loss, count = trace(*arguments, **keywords)
        graph, values, _ = renamed(builder.build(loss=loss), 1)
        seen["ops renamed before the passes"] += len(graph.ops)
        return GraphBuilder(dict(graph.values), list(graph.ops)), values[loss], values[count]

    with monkeypatch.context() as patch:
        patch.setattr(training_pass, "_trace", traced_otherwise)
        planned._kept.cache_clear()
        planned._trained.cache_clear()
        before = _space(model, training, config)
    planned._kept.cache_clear()
    planned._trained.cache_clear()
    seen += _alike(plain, before, config, programs=programs)
    graph, _, _ = renamed(plain.graph, 2)
    with monkeypatch.context() as patch:
        patch.setattr(candidate_space, "planned_graph", lambda *_: graph)
        after = _space(model, training, config)
    seen["ops renamed after the passes"] += len(graph.ops)
    return seen + _alike(plain, after, config, programs=programs)


def _space(model: Model, training: Training, config: PlanConfig) -> SearchSpace:
    devices = config.dp * config.tp * config.pp * config.cp
    return space_of(request(devices, training, model=model, backend="cuda"), config, free_rules(config))


def _alike(one: SearchSpace, other: SearchSpace, config: PlanConfig, *, programs: bool) -> Counter[str]:
    """Compare what is chosen from and what is chosen, op by op and value by value, in their order."""
    ours, theirs, seen = one.graph, other.graph, Counter[str]()
    assert len(ours.ops) == len(theirs.ops)
    values: dict[str, str] = {}
    for mine, yours in zip(ours.ops, theirs.ops, strict=True):
        assert (mine.kind, mine.attrs, mine.phase, mine.layer) == (yours.kind, yours.attrs, yours.phase, yours.layer)
        touched = ((*op.inputs, *op.outputs, *op.updates, *op.after) for op in (mine, yours))
        for name, called in zip(*touched, strict=True):
            assert values.setdefault(name, called) == called
        assert one.stages.stage_of[mine.name] == other.stages.stage_of[yours.name], mine.name
        assert one.stages.lap_of(mine.name) == other.stages.lap_of(yours.name), mine.name
        options = one.options(mine)
        assert options == other.options(yours), mine.name
        seen["signatures"] += len(options)
    by_hand = [
        [[keep(op, option) for option in space.options(op)] for op in space.graph.ops]
        for space in (one, other)
        for keep in [along_axes(space.graph, config.mesh, ("data",) * (len(config.mesh) - 1) + ("mixed",))]
    ]
    assert by_hand[0] == by_hand[1]
    if all(map(one.options, ours.ops)):
        indexes = [
            [known.of_op[op.name].index for op in known.space.graph.ops] for known in map(classify, (one, other))
        ]
        assert indexes[0] == indexes[1]
        seen["ties"] += 1
    if programs:
        mine, yours = (_program(space, config) for space in (one, other))
        assert _anonymous(mine) == _anonymous(yours)
        assert simulate(mine).step_time_s == simulate(yours).step_time_s
        seen["acts"] += len(simulate(mine, steps=1).timeline.records)
    return seen


def _program(space: SearchSpace, config: PlanConfig) -> Program:
    signatures = deduce(space.graph, space.stages, space.converter, space.allows, owned=config.zero_owner)
    layout = lay_out(space.graph, space.stages, signatures, space.converter)
    return lower(space.graph, layout, space.pipeline, space.cost)


def _anonymous(program: Program) -> list[object]:
    """All of a program but what things are called."""
    registers = [replace(register, name="") for register in program.registers]
    actors = [(a.rank, a.kind, a.reads, a.writes, a.acts_per_step, a.rendezvous, a.work) for a in program.actors]
    return [registers, actors, program.streams, program.model_flop_per_step, program.hardware_flop_per_step]


def _figures(problem: Any) -> list[object]:
    """All of a problem but what nodes are called."""
    return [[(node.costs, node.usages) for node in problem.nodes], problem.edges, problem.limit]
