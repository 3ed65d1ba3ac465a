"""Casts are where they should be, few, and every parameter keeps its own precision."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from strategy.base.errors import InputError
from strategy.graph.graph import Graph, Phase, Role
from strategy.graph.ops import op_definition
from strategy.graph.ops.traits import PrecisionClass
from strategy.models import find_model
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import REPORT, Training, evaluation_graph, training_graph
from strategy.passes.updates import Optimizer
from strategy.sbp.tensor import DType, Rate
from tests.support.long_parameters import long_but
from tests.support.reference import Array, random_batch, run_graph, start_variables

CONFIG = GptConfig(layers=3, width=16, heads=2, sequence=8, vocabulary=29)
HALVES = (Precision.BF16, Precision.FP16)
SMALL = ("llama-tiny", "mixtral-tiny", "bert-tiny", "vit-tiny", "wide-and-deep-tiny", "arcface-tiny", "gpt-tiny")


def mixed(precision: Precision, **settings: Any) -> Graph:
    return training_graph(CONFIG, Training(4, num_micro_batches=2, precision=precision, **settings))


def dtypes(graph: Graph, names: tuple[str, ...]) -> set[DType]:
    return {graph.values[name].spec.dtype for name in names if graph.values[name].spec.dtype.is_float}


@pytest.mark.parametrize("precision", HALVES)
@pytest.mark.parametrize("name", SMALL)
def test_products_compute_in_halves_and_sums_in_float32(name: str, precision: Precision) -> None:
    graph = training_graph(find_model(name), Training(4, precision=precision))
    precisions = {op.name: op_definition(op.kind).precision for op in graph.ops}
    assert PrecisionClass.HALF in precisions.values()
    for op in graph.ops:
        if precisions[op.name] is PrecisionClass.HALF:
            assert dtypes(graph, op.inputs) == {precision.half}, op.name
        if precisions[op.name] is PrecisionClass.SINGLE and op.phase is Phase.FORWARD:
            assert dtypes(graph, (*op.inputs, *op.outputs)) == {DType.FLOAT32}, op.name
        if op.phase is Phase.UPDATE:
            assert not any(dtype.is_half for dtype in dtypes(graph, (*op.inputs, *op.outputs, *op.updates))), op.name
    assert dtypes(graph, tuple(v.name for v in graph.with_role(Role.VARIABLE))) == {DType.FLOAT32}


@pytest.mark.parametrize("precision", HALVES)
def test_a_parameter_is_cast_once_per_step_for_all_its_readers(precision: Precision) -> None:
    graph = mixed(precision)
    cast = [op for op in graph.ops if op.kind == "cast" and graph.values[op.inputs[0]].role is Role.VARIABLE]
    assert len({op.inputs[0] for op in cast}) == len(cast)
    assert {graph.values[op.outputs[0]].rate for op in cast} == {Rate.STEP}
    token = graph.consumers[f"token:{precision.half}"]
    assert {"embed", "logits"} <= {op.name for op in token}, "the tied embedding has two readers"


@pytest.mark.parametrize("precision", HALVES)
def test_gradients_are_accumulated_and_added_in_float32(precision: Precision) -> None:
    graph = mixed(precision)
    accumulated = [op for op in graph.ops if op.kind == "accumulate"]
    assert len(accumulated) > len(graph.with_role(Role.VARIABLE)) / 3
    for op in accumulated:
        assert dtypes(graph, op.inputs) == {DType.FLOAT32}
    tied = graph.by_name["token:grad"]
    assert all(graph.producer[name].kind == "accumulate" for name in tied.inputs), "each use by itself, once per step"


def test_layers_stay_alike() -> None:
    graph = mixed(Precision.BF16)
    layers = [
        [
            (graph.template_of(op), op.kind, dtypes(graph, op.inputs))
            for op in graph.ops
            if op.layer == layer and op.phase is Phase.FORWARD
        ]
        for layer in range(CONFIG.layers)
    ]
    assert layers[0] == layers[1] == layers[2]


def test_full_precision_casts_nothing() -> None:
    assert mixed(Precision.FULL).ops == training_graph(CONFIG, Training(4, num_micro_batches=2)).ops
    assert not any(op.kind == "cast" for op in mixed(Precision.FULL).ops)


def test_what_is_evaluated_is_what_is_trained() -> None:
    how = Training(4, precision=Precision.BF16)
    trained, evaluated = training_graph(CONFIG, how), evaluation_graph(CONFIG, how)
    forward = [op for op in trained.ops if op.phase is Phase.FORWARD]
    assert [op for op in evaluated.ops if op.phase is Phase.FORWARD] == forward
    assert dtypes(evaluated, evaluated.by_name[REPORT].inputs) == {DType.FLOAT32}


def any_batch(graph: Graph) -> dict[str, Array]:
    """Figures and small numbers for every input."""
    rng = np.random.default_rng(1)
    return {
        v.name: rng.uniform(-1, 1, v.spec.shape).astype(v.spec.dtype)
        if v.spec.dtype.is_float
        else rng.integers(0, 2, v.spec.shape, v.spec.dtype)
        for v in graph.with_role(Role.INPUT)
    }


@pytest.mark.parametrize(("name", "precision"), long_but(itertools.product(SMALL, HALVES), *range(0, 14, 3)))
def test_the_first_gradients_are_those_of_float32(name: str, precision: Precision) -> None:
    """Losses and the norm of all gradients, 2e-2 for bfloat16 and less for float16."""
    model = find_model(name)
    figures = {}
    for chosen in (Precision.FULL, precision):
        graph = training_graph(model, Training(16, precision=chosen, max_norm=1e9, loss_scale=16.0))
        variables = start_variables(graph, np.random.default_rng(0))
        batch = any_batch(graph)
        loss, count, norm = run_graph(graph, [batch], variables)[REPORT]
        figures[chosen] = np.array([loss / count, norm])
    np.testing.assert_allclose(figures[precision], figures[Precision.FULL], rtol=2e-2)


@pytest.mark.parametrize("optimizer", long_but(Optimizer, [*Optimizer].index(Optimizer.ADAMW)))
def test_twenty_steps_follow_float32(optimizer: Optimizer) -> None:
    losses = {}
    for precision in (Precision.FULL, *HALVES):
        graph = mixed(precision, optimizer=optimizer, lr=0.01, loss_scale=256.0)
        variables = start_variables(graph, np.random.default_rng(0))
        rng = np.random.default_rng(1)
        batches = [random_batch(graph, CONFIG.vocabulary, rng) for _ in range(2)]
        reports = [run_graph(graph, batches, variables, step=step)[REPORT] for step in range(20)]
        losses[precision] = np.array([float(report[0] / report[1]) for report in reports])
    for precision in HALVES:
        np.testing.assert_allclose(losses[precision], losses[Precision.FULL], rtol=2e-2)


@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": DType.BFLOAT16},
        {"dtype": DType.FLOAT16},
        {"dtype": DType.FLOAT64, "precision": Precision.BF16},
        {"dtype": DType.FLOAT64, "precision": Precision.FP16},
        {"loss_scale": 0.5},
        {"loss_scale": float("inf")},
        {"scale_period": 0},
        {"scale_growth": 0.5},
        {"scale_backoff": 1.0},
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"training: .*got"):
        Training(4, **settings)
