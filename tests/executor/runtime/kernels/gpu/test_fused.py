"""Kernels that no op of the graph asks for by itself: casts with scales, many tensors at once; masks to the bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from executor.runtime.kernels.gpu.elementwise import (
    cast,
    dropout,
    reshape,
    scaled_cast,
)
from executor.runtime.kernels.gpu.launch import Launch
from executor.runtime.kernels.gpu.program import ELEMENTS
from executor.runtime.kernels.gpu.update import AdamShared, AdamTensor, WaitingUpdates, adamw_tensors, adamw_update
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import Array, Call, Workspace
from strategy.sbp.tensor import DType
from tests.support.cuda_on_host.device import build, run
from tests.support.cuda_on_host.trials import TOLERANCES, Trial, error_per_row, wanted

HALVES = [element for element in ELEMENTS if element.is_half]
RNG_SEED = 20


def normal(shape: tuple[int, ...], element: DType, seed: int = RNG_SEED) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(element.numpy)


def poisoned(shape: tuple[int, ...], element: DType) -> Array:
    return np.full(shape, np.nan, element.numpy)


def test_dropout_draws_the_masks_of_the_processor_to_the_bit() -> None:
    trial = Trial("dropout", (np.ones((5, 6, 77)),), attrs={"rate": 0.3, "seed": 3}, number=8)
    call, same = trial.call(DType.FLOAT32), trial.call(DType.FLOAT32)
    run(build(DType.FLOAT32), dropout(call) or ())
    op_definition("dropout").run(same)
    assert call.outputs[0].tobytes() == same.outputs[0].tobytes()
    assert 0.2 < (call.outputs[0] == 0).mean() < 0.4


@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers_are_reshaped_to_the_bit(dtype: str) -> None:
    x = np.random.default_rng(RNG_SEED).integers(-(2**31), 2**31, (7, 11)).astype(dtype)
    out = np.zeros((11, 7), dtype)
    call = Call(np, {"shape": out.shape}, (x,), (out,), (), (((0, 7), (0, 11)),), (((0, 11), (0, 7)),), Workspace(np))
    run(build(DType.FLOAT32), reshape(call))
    assert out.reshape(-1).tolist() == x.reshape(-1).tolist()


@pytest.mark.parametrize("element", HALVES)
def test_casts_round_as_numpy_does(element: DType) -> None:
    """Ties, figures beyond the range, infinities, subnormals."""
    x = np.concatenate([normal((1001,), DType.FLOAT32) * 10.0**power for power in (-9, -5, 0, 4, 38)])
    with np.errstate(over="ignore"):
        x = np.concatenate([x, np.float32([0, -0.0, np.inf, -np.inf, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-11, 65520])])
        right = x.astype(element.numpy)
    out, back = poisoned(x.shape, element), poisoned(x.shape, DType.FLOAT32)
    box = ((0, x.size),)
    narrow = Call(np, {}, (x,), (out,), (), (box,), (box,), Workspace(np))
    widen = Call(np, {}, (right,), (back,), (), (box,), (box,), Workspace(np))
    run(build(element), [*(cast(narrow) or ()), *(cast(widen) or ())])
    assert out.tobytes() == right.tobytes()
    assert back.tobytes() == right.astype(np.float32).tobytes()


@pytest.mark.parametrize("element", HALVES)
def test_casts_scale(element: DType) -> None:
    x, scale = normal((77,), DType.FLOAT32), np.float32([0.25]).reshape(())
    out = poisoned((77,), element)
    run(build(element), scaled_cast(x, scale, out) or ())
    assert out.tobytes() == (x * np.float32(0.25)).astype(element.numpy).tobytes()


@pytest.mark.parametrize("element", HALVES)
def test_many_tensors_are_updated_at_once_and_their_copies_follow(element: DType) -> None:
    """More tensors than one launch has room for; of one, of a chunk and of several chunks."""
    attrs = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-8, "weight_decay": 0.01}
    sizes = [1, 4096, 9000, 5] * 7
    tensors, rights = [], []
    factor, lr = np.float32([0.5]).reshape(()), np.float32([1e-2]).reshape(())
    for seed, size in enumerate(sizes):
        grad, state = normal((size,), element, seed), [normal((size,), DType.FLOAT32, 100 + seed + i) for i in (0, 50)]
        square, copy = np.abs(normal((size,), DType.FLOAT32, 300 + seed)), poisoned((size,), element)
        tensors.append(AdamTensor(grad, *state, square, copy))
        right = [array.astype(np.float64) for array in (*state, square)]
        box = ((0, size),)
        inputs = (grad.astype(np.float64), np.float64(0.5), np.float64(np.float32(1e-2)))
        op_definition("adamw").run(Call(np, attrs, inputs, (), tuple(right), (box,), (), Workspace(np), 6))
        rights.append(right)
    launches = adamw_tensors(tensors, AdamShared(factor, lr, None, attrs), 6)
    assert [launch.grid[0] for launch in launches] == [36, 6]
    run(build(element), launches)
    for tensor, right in zip(tensors, rights, strict=True):
        for found, good in zip((tensor.param, tensor.mean, tensor.square), right, strict=True):
            assert error_per_row(found, good) <= TOLERANCES[DType.FLOAT32]
        assert tensor.copy is not None
        assert tensor.copy.tobytes() == tensor.param.astype(element.numpy).tobytes()


def update(figures: tuple[Array, Array], seed: int, number: int, decay: float = 0.1) -> Call:
    """An act of AdamW with the figures that updates share."""
    attrs = {"beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": decay}
    state = tuple(np.abs(normal((50 + seed,), DType.FLOAT32, seed + k)) for k in range(3))
    inputs = (normal((50 + seed,), DType.FLOAT32, seed + 9), *figures)
    return Call(np, attrs, inputs, (), state, (((0, 50 + seed),),) * 3, (), Workspace(np), number)


def numbered(launch: Launch, number: int) -> Launch:
    """A launch with what follows from the number of the act."""
    arguments = list(launch.arguments)
    for position, figure in launch.by_number:
        arguments[position] = figure(number)
    return replace(launch, arguments=tuple(arguments))


def test_updates_that_follow_one_another_are_one_launch() -> None:
    """Of one step and with one set of attributes, up to as many as a launch has room for; each as by itself."""
    figures = (np.float32([0.5]).reshape(()), np.float32([1e-2]).reshape(()))
    others = (np.float32([0.25]).reshape(()), figures[1])
    calls = [update(figures, seed, 4) for seed in range(30)]
    calls += [update(figures, 40, 5), update(figures, 41, 5, decay=0.0), update(others, 42, 5, decay=0.0)]
    waiting, groups = WaitingUpdates(), []
    for index, call in enumerate(calls):
        (one,) = adamw_update(call) or ()
        if not waiting.takes(one, call.number):
            groups.append((index, *waiting.take()))
        waiting.add(one, call.number)
    groups.append((len(calls), *waiting.take()))
    assert [(index, len(some), number) for index, some, number in groups] == [
        (30, 30, 4),
        (31, 1, 5),
        (32, 1, 5),
        (33, 1, 5),
    ]
    assert waiting.take()[0] == ()
    rights = [wanted(call, "adamw") for call in calls]
    launches = [
        adamw_tensors([one.tensor for one in some], some[0].shared, number - 1)  # of the step before: it is told later
        for _, some, number in groups
    ]
    assert list(map(len, launches)) == [2, 1, 1, 1]
    run(
        build(DType.FLOAT32),
        [numbered(one, number) for (_, _, number), some in zip(groups, launches, strict=True) for one in some],
    )
    for call, right in zip(calls, rights, strict=True):
        errors = [error_per_row(*pair) for pair in zip(call.updates, right, strict=True)]
        assert max(errors) <= TOLERANCES[DType.FLOAT32]


@pytest.mark.parametrize("element", ELEMENTS)
def test_a_label_that_is_no_class_makes_the_loss_no_number(element: DType) -> None:
    from executor.runtime.kernels.gpu.rows import cross_entropy, cross_entropy_grad

    attrs = {"label_smoothing": 0.0, "classes": 9, "ignore_index": -1}
    operands = (np.zeros((3, 9)), np.array([1, 9, -1]), np.zeros(3))
    loss = Trial("cross_entropy", operands, attrs=attrs).call(element)
    grad = Trial("cross_entropy_grad", operands, attrs=attrs).call(element)
    run(build(element), [*cross_entropy(loss), *cross_entropy_grad(grad)])
    assert np.isnan(loss.outputs[0].astype(np.float32))
    assert np.isnan(grad.outputs[0].astype(np.float32)).any(axis=-1).tolist() == [False, True, False]
