"""The meaning of ops: against definitions written out, and whatever memory their outputs and scratch held before."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from strategy.base.errors import InputError
from strategy.graph.ops import REGISTRY, op_definition
from strategy.graph.ops.base import Workspace
from strategy.sbp.tensor import DType, TensorSpec
from tests.strategy.graph.single_op_graphs import ADAMW, SingleOpGraph, Tried, run_op, single_op_graphs

Array = npt.NDArray[Any]


def whole(
    case: SingleOpGraph | Tried,
    inputs: list[Array],
    updates: list[Array],
    *,
    number: int = 0,
    fill: float = np.nan,
    xp: Any = np,
) -> list[Array]:
    """Run an op on whole tensors; outputs start filled."""
    graph = case.graph()
    (op,) = graph.ops
    outputs = [np.full(spec.shape, fill) for spec in graph.specs(op.outputs)]
    boxes = tuple(
        [tuple((0, size) for size in spec.shape) for spec in graph.specs(names)] for names in (op.inputs, op.outputs)
    )
    run_op(graph, inputs, outputs, updates, (boxes[0], boxes[1]), number=number, workspace=Workspace(xp), xp=xp)
    return outputs


class Poison:
    """NumPy, except that memory which nobody has written holds a chosen figure."""

    def __init__(self, fill: float) -> None:
        self.fill = fill

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return np.full(shape, self.fill, dtype)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


@pytest.mark.parametrize("fill", [np.nan, -np.inf, 7.0])
@pytest.mark.parametrize("case", single_op_graphs(), ids=str)
def test_what_memory_held_before_does_not_matter(case: Tried, fill: float) -> None:
    clean_inputs, clean_updates = case.draw(np.random.default_rng(0))
    inputs, updates = case.draw(np.random.default_rng(0))
    wanted = [*whole(case, clean_inputs, clean_updates, fill=0.0, xp=Poison(0.0)), *clean_updates]
    found = [*whole(case, inputs, updates, fill=fill, xp=Poison(fill)), *updates]
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
        assert np.isfinite(one).all()


@pytest.mark.parametrize("case", single_op_graphs(), ids=str)
def test_inputs_are_left_alone_and_single_precision_stays_single(case: Tried) -> None:
    inputs, updates = case.draw(np.random.default_rng(0))
    single = [a.astype(np.float32) if a.dtype == np.float64 else a for a in inputs]
    variables = [a.astype(np.float32) for a in updates]
    before = [a.copy() for a in single]
    wanted = [*whole(case, inputs, updates), *updates]
    graph = case.graph()
    (op,) = graph.ops
    specs, outs = graph.specs(op.inputs), graph.specs(op.outputs)
    outputs = [np.full(spec.shape, np.nan, np.float32) for spec in outs]
    boxes = ([tuple((0, n) for n in s.shape) for s in specs], [tuple((0, n) for n in s.shape) for s in outs])
    workspace = Workspace(np)
    run_op(graph, single, outputs, variables, boxes, workspace=workspace)
    for one, other in zip(single, before, strict=True):
        np.testing.assert_array_equal(one, other)
    for found, exact in zip([*outputs, *variables], wanted, strict=True):
        np.testing.assert_allclose(found, exact, rtol=2e-4, atol=2e-4)
    scratch = [a.dtype for a in workspace.arrays.values()]
    assert np.dtype(np.float64) not in scratch


@pytest.mark.parametrize("kind", sorted(kind for kind, definition in REGISTRY.items() if definition.in_place))
def test_the_first_output_may_be_written_over_inputs_that_the_author_names(kind: str) -> None:
    tried = 0
    for case in (case for case in single_op_graphs() if case.kind == kind):
        graph = case.graph()
        (op,) = graph.ops
        specs, outs = graph.specs(op.inputs), graph.specs(op.outputs)
        boxes = ([tuple((0, n) for n in s.shape) for s in specs], [tuple((0, n) for n in s.shape) for s in outs])
        wanted = whole(case, *case.draw(np.random.default_rng(0)))
        for position in op_definition(kind).in_place:
            inputs, _ = case.draw(np.random.default_rng(0))
            alike = (specs[position].size, specs[position].dtype) == (outs[0].size, outs[0].dtype)
            if alike and specs[position].ragged is None:
                outputs = [inputs[position].reshape(outs[0].shape)]
                run_op(graph, inputs, outputs, [], boxes)
                np.testing.assert_array_equal(outputs[0], wanted[0])
                tried += 1
    assert tried or kind == "cast"


@pytest.mark.parametrize("case", single_op_graphs(), ids=str)
def test_scratch_is_kept_between_acts(case: Tried) -> None:
    graph = case.graph()
    (op,) = graph.ops
    specs, outs = graph.specs(op.inputs), graph.specs(op.outputs)
    boxes = ([tuple((0, n) for n in s.shape) for s in specs], [tuple((0, n) for n in s.shape) for s in outs])
    workspace = Workspace(np)
    inputs, updates = case.draw(np.random.default_rng(0))
    results, held = [], []
    for _ in range(2):
        outputs = [np.full(spec.shape, np.nan) for spec in outs]
        variables = [a.copy() for a in updates]
        run_op(graph, inputs, outputs, variables, boxes, workspace=workspace)
        results.append([*outputs, *variables])
        held.append({name: id(array) for name, array in workspace.arrays.items()})
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)
    assert held[0] == held[1]


@pytest.mark.parametrize("case", single_op_graphs(), ids=str)
def test_counts_of_flop_and_bytes_are_whole_and_not_negative(case: Tried) -> None:
    graph = case.graph()
    (op,) = graph.ops
    definition = op_definition(case.kind)
    operands = graph.specs(op.inputs), graph.specs(op.outputs)
    flop = definition.flop(*operands, op.attrs)
    assert isinstance(flop, int)
    assert flop >= 0
    assert definition.nbytes is None or definition.nbytes(*operands, op.attrs) > 0


def test_flop_of_products_is_twice_their_multiplications() -> None:
    for kind, x, w in (
        ("matmul", (3, 4, 5), (5, 7)),
        ("matmul_nt", (3, 4, 7), (5, 7)),
        ("matmul_tn", (3, 4, 5), (3, 4, 7)),
    ):
        graph = SingleOpGraph(kind, (x, w)).graph()
        (op,) = graph.ops
        assert op_definition(kind).flop(graph.specs(op.inputs), graph.specs(op.outputs), {}) == 2 * 3 * 4 * 5 * 7


def test_flop_of_attention_is_that_of_its_products() -> None:
    """Two forward: scores and mixing. Five backward: scores again, then dv, dp, dk and dq."""
    b, s, h, d = 2, 5, 3, 4
    product = 2 * b * h * s * s * d
    qkv, out, lse = (b, s, h, 3, d), (b, s, h, d), (b, h, s)
    for kind, inputs, products in (("attention", (qkv,), 2), ("attention_grad", (qkv, out, lse, out), 5)):
        graph = SingleOpGraph(kind, inputs, {"causal": 1}).graph()
        (op,) = graph.ops
        assert op_definition(kind).flop(graph.specs(op.inputs), graph.specs(op.outputs), {}) == products * product


def test_causal_attention_against_a_loop() -> None:
    b, s, h, d = 2, 5, 3, 4
    case = SingleOpGraph("attention", ((b, s, h, 3, d),), {"causal": 1})
    (qkv,), _ = case.draw(np.random.default_rng(1))
    out, lse = whole(case, [qkv], [])
    for i, row, head in itertools.product(range(b), range(s), range(h)):
        scores = [float(qkv[i, row, head, 0] @ qkv[i, past, head, 1]) / math.sqrt(d) for past in range(row + 1)]
        total = sum(math.exp(score) for score in scores)
        mixed = sum(math.exp(scores[past]) / total * qkv[i, past, head, 2] for past in range(row + 1))
        np.testing.assert_allclose(out[i, row, head], mixed, rtol=1e-12)
        assert lse[i, head, row] == pytest.approx(math.log(total), rel=1e-12)


def test_attention_survives_large_scores() -> None:
    case = SingleOpGraph("attention", ((1, 4, 1, 3, 2),), {"causal": 1})
    (qkv,), _ = case.draw(np.random.default_rng(2))
    out, lse = whole(case, [qkv * 1e3], [])
    assert np.isfinite(out).all()
    assert np.isfinite(lse).all()


def test_cross_entropy_against_log_softmax() -> None:
    attrs = {"ignore_index": -100, "label_smoothing": 0.0, "classes": 7}
    case = SingleOpGraph("cross_entropy", ((3, 4, 7), (3, 4), (3, 4)), attrs, integers=((1, 7),))
    (logits, labels, _), _ = case.draw(np.random.default_rng(3))
    lse = np.log(np.exp(logits).sum(axis=-1))
    loss, count = whole(case, [logits, labels, lse], [])
    log_softmax = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    wanted = -sum(log_softmax[i, j, labels[i, j]] for i in range(3) for j in range(4))
    assert float(loss) == pytest.approx(wanted, rel=1e-12)
    assert float(count) == 12


def test_layer_norm_against_its_definition() -> None:
    case = SingleOpGraph("layer_norm", ((3, 6), (6,), (6,)))
    (x, gamma, beta), _ = case.draw(np.random.default_rng(4))
    y, mean, rstd = whole(case, [x, gamma, beta], [])
    for i in range(3):
        centred = x[i] - x[i].mean()
        np.testing.assert_allclose(y[i], centred / math.sqrt(x[i].var() + 1e-5) * gamma + beta, rtol=1e-12)
    np.testing.assert_allclose(mean, x.mean(axis=-1), rtol=1e-12)
    np.testing.assert_allclose(rstd, 1 / np.sqrt(x.var(axis=-1) + 1e-5), rtol=1e-12)


def test_gelu_against_the_tanh_formula() -> None:
    x = np.linspace(-6, 6, 25)
    (y,) = whole(SingleOpGraph("gelu", ((25,),)), [x], [])
    wanted = [0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))) for v in x.tolist()]
    np.testing.assert_allclose(y, wanted, rtol=1e-12, atol=1e-15)


def test_embedding_takes_rows_and_its_gradient_adds_repeated_ones() -> None:
    table = np.arange(10.0).reshape(5, 2)
    ids = np.array([[4, 1], [1, 1]], np.int32)
    (out,) = whole(SingleOpGraph("gather", ((5, 2), (2, 2)), {"axis": 0}, integers=((1, 5),)), [table, ids], [])
    np.testing.assert_array_equal(out, table[ids])
    dy = np.ones((2, 2, 2))
    case = SingleOpGraph("gather_grad", ((2, 2), (2, 2, 2)), {"axis": 0, "rows": 5}, integers=((0, 5),))
    (dtable,) = whole(case, [ids, dy], [])
    np.testing.assert_array_equal(dtable, [[0, 0], [3, 3], [0, 0], [0, 0], [1, 1]])


def test_adamw_against_a_scalar_textbook_loop() -> None:
    case = SingleOpGraph("adamw", ((2, 3), (), ()), ADAMW, updates=((2, 3),) * 3)
    rng = np.random.default_rng(5)
    start = rng.standard_normal((2, 3))
    updates: list[Array] = [start.copy(), np.zeros((2, 3)), np.zeros((2, 3))]
    history = rng.standard_normal((4, 2, 3))
    for number in range(4):
        whole(case, [history[number], np.asarray(0.5), np.asarray(0.1)], updates, number=number)
    lr, beta1, beta2, epsilon, decay = 0.1, 0.9, 0.95, 1e-8, 0.1
    for i, j in itertools.product(range(2), range(3)):
        theta, m, v = float(start[i, j]), 0.0, 0.0
        for t in range(1, 5):
            g = 0.5 * float(history[t - 1, i, j])
            m = beta1 * m + (1 - beta1) * g
            v = beta2 * v + (1 - beta2) * g * g
            m_hat, v_hat = m / (1 - beta1**t), v / (1 - beta2**t)
            theta = theta - lr * (m_hat / (math.sqrt(v_hat) + epsilon) + decay * theta)
        assert updates[0][i, j] == pytest.approx(theta, rel=1e-12)
        assert updates[1][i, j] == pytest.approx(m, rel=1e-12)
        assert updates[2][i, j] == pytest.approx(v, rel=1e-12)


@pytest.mark.parametrize(
    ("square", "count", "limit", "factor"),
    [(16.0, 2.0, 0.5, 0.125), (16.0, 2.0, 2.0, 0.5), (16.0, 2.0, 9.0, 0.5), (0.0, 2.0, 1.0, 0.5)],
)
def test_clip_scale_divides_by_the_count_and_then_clips(
    square: float, count: float, limit: float, factor: float
) -> None:
    case = SingleOpGraph("clip_scale", ((), ()), {"max_norm": limit})
    found, norm = whole(case, [np.asarray(square), np.asarray(count)], [])
    assert float(norm) == math.sqrt(square) / count
    assert float(found) == factor


LOSS = {"ignore_index": -100, "label_smoothing": 0.0, "classes": 3}
REFUSED = {
    "inner dims differ": ("matmul", ((2, 3), (4, 5)), {}),
    "a vector times a matrix": ("matmul", ((3,), (3, 5)), {}),
    "matmul_nt": ("matmul_nt", ((2, 3), (5, 4)), {}),
    "matmul_nt with a vector": ("matmul_nt", ((2, 3), (3,)), {}),
    "matmul_tn": ("matmul_tn", ((2, 3), (3, 3)), {}),
    "matmul_tn with vectors": ("matmul_tn", ((3,), (3,)), {}),
    "add of dims that differ": ("add", ((2, 3), (2, 2)), {}),
    "add_n": ("add_n", ((3,), (2,)), {}),
    "gelu_grad": ("gelu_grad", ((3,), (2,)), {}),
    "layer_norm": ("layer_norm", ((2, 3), (2,), (3,)), {}),
    "attention": ("attention", ((2, 3, 4, 4),), {"causal": 1}),
    "attention with two packed": ("attention", ((2, 3, 4, 2, 4),), {"causal": 1}),
    "gather with float indices": ("gather", ((3, 4), (2,)), {"axis": 0}),
    "cross_entropy with float labels": ("cross_entropy", ((2, 3), (2,), (2,)), LOSS),
    "cross_entropy": ("cross_entropy", ((2, 3), (3,), (2,)), LOSS),
    "reshape": ("reshape", ((2, 3),), {"shape": (5,)}),
    "transpose": ("transpose", ((2, 3),), {"perm": (0, 0)}),
    "reduce_sum of a dim that is not there": ("reduce_sum", ((2, 3),), {"axes": (2,), "keepdims": 0}),
    "reduce_sum of no dims": ("reduce_sum", ((2, 3),), {"axes": "one", "keepdims": 0}),
    "reshape to one number": ("reshape", ((2, 3),), {"shape": 6}),
    "adamw": ("adamw", ((2, 3), ()), ADAMW),
}


@pytest.mark.parametrize(("kind", "inputs", "attrs"), REFUSED.values(), ids=REFUSED)
def test_shapes_that_do_not_compose_are_refused(kind: str, inputs: Any, attrs: Any) -> None:
    integers = ((1, 2),) if kind == "cross_entropy" and inputs[1] == (3,) else ()
    with pytest.raises(InputError, match=r"op op \(x0") as caught:
        SingleOpGraph(kind, inputs, attrs, integers=integers).graph()
    assert "got" in str(caught.value)
    assert "expected" in str(caught.value)


def test_mixed_dtypes_are_refused() -> None:
    one, other = TensorSpec((2, 2), DType.FLOAT32), TensorSpec((2, 2), DType.FLOAT64)
    for kind in ("matmul", "add", "add_n"):
        with pytest.raises(InputError, match=r"float32.*float64|differ"):
            op_definition(kind).infer((one, other), (), {})


def test_an_unknown_kind_gets_a_hint() -> None:
    with pytest.raises(InputError, match="did you mean 'matmul'"):
        op_definition("matmull")
