"""Losses as compositions: values by hand, gradients of the whole against finite differences."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from executor.op_validation.gradients import run_whole
from executor.runtime.kernels.numpy import NumpyKernels
from strategy.base.errors import InputError
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Role, Value
from strategy.nn.losses import cross_entropy, joint_loss, margin_softmax, mse_loss
from strategy.nn.tracer import Tensor, Tracer
from strategy.passes.autodiff import differentiate
from strategy.sbp.tensor import DType, Rate, TensorSpec

Array = npt.NDArray[Any]
Loss = Callable[[Mapping[str, Tensor]], tuple[Tensor, Tensor]]
KERNELS = NumpyKernels()


def compose(loss: Loss, values: Mapping[str, Array]) -> tuple[GraphBuilder, str, str]:
    """Trace a loss; floats are variables, so that they get gradients."""
    tracer = Tracer()
    for name, array in values.items():
        floats = array.dtype.kind == "f"
        spec = TensorSpec(array.shape, DType.FLOAT64 if floats else DType.INT32)
        role = (Rate.STEP, Role.VARIABLE, "zeros") if floats else (Rate.STEP, Role.INPUT)
        tracer.graph.declare(Value(name, spec, *role))
    total, count = loss({name: Tensor(tracer, name) for name in values})
    return tracer.graph, total.name, count.name


def check_gradients(loss: Loss, values: dict[str, Array]) -> None:
    builder, total, _ = compose(loss, values)
    gradients = differentiate(builder, total)
    graph = builder.build(loss=total)
    found = run_whole(graph, values, KERNELS)
    rng = np.random.default_rng(5)
    for name, terms in gradients.items():
        direction = rng.standard_normal(values[name].shape)

        def at(step: float, name: str = name, direction: Array = direction) -> float:
            moved = {**values, name: values[name] + step * direction}
            return float(run_whole(graph, moved, KERNELS)[total])

        slope = (at(1e-6) - at(-1e-6)) / 2e-6
        assert float(sum((found[term] * direction).sum() for term in terms)) == pytest.approx(slope, rel=1e-4)
    assert set(gradients) == {name for name, array in values.items() if array.dtype.kind == "f"}


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("ignored", [-100, 1])
def test_cross_entropy(smoothing: float, ignored: int) -> None:
    rng = np.random.default_rng(3)
    logits, labels = rng.standard_normal((4, 3, 5)), rng.integers(0, 5, (4, 3)).astype(np.int32)
    values: dict[str, Array] = {"logits": logits, "labels": labels}

    def loss(t: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return cross_entropy(t["logits"], t["labels"], ignore_index=ignored, label_smoothing=smoothing)

    builder, total, count = compose(loss, values)
    found = run_whole(builder.build(), values, KERNELS)
    log_p = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    target = (1 - smoothing) * np.eye(5)[labels] + smoothing / 5
    valid = labels != ignored
    assert float(found[total]) == pytest.approx(-(target * log_p).sum(axis=-1)[valid].sum(), rel=1e-12)
    assert float(found[count]) == valid.sum()
    check_gradients(loss, values)


def test_cross_entropy_survives_large_logits() -> None:
    values = {"logits": np.array([[1e4, 0.0, 0.0], [0.0, -1e4, 0.0]]), "labels": np.array([0, 1], np.int32)}
    builder, total, _ = compose(lambda t: cross_entropy(t["logits"], t["labels"]), values)
    assert float(run_whole(builder.build(), values, KERNELS)[total]) == pytest.approx(1e4 + np.log(2), rel=1e-9)


def test_a_weighed_cross_entropy_passes_its_weight_on() -> None:
    """As a part of a loss it is no longer what the walk begins at."""
    rng = np.random.default_rng(2)
    labels = np.array([0, 3, -100, 1, 2], np.int32)
    values = {"logits": rng.standard_normal((5, 4)), "weight": rng.standard_normal(()), "labels": labels}

    def loss(t: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        total, count = cross_entropy(t["logits"], t["labels"], label="main")
        return total.apply("loss", "mul", t["weight"]), count

    check_gradients(loss, values)


@pytest.mark.parametrize("label", [-1, 3])
def test_a_label_that_is_no_class_is_refused(label: int) -> None:
    values = {"logits": np.ones((2, 3)), "labels": np.array([0, label], np.int32)}
    builder, _, _ = compose(lambda t: cross_entropy(t["logits"], t["labels"]), values)
    with pytest.raises(InputError, match=rf"a label is no class \(got {label}, expected 0 to 2"):
        run_whole(builder.build(), values, KERNELS)


def test_mean_square_error() -> None:
    rng = np.random.default_rng(4)
    values: dict[str, Array] = {"x": rng.standard_normal((3, 4)), "y": rng.standard_normal((3, 4))}

    def loss(t: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return mse_loss(t["x"], t["y"])

    builder, total, count = compose(loss, values)
    found = run_whole(builder.build(), values, KERNELS)
    assert float(found[total]) == pytest.approx(((values["x"] - values["y"]) ** 2).sum())
    assert float(found[count]) == 12
    check_gradients(loss, values)


def test_margin_softmax() -> None:
    """ArcFace's formula, written out."""
    rng = np.random.default_rng(6)
    features, weight = rng.standard_normal((4, 3)), rng.standard_normal((3, 5))
    labels = np.array([0, 4, 2, 2], np.int32)
    values: dict[str, Array] = {"features": features, "weight": weight, "labels": labels}

    def loss(t: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return margin_softmax(t["features"], t["weight"], t["labels"], margin=0.3, scale=8.0)

    builder, total, _ = compose(loss, values)
    found = run_whole(builder.build(), values, KERNELS)
    unit = features / np.linalg.norm(features, axis=1, keepdims=True)
    cosine = unit @ (weight / np.linalg.norm(weight, axis=0))
    rows = np.arange(4)
    logits = 8.0 * cosine
    logits[rows, labels] = 8.0 * np.cos(np.arccos(cosine[rows, labels]) + 0.3)
    wanted = (np.log(np.exp(logits).sum(axis=1)) - logits[rows, labels]).sum()
    assert float(found[total]) == pytest.approx(wanted, rel=1e-9)
    check_gradients(loss, values)


def test_a_joint_loss_is_a_sum_with_shares() -> None:
    rng = np.random.default_rng(4)
    values = {
        "x": rng.standard_normal((6, 5)),
        "y": rng.standard_normal((6, 5)),
        "labels": np.array([1, 0, 4, -100, 2, 2], np.int32),
    }

    def joint(t: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        main, count = cross_entropy(t["x"], t["labels"], label="main")
        other, _ = cross_entropy(t["y"] + t["x"], t["labels"], label="other")
        return joint_loss(main, {"other": (other, 0.3), "again": (main, 0.5)}), count

    def by_operators(t: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        main, count = cross_entropy(t["x"], t["labels"], label="main")
        other, _ = cross_entropy(t["y"] + t["x"], t["labels"], label="other")
        return 1.5 * main + 0.3 * other, count

    found = []
    for loss in (joint, by_operators):
        check_gradients(loss, values)
        builder, total, count = compose(loss, values)
        figures = run_whole(builder.build(loss=total), values, KERNELS)
        assert float(figures[count]) == 5
        found.append(float(figures[total]))
        by_hand = 1.5 * float(figures["main"]) + 0.3 * float(figures["other"])
        assert found[-1] == pytest.approx(by_hand, rel=1e-12)
    assert found[0] == pytest.approx(found[1], rel=1e-12)
