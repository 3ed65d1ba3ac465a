"""A step whose gradients are not finite changes nothing but the loss scale, under every optimiser."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from strategy.graph.graph import Graph
from strategy.graph.ops.learning_rate import Decay, rate_at
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import REPORT, Training, training_graph
from strategy.passes.updates import Optimizer
from tests.support.reference import Array, random_batch, run_graph, start_variables

CONFIG = GptConfig(layers=2, width=8, heads=2, sequence=5, vocabulary=11)
SCALE, GOOD = "loss:scale", "loss:good"


def training(precision: Precision, **settings: Any) -> Training:
    return Training(4, num_micro_batches=2, precision=precision, **settings)


def batches(graph: Graph, seed: int = 1) -> list[dict[str, Array]]:
    rng = np.random.default_rng(seed)
    return [random_batch(graph, CONFIG.vocabulary, rng) for _ in range(2)]


def poisoned(variables: dict[str, Array], graph: Graph, step: int) -> dict[str, Array]:
    """One step with a gain that is no number; the gain itself is restored afterwards."""
    gain = variables["norm.weight"].copy()
    variables["norm.weight"][0] = np.nan
    values = run_graph(graph, batches(graph), variables, step=step)
    variables["norm.weight"][...] = gain
    return values


@pytest.mark.parametrize("optimizer", Optimizer)
@pytest.mark.parametrize("how", [{"precision": Precision.FP16}, {"precision": Precision.BF16, "skip_nonfinite": True}])
def test_a_skipped_step_leaves_all_state_bit_equal(optimizer: Optimizer, how: dict[str, Any]) -> None:
    graph = training_graph(CONFIG, training(optimizer=optimizer, loss_scale=64.0, **how))
    variables = start_variables(graph, np.random.default_rng(0))
    run_graph(graph, batches(graph), variables)
    before = {name: array.copy() for name, array in variables.items()}
    values = poisoned(variables, graph, 1)
    assert not np.isfinite(values["clip.norm"])
    assert (int(values["step"]), float(values["learning_rate"])) == (0, 0.0)
    changed = {name for name, array in variables.items() if array.tobytes() != before[name].tobytes()}
    assert changed == ({SCALE, GOOD} if SCALE in variables else set())
    run_graph(graph, batches(graph), variables, step=2)
    assert all(np.isfinite(array).all() for array in variables.values())
    assert int(variables["step:applied"]) == 2


@pytest.mark.parametrize("optimizer", Optimizer)
def test_a_run_with_a_skipped_step_goes_on_as_if_it_had_not_been(optimizer: Optimizer) -> None:
    """Adam's correction and the schedule count the steps that were made."""
    how = training(
        Precision.FULL,
        optimizer=optimizer,
        skip_nonfinite=True,
        warm_up=3,
        decay=Decay.COSINE,
        decay_steps=8,
    )
    graph = training_graph(CONFIG, how)
    smooth, rough = (start_variables(graph, np.random.default_rng(0)) for _ in range(2))
    for step in range(3):
        values = run_graph(graph, batches(graph, step), smooth, step=step)
        assert float(values["learning_rate"]) == np.float32(rate_at(step, how.rule.schedule))
    run_graph(graph, batches(graph, 0), rough)
    poisoned(rough, graph, 1)
    poisoned(rough, graph, 2)
    for step in (1, 2):
        run_graph(graph, batches(graph, step), rough, step=step + 2)
    assert {name: array.tobytes() for name, array in rough.items()} == {n: a.tobytes() for n, a in smooth.items()}


def test_guarded_float32_without_a_bad_step_is_float32() -> None:
    plain, guarded = (training_graph(CONFIG, training(Precision.FULL, skip_nonfinite=skip)) for skip in (False, True))
    found = [start_variables(graph, np.random.default_rng(0)) for graph in (plain, guarded)]
    for step in range(3):
        for graph, variables in zip((plain, guarded), found, strict=True):
            run_graph(graph, batches(graph, step), variables, step=step)
    assert all(found[1][name].tobytes() == array.tobytes() for name, array in found[0].items())
    assert set(found[1]) - set(found[0]) == {"step:applied"}


def test_by_default_a_bad_step_is_not_skipped() -> None:
    graph = training_graph(CONFIG, training(Precision.FULL))
    variables = start_variables(graph, np.random.default_rng(0))
    poisoned(variables, graph, 0)
    assert np.isnan(variables["token"]).any()


def test_the_scale_grows_after_good_steps_and_shrinks_after_a_bad_one() -> None:
    how = training(Precision.FP16, loss_scale=64.0, scale_period=2, scale_growth=4.0, scale_backoff=0.25)
    graph = training_graph(CONFIG, how)
    variables = start_variables(graph, np.random.default_rng(0))
    seen = []
    for step in range(7):
        if step == 3:
            poisoned(variables, graph, step)
        else:
            run_graph(graph, batches(graph), variables, step=step)
        seen.append((float(variables[SCALE]), int(variables[GOOD])))
    assert seen == [(64, 1), (256, 0), (256, 1), (64, 0), (64, 1), (256, 0), (256, 1)]


def test_a_scale_that_is_too_large_finds_its_size() -> None:
    """Gradients of 2^40 overflow float16; halving after each skipped step, the training begins when they fit."""
    graph = training_graph(CONFIG, training(Precision.FP16, loss_scale=2.0**40))
    variables = start_variables(graph, np.random.default_rng(0))
    steps = [int(run_graph(graph, batches(graph), variables, step=step)["step"]) for step in range(40)]
    skipped = steps.count(0)
    assert 5 < skipped < 30
    assert steps == [0] * skipped + list(range(1, 41 - skipped))
    assert float(variables[SCALE]) == 2.0 ** (40 - skipped)


@pytest.mark.parametrize("scale", [1.0, 512.0, 4096.0])
def test_the_reported_norm_and_the_update_know_nothing_of_the_scale(scale: float) -> None:
    """Powers of two scale floats exactly, as long as nothing vanishes: with a scale, less does."""
    found = []
    for chosen in (scale, 256.0):
        graph = training_graph(CONFIG, training(Precision.FP16, loss_scale=chosen, max_norm=0.1))
        variables = start_variables(graph, np.random.default_rng(0))
        report = run_graph(graph, batches(graph), variables)[REPORT]
        found.append((report, variables["layers.0.mlp.fc1.weight"]))
    np.testing.assert_allclose(found[0][0], found[1][0], rtol=2e-3)
    np.testing.assert_allclose(found[0][1], found[1][1], rtol=2e-2, atol=1e-4)


def test_without_a_scale_small_gradients_vanish() -> None:
    """What the scale is for: a loss of a small weight has gradients below the smallest float16."""
    norms = []
    for scale in (1.0, 65536.0):
        graph = training_graph(CONFIG, training(Precision.FP16, loss_scale=scale))
        variables = start_variables(graph, np.random.default_rng(0))
        variables["norm.weight"] *= 1e-4
        norms.append(float(run_graph(graph, batches(graph), variables)[REPORT][2]))
    exact = training_graph(CONFIG, training(Precision.FULL))
    variables = start_variables(exact, np.random.default_rng(0))
    variables["norm.weight"] *= 1e-4
    norms.append(float(run_graph(exact, batches(exact), variables)[REPORT][2]))
    assert abs(norms[1] - norms[2]) < 1e-2 * norms[2]
