"""Optimisers against textbook loops on one device, and the learning rate's schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from strategy.base.errors import InputError
from strategy.graph.graph import Graph, Phase, Role
from strategy.graph.ops import op_definition
from strategy.graph.ops.learning_rate import Decay, rate_at
from strategy.graph.ops.muon import orthogonalize
from strategy.graph.signature import op_signatures
from strategy.models.gpt import GptConfig
from strategy.passes.training import REPORT, Training, training_graph
from strategy.passes.updates import Optimizer
from strategy.plan.verify import verify
from strategy.sbp.sbp import B, P, Split
from strategy.sbp.tensor import DType
from strategy.space.candidate_space import free_rules
from tests.support.long_parameters import long_but
from tests.support.reference import random_batch, run_graph, start_variables
from tests.support.small_plans import config_of, plan_by_rules, request

Array = npt.NDArray[Any]
State = dict[str, Array]
CONFIG = GptConfig(layers=2, width=8, heads=2, sequence=5, vocabulary=11)
LR, DECAY = 0.01, 0.1


def training(optimizer: Optimizer, **settings: Any) -> Training:
    given = {"lr": LR, "weight_decay": DECAY, "max_norm": 0.5, "dtype": DType.FLOAT64, **settings}
    return Training(4, optimizer=optimizer, **given)


def sgd(p: Array, g: Array, s: State, t: int, decay: float) -> Array:
    s["u"] = 0.9 * s["u"] + g + decay * p
    return p - LR * s["u"]


def nesterov(p: Array, g: Array, s: State, t: int, decay: float) -> Array:
    g = g + decay * p
    s["u"] = 0.9 * s["u"] + g
    return p - LR * (g + 0.9 * s["u"])


def plain(p: Array, g: Array, s: State, t: int, decay: float) -> Array:
    return p - LR * (g + decay * p)


def direction(g: Array, s: State, t: int) -> Array:
    s["m"] = 0.9 * s["m"] + 0.1 * g
    s["v"] = 0.95 * s["v"] + 0.05 * g**2
    return np.asarray(s["m"] / (1 - 0.9**t) / (np.sqrt(s["v"] / (1 - 0.95**t)) + 1e-8))


def adam(p: Array, g: Array, s: State, t: int, decay: float) -> Array:
    return p - LR * direction(g + decay * p, s, t)


def adamw(p: Array, g: Array, s: State, t: int, decay: float) -> Array:
    return p - LR * decay * p - LR * direction(g, s, t)


def adagrad(p: Array, g: Array, s: State, t: int, decay: float) -> Array:
    g = g + decay * p
    s["u"] = s["u"] + g**2
    return p - LR * g / (np.sqrt(s["u"]) + 1e-8)


def lamb(p: Array, g: Array, s: State, t: int, decay: float) -> Array:
    step = direction(g, s, t) + decay * p
    norms = math.sqrt(float((p**2).sum())), math.sqrt(float((step**2).sum()))
    return p - LR * (norms[0] / norms[1] if norms[0] and norms[1] else 1.0) * step


RULES: dict[str, tuple[Optimizer, dict[str, Any], Callable[[Array, Array, State, int, float], Array]]] = {
    "sgd": (Optimizer.SGD, {"momentum": 0.0}, plain),
    "momentum": (Optimizer.SGD, {}, sgd),
    "nesterov": (Optimizer.SGD, {"nesterov": True}, nesterov),
    "adam": (Optimizer.ADAM, {}, adam),
    "adamw": (Optimizer.ADAMW, {}, adamw),
    "adagrad": (Optimizer.ADAGRAD, {}, adagrad),
    "lamb": (Optimizer.LAMB, {}, lamb),
}


def gradients_of(graph: Graph, values: State) -> State:
    """Parameter -> its clipped mean gradient, from what the first op that is named after it reads."""
    found = {}
    for op in graph.ops:
        name = op.name.split(":")[0]
        if op.kind == "square_sum" and op.name == f"{name}:square":
            found[name] = values[op.inputs[0]] * values["clip"]
    return found


@pytest.mark.parametrize("name", RULES)
def test_three_steps_of_every_rule_against_a_textbook_loop(name: str) -> None:
    optimizer, settings, rule = RULES[name]
    graph = training_graph(CONFIG, training(optimizer, **settings))
    variables = start_variables(graph, np.random.default_rng(0))
    parameters = [v.name for v in graph.with_role(Role.VARIABLE) if ":" not in v.name]
    state: dict[str, State] = {n: {key: np.zeros_like(variables[n]) for key in "muv"} for n in parameters}
    rng = np.random.default_rng(1)
    for step in range(3):
        before = {n: variables[n].copy() for n in parameters}
        values = run_graph(graph, [random_batch(graph, CONFIG.vocabulary, rng)], variables, step=step)
        gradients = gradients_of(graph, values)
        assert set(gradients) == set(parameters)
        for n in parameters:
            decay = DECAY if before[n].ndim > 1 else 0.0
            wanted = rule(before[n], gradients[n], state[n], step + 1, decay)
            np.testing.assert_allclose(variables[n], wanted, rtol=1e-9, atol=1e-12, err_msg=n)


def test_muon_makes_the_momentum_of_layers_matrices_orthogonal_and_leaves_the_rest_to_adamw() -> None:
    graph = training_graph(CONFIG, training(Optimizer.MUON, nesterov=True))
    variables = start_variables(graph, np.random.default_rng(0))
    before = {n: a.copy() for n, a in variables.items()}
    values = run_graph(graph, [random_batch(graph, CONFIG.vocabulary, np.random.default_rng(1))], variables)
    stacks = [op for op in graph.ops if op.kind == "stack"]
    moved = {op.updates[0]: op for op in graph.ops if op.kind == "descend"}
    assert sorted(moved) == sorted(n for n in before if n.startswith("layers") and before[n].ndim == 2)
    assert {op.updates[0] for op in graph.ops if op.kind == "adamw"} == {n for n in before if ":" not in n} - set(moved)
    assert all(len(op.inputs) == CONFIG.layers for op in stacks)
    for name, op in moved.items():
        apart = graph.producer[op.inputs[0]]
        stack = next(other for other in stacks if other.name == apart.name.replace(":direction", ":stack"))
        gradient = stack.inputs[apart.outputs.index(op.inputs[0])]
        u, _, vt = np.linalg.svd(values[gradient], full_matrices=False)
        a, b = before[name].shape
        step = (before[name] * (1 - LR * DECAY) - variables[name]) / (LR * math.sqrt(max(1.0, b / a)))
        inside = u.T @ step @ vt.T
        assert np.abs(inside - np.diag(np.diag(inside))).max() < 1e-6
        np.testing.assert_allclose(values[op.inputs[0]], step, atol=1e-9)


@pytest.mark.parametrize("shape", [(3, 6, 4), (2, 4, 6), (1, 5, 5)])
def test_newton_schulz_brings_singular_values_near_one(shape: tuple[int, int, int]) -> None:
    matrices = np.random.default_rng(0).standard_normal(shape)
    out = np.empty_like(matrices)
    orthogonalize(np, matrices, out)
    for matrix, found in zip(matrices, out, strict=True):
        u, _, vt = np.linalg.svd(matrix, full_matrices=False)
        inside = u.T @ found @ vt.T
        assert np.abs(inside - np.diag(np.diag(inside))).max() < 1e-9
        assert (np.abs(np.diag(inside) - 1) < 0.4).all()


def test_a_matrix_is_never_split_by_muon_but_its_stack_is() -> None:
    graph = training_graph(CONFIG, training(Optimizer.MUON))
    direction_op = next(op for op in graph.ops if op.kind == "muon_direction")
    found = {s.updates[0] for s in op_signatures(graph, direction_op, (2,))}
    assert found == {(B,), (Split(0),)}
    stack = next(op for op in graph.ops if op.kind == "stack")
    listed = {(s.inputs[0], s.outputs[0]) for s in op_signatures(graph, stack, (2,))}
    assert ((P,), (P,)) in listed, "terms of gradients are stacked, and reduced on the way to their owners"


def test_the_search_gives_every_stacked_matrix_an_owner() -> None:
    """Four data-parallel ranks, four layers: each rank orthogonalises one matrix of every shape, none a piece."""
    how = Training(8, optimizer=Optimizer.MUON)
    model = GptConfig(layers=4, width=64, heads=4, sequence=16, vocabulary=64)
    config = config_of(how, dp=4)
    plan = plan_by_rules(request(4, how, model=model), config, free_rules(config))
    assert verify(plan) == []
    owned = [op for op in plan.graph.ops if op.kind == "muon_direction"]
    assert len(owned) == 4
    for op in owned:
        assert plan.layout.signatures[op.name].updates[0][0] == Split(0), op.name


def test_squares_are_of_summed_gradients_only() -> None:
    graph = training_graph(CONFIG, training(Optimizer.ADAMW))
    squares = [op for op in graph.ops if op.kind == "square_sum"]
    assert len(squares) == len([v for v in graph.with_role(Role.VARIABLE) if ":" not in v.name])
    for op in squares:
        for signature in op_signatures(graph, op, (2, 2)):
            assert P not in signature.inputs[0]
            pairs = zip(signature.inputs[0], signature.outputs[0], strict=True)
            assert all((to == P) is isinstance(given, Split) for given, to in pairs)


def test_the_trust_ratio_is_of_whole_tensors() -> None:
    """The sums of squares are P where the tensors are split, and the ratio takes them only whole."""
    graph = training_graph(CONFIG, training(Optimizer.LAMB))
    apply = next(op for op in graph.ops if op.kind == "lamb_apply" and len(graph.values[op.updates[0]].spec.shape) == 2)
    for signature in op_signatures(graph, apply, (2,)):
        assert signature.inputs[1:] == ((B,),) * 3
    for name in apply.inputs[1:3]:
        layouts = {s.outputs[0] for s in op_signatures(graph, graph.producer[name], (2,))}
        assert layouts == {(B,), (P,)}


@pytest.mark.parametrize(
    "optimizer", long_but(Optimizer, *map([*Optimizer].index, (Optimizer.SGD, Optimizer.ADAMW, Optimizer.MUON)))
)
def test_the_loss_falls_with_every_rule(optimizer: Optimizer) -> None:
    rates = {Optimizer.SGD: 0.3, Optimizer.ADAGRAD: 0.1, Optimizer.LAMB: 0.1, Optimizer.MUON: 0.03}
    how = training(optimizer, lr=rates.get(optimizer, 0.01), weight_decay=0.0, max_norm=math.inf, num_micro_batches=2)
    graph = training_graph(CONFIG, how)
    variables = start_variables(graph, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    batches = [random_batch(graph, CONFIG.vocabulary, rng) for _ in range(2)]
    losses = [float(run_graph(graph, batches, variables, step=step)[REPORT][0]) for step in range(40)]
    assert losses[-1] < 0.6 * losses[0]


def schedule(decay: Decay, **figures: float) -> dict[str, Any]:
    given = {"lr": 1.0, "warm_up": 0, "steps": 10, "final": 0.0, "power": 1.0, "factor": 0.5, **figures}
    return {"dtype": "float64", "decay": str(decay), **given}


def rates(decay: Decay, count: int, **figures: float) -> list[float]:
    return [rate_at(step, schedule(decay, **figures)) for step in range(count)]


def test_warm_up_is_linear_and_reaches_the_peak() -> None:
    for decay in Decay:
        assert rates(decay, 5, warm_up=4)[:4] == [0.25, 0.5, 0.75, 1.0]
    assert rates(Decay.CONSTANT, 4) == [1.0] * 4


def test_every_decay_by_hand() -> None:
    assert rates(Decay.COSINE, 13)[::5] == pytest.approx([1.0, 0.5, 0.0])
    assert rates(Decay.COSINE, 13, final=0.2)[10:] == pytest.approx([0.2] * 3)
    assert rates(Decay.POLYNOMIAL, 12)[::5] == pytest.approx([1.0, 0.5, 0.0])
    assert rates(Decay.POLYNOMIAL, 7, power=2.0, warm_up=2, steps=6) == pytest.approx(
        [0.5, 1.0, 1.0, 0.5625, 0.25, 0.0625, 0.0]
    )
    assert rates(Decay.INVERSE_SQRT, 16, warm_up=4)[3::4] == pytest.approx([1.0, math.sqrt(0.5), math.sqrt(1 / 3), 0.5])
    assert rates(Decay.STEP, 9, steps=3, warm_up=1) == [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.25, 0.25]


def test_the_updates_follow_the_schedule() -> None:
    """SGD without anything else moves by the rate of the step, counted by the acts."""
    how = training(Optimizer.SGD, momentum=0.0, weight_decay=0.0, warm_up=3, decay=Decay.COSINE, decay_steps=8)
    graph = training_graph(CONFIG, how)
    variables = start_variables(graph, np.random.default_rng(0))
    rng = np.random.default_rng(1)
    for step in range(10):
        before = variables["token"].copy()
        values = run_graph(graph, [random_batch(graph, CONFIG.vocabulary, rng)], variables, step=step)
        rate = rate_at(step, how.rule.schedule)
        assert float(values["learning_rate"]) == rate
        np.testing.assert_allclose(variables["token"], before - rate * gradients_of(graph, values)["token"], rtol=1e-12)
    assert rate == 0.0


def test_every_update_reads_the_rate_and_happens_once() -> None:
    for optimizer in Optimizer:
        graph = training_graph(CONFIG, training(optimizer))
        updating = [op for op in graph.ops for name in op.updates if ":" not in name]
        assert all("learning_rate" in op.inputs and op.phase is Phase.UPDATE for op in updating)
        assert len(updating) == len({name for op in updating for name in op.updates if ":" not in name})
        assert op_definition("learning_rate").infer((), (), how_attrs()) is not None


def how_attrs() -> dict[str, Any]:
    return schedule(Decay.CONSTANT)


@pytest.mark.parametrize(
    "settings",
    [
        {"momentum": 1.0},
        {"momentum": 0.0, "nesterov": True},
        {"warm_up": -1},
        {"decay": Decay.COSINE},
        {"decay": Decay.COSINE, "decay_steps": 5, "warm_up": 5},
        {"decay": Decay.STEP},
        {"final_lr": 1.5},
        {"decay_power": 0.0},
        {"decay_factor": 0.0},
    ],
)
def test_schedules_that_cannot_be_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"training: .*got"):
        Training(4, **settings)
