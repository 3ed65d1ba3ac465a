"""Losses against definitions written out, and their gradients against finite differences, whole and class-split."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from strategy.autodiff import differentiate
from strategy.builder import GraphBuilder
from strategy.graph import Graph, Role, Value
from strategy.losses import cross_entropy, margin_softmax, mse_loss
from strategy.sbp import B, P, Split
from strategy.signature import op_signatures
from strategy.tensor import DType, Rate, TensorSpec
from strategy.tracer import Tensor, Tracer
from tests.reference import run_graph

Array = npt.NDArray[Any]
Loss = Callable[..., tuple[Tensor, Tensor]]


def built(loss: Loss, variables: Mapping[str, Array], inputs: Mapping[str, Array], **options: Any) -> Any:
    """The graph of a loss of tensors in this order, with the gradients of its variables by name."""
    builder = GraphBuilder()
    tracer = Tracer(builder)
    for name, array in {**variables, **inputs}.items():
        spec = TensorSpec(array.shape, DType(str(array.dtype)))
        trained = name in variables
        role, rate = (Role.VARIABLE, Rate.STEP) if trained else (Role.INPUT, Rate.MICRO_BATCH)
        builder.declare(Value(name, spec, rate, role, "zeros" if trained else ""))
    total, count = loss(*(Tensor(tracer, name) for name in (*variables, *inputs)), **options)
    tracer.check()
    gradients = {
        name: terms[0] if len(terms) == 1 else builder.add(f"{name}:grad", "add_n", terms)[0]
        for name, terms in differentiate(builder, total.name).items()
    }
    return builder.build(loss=total.name), gradients, count.name


def evaluate(graph: Graph, variables: Mapping[str, Array], inputs: Mapping[str, Array]) -> dict[str, Array]:
    return run_graph(graph, [inputs], dict(variables))


def check_gradients(
    graph: Graph, gradients: Mapping[str, str], variables: Mapping[str, Array], inputs: Mapping[str, Array]
) -> None:
    values = evaluate(graph, variables, inputs)
    rng = np.random.default_rng(5)
    for name, at in variables.items():
        for _ in range(4):
            direction = rng.standard_normal(at.shape)
            ends = [
                float(evaluate(graph, {**variables, name: at + step * direction}, inputs)[graph.loss])
                for step in (1e-6, -1e-6)
            ]
            found = float((values[gradients[name]] * direction).sum())
            assert found == pytest.approx((ends[0] - ends[1]) / 2e-6, rel=1e-4, abs=1e-6)


LABELS = np.array([[4, -100, 0], [6, 2, -100]], np.int32)


def smoothed(logits: Array, labels: Array, smoothing: float) -> tuple[float, int]:
    """Row by row from the definition: the cross-entropy to the smoothed target, in rows of a label that is a class."""
    total, count, classes = 0.0, 0, logits.shape[-1]
    for cell in np.ndindex(labels.shape):
        if labels[cell] >= 0:
            odds = np.exp(logits[cell]) / np.exp(logits[cell]).sum()
            target = np.full(classes, smoothing / classes)
            target[labels[cell]] += 1 - smoothing
            total -= float(target @ np.log(odds))
            count += 1
    return total, count


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_against_its_definition(smoothing: float) -> None:
    logits = np.random.default_rng(0).standard_normal((2, 3, 7))
    inputs = {"labels": LABELS}
    graph, gradients, count = built(cross_entropy, {"logits": logits}, inputs, label_smoothing=smoothing)
    values = evaluate(graph, {"logits": logits}, inputs)
    wanted, valid = smoothed(logits, LABELS, smoothing)
    assert float(values[graph.loss]) == pytest.approx(wanted, rel=1e-12)
    assert float(values[count]) == valid == 4
    assert not values[gradients["logits"]][LABELS < 0].any()
    check_gradients(graph, gradients, {"logits": logits}, inputs)


def test_a_class_can_be_the_one_that_is_ignored() -> None:
    logits = np.random.default_rng(1).standard_normal((4, 3))
    labels = np.array([1, 0, 1, 2], np.int32)
    graph, gradients, count = built(cross_entropy, {"logits": logits}, {"labels": labels}, ignore_index=1)
    values = evaluate(graph, {"logits": logits}, {"labels": labels})
    wanted, _ = smoothed(logits, np.where(labels == 1, -1, labels), 0.0)
    assert float(values[graph.loss]) == pytest.approx(wanted, rel=1e-12)
    assert float(values[count]) == 2
    assert not values[gradients["logits"]][labels == 1].any()


def test_cross_entropy_survives_large_logits() -> None:
    logits = np.array([[1e4, 0.0, 0.0], [0.0, -1e4, 0.0]])
    labels = np.array([0, 1], np.int32)
    graph, gradients, _ = built(cross_entropy, {"logits": logits}, {"labels": labels})
    values = evaluate(graph, {"logits": logits}, {"labels": labels})
    assert float(values[graph.loss]) == pytest.approx(1e4 + math.log(2), rel=1e-9)
    assert np.isfinite(values[gradients["logits"]]).all()


def test_a_weighed_cross_entropy_passes_its_weight_on() -> None:
    """As a part of a loss it is no longer what the walk begins at."""
    rng = np.random.default_rng(2)
    variables = {"logits": rng.standard_normal((5, 4)), "weight": rng.standard_normal(())}
    inputs = {"labels": np.array([0, 3, -100, 1, 2], np.int32)}

    def loss(logits: Tensor, weight: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        total, count = cross_entropy(logits, labels, label="main")
        return total.apply("loss", "mul", weight), count

    graph, gradients, _ = built(loss, variables, inputs)
    check_gradients(graph, gradients, variables, inputs)


def test_split_classes_need_no_gathered_logits() -> None:
    """Every op of the loss that reads logits or writes their gradient does so with the classes split."""
    logits = np.zeros((4, 6))
    graph, _, _ = built(cross_entropy, {"logits": logits}, {"labels": np.zeros(4, np.int32)})
    touched = [op for op in graph.ops if any(graph.values[n].spec.shape == (4, 6) for n in (*op.inputs, *op.outputs))]
    assert [op.kind for op in touched] == ["reduce_max", "sum_exp", "cross_entropy", "cross_entropy_grad"]
    for op in touched:
        wide = [graph.values[name].spec.shape == (4, 6) for name in (*op.inputs, *op.outputs)]
        split = [
            signature
            for signature in op_signatures(graph, op, (2,))
            if all((nd == (Split(1),)) == is_wide for nd, is_wide in zip(signature.layouts, wide, strict=True))
            and all(nd == (B,) for nd, is_wide in zip(signature.inputs, wide, strict=False) if not is_wide)
        ]
        assert len(split) == 1, op.kind
    final = next(op for op in graph.ops if op.kind == "cross_entropy")
    assert ((P,), (P,)) in [s.outputs for s in op_signatures(graph, final, (2,)) if s.inputs[0] == (Split(1),)]


def test_mse_is_the_sum_of_squares_and_counts_elements() -> None:
    rng = np.random.default_rng(3)
    variables, inputs = {"x": rng.standard_normal((3, 5))}, {"target": rng.standard_normal((3, 5))}
    graph, gradients, count = built(mse_loss, variables, inputs)
    values = evaluate(graph, variables, inputs)
    assert float(values[graph.loss]) == pytest.approx(((variables["x"] - inputs["target"]) ** 2).sum())
    assert float(values[count]) == 15
    check_gradients(graph, gradients, variables, inputs)


def test_margin_softmax_against_angles() -> None:
    rng = np.random.default_rng(4)
    variables = {"features": rng.standard_normal((4, 3)), "weight": rng.standard_normal((3, 5))}
    inputs = {"labels": np.array([0, 4, 2, 2], np.int32)}
    graph, gradients, count = built(margin_softmax, variables, inputs, margin=0.4, scale=8.0)
    values = evaluate(graph, variables, inputs)
    wanted = 0.0
    for row, label in enumerate(inputs["labels"]):
        logits = []
        for column in range(5):
            one, other = variables["features"][row], variables["weight"][:, column]
            angle = math.acos(float(one @ other) / math.sqrt(float(one @ one) * float(other @ other)))
            moved = angle + 0.4 * (column == label)
            beyond = math.cos(angle) - 0.4 * math.sin(0.4)
            logits.append(8 * (math.cos(moved) if moved < math.pi else beyond))
        wanted += math.log(sum(map(math.exp, logits))) - logits[label]
    assert float(values[graph.loss]) == pytest.approx(wanted, rel=1e-9)
    assert float(values[count]) == 4
    check_gradients(graph, gradients, variables, inputs)
