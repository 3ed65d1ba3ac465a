"""The training graph: micro-batches change nothing, clipping and AdamW by hand, a loss that falls."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from strategy.base.errors import InputError
from strategy.graph.graph import Graph, Phase, Role, check_graph
from strategy.models.gpt import GptConfig
from strategy.passes.training import REPORT, Training, training_graph
from strategy.sbp.tensor import DType, Rate
from tests.support.reference import random_batch, run_graph, start_variables

Array = npt.NDArray[Any]
CONFIG = GptConfig(layers=2, width=8, heads=2, sequence=5, vocabulary=11)


def graph_of(num_micro_batches: int, **settings: Any) -> Graph:
    training = Training(global_batch=4, num_micro_batches=num_micro_batches, dtype=DType.FLOAT64, **settings)
    return training_graph(CONFIG, training)


def split(batch: dict[str, Array], parts: int) -> list[dict[str, Array]]:
    pieces = {name: np.split(array, parts) for name, array in batch.items()}
    return [{name: pieces[name][i] for name in batch} for i in range(parts)]


def after_steps(num_micro_batches: int, steps: int = 3) -> tuple[dict[str, Array], list[Array]]:
    graph = graph_of(num_micro_batches)
    variables = start_variables(graph, np.random.default_rng(0))
    rng, reports = np.random.default_rng(1), []
    for step in range(steps):
        batch = random_batch(graph_of(1), CONFIG.vocabulary, rng)
        reports.append(run_graph(graph, split(batch, num_micro_batches), variables, step=step)[REPORT])
    return variables, reports


@pytest.mark.parametrize("num_micro_batches", [2, 4])
def test_micro_batches_change_nothing(num_micro_batches: int) -> None:
    whole, whole_reports = after_steps(1)
    parts, reports = after_steps(num_micro_batches)
    assert list(whole) == list(parts)
    for name in whole:
        np.testing.assert_allclose(parts[name], whole[name], rtol=1e-7, atol=1e-9, err_msg=name)
    np.testing.assert_allclose(reports, whole_reports, rtol=1e-9)


def test_the_report_is_loss_count_and_norm() -> None:
    graph = graph_of(2)
    variables = start_variables(graph, np.random.default_rng(0))
    batches = split(random_batch(graph_of(1), CONFIG.vocabulary, np.random.default_rng(1)), 2)
    values = run_graph(graph, batches, variables)
    loss, count, norm = values[REPORT]
    assert count == 4 * CONFIG.sequence
    assert loss / count == pytest.approx(math.log(CONFIG.vocabulary), rel=0.05)
    totals = [values[op.inputs[0]] for op in graph.ops if op.kind == "adamw"]
    assert norm == pytest.approx(math.sqrt(sum(float((total**2).sum()) for total in totals)) / count)


@pytest.mark.parametrize("max_norm", [1e-3, 1e3])
def test_one_step_by_hand(max_norm: float) -> None:
    """AdamW's first step: m / sqrt(v) is the sign of the gradient, whatever its scale."""
    graph = graph_of(1, max_norm=max_norm, lr=0.01, weight_decay=0.1)
    variables = start_variables(graph, np.random.default_rng(0))
    before = {name: array.copy() for name, array in variables.items()}
    values = run_graph(graph, [random_batch(graph, CONFIG.vocabulary, np.random.default_rng(1))], variables)
    loss, count, norm = values[REPORT]
    assert loss > 0
    scale = min(1.0, max_norm / norm) / count
    for op in graph.ops:
        if op.kind == "adamw":
            name, gradient = op.updates[0], values[op.inputs[0]] * scale
            decay = 0.1 if before[name].ndim > 1 else 0.0
            wanted = before[name] * (1 - 0.01 * decay) - 0.01 * gradient / (np.abs(gradient) + 1e-8)
            np.testing.assert_allclose(variables[name], wanted, rtol=1e-9, atol=1e-12, err_msg=name)
            np.testing.assert_allclose(variables[f"{name}:m"], 0.1 * gradient, rtol=1e-9, atol=1e-15)
            np.testing.assert_allclose(variables[f"{name}:v"], 0.05 * gradient**2, rtol=1e-9, atol=1e-15)


def test_the_loss_falls_on_one_batch() -> None:
    graph = graph_of(2, lr=1e-2)
    variables = start_variables(graph, np.random.default_rng(0))
    batches = split(random_batch(graph_of(1), CONFIG.vocabulary, np.random.default_rng(1)), 2)
    losses = [float(run_graph(graph, batches, variables, step=step)[REPORT][0]) for step in range(30)]
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize("num_micro_batches", [1, 4])
def test_the_graph_is_sound_and_updates_every_variable_once(num_micro_batches: int) -> None:
    graph = graph_of(num_micro_batches)
    check_graph(graph)
    assert graph.loss in graph.values
    updated = [name for op in graph.ops for name in op.updates]
    assert sorted(updated) == sorted(value.name for value in graph.with_role(Role.VARIABLE))
    phases = [op.phase for op in graph.ops]
    assert phases == sorted(phases, key=list(Phase).index) or num_micro_batches > 1


def test_accumulations_follow_the_op_that_feeds_them() -> None:
    graph = graph_of(4)
    for earlier, op in zip(graph.ops, graph.ops[1:], strict=False):
        if op.kind == "accumulate" and earlier.kind != "accumulate":
            assert op.inputs[0] in earlier.outputs
    assert all(graph.values[n].rate is Rate.STEP for op in graph.ops if op.phase is Phase.UPDATE for n in op.inputs)


def test_the_same_settings_give_the_same_graph() -> None:
    assert graph_of(2) == graph_of(2)


@pytest.mark.parametrize(("batch", "micro"), [(4, 3), (4, 0), (4, -2), (2, 4), (0, 1), (-4, 2)])
def test_batches_that_do_not_divide_are_refused(batch: int, micro: int) -> None:
    with pytest.raises(InputError, match=r"batch.*got.*expected"):
        Training(global_batch=batch, num_micro_batches=micro)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("lr", -1.0),
        ("lr", math.nan),
        ("lr", math.inf),
        ("beta1", 1.0),
        ("beta1", -0.1),
        ("beta2", 1.0),
        ("beta2", math.nan),
        ("epsilon", 0.0),
        ("weight_decay", -0.1),
        ("weight_decay", math.inf),
        ("max_norm", 0.0),
        ("max_norm", math.nan),
        ("dtype", DType.INT32),
    ],
)
def test_settings_that_cannot_train_are_refused(setting: str, value: Any) -> None:
    with pytest.raises(InputError, match=rf"{setting}.*got"):
        Training(global_batch=4, **{setting: value})


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_a_graph_is_traced_once_for_all_numbers_of_micro_batches_above_one(count: int) -> None:
    training = Training(global_batch=24, num_micro_batches=count)
    few = training.of_few_micro_batches
    assert few.num_micro_batches == (1 if count == 1 else 2)
    assert few.micro_batch == training.micro_batch
    assert few.of_few_micro_batches == few
