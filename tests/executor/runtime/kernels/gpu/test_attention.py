"""Attention by cuDNN: which acts it does, what its graphs are, and that they mean what the op means; on the host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from executor.runtime.kernels.gpu.attention import AttentionAct, CausalMask
from executor.runtime.kernels.gpu.cudnn import AttentionPlans, attention_graph, import_cudnn
from executor.runtime.kernels.gpu.table import ATTENTION, work_of
from strategy.base.errors import EnvironmentLacks
from strategy.graph.graph import Attrs
from strategy.graph.ops.base import Call, Workspace
from strategy.sbp.tensor import Box, DType, Shape
from tests.support.cuda_on_host.host_cudnn import WORKSPACE_NBYTES, HostCudnn
from tests.support.cuda_on_host.trials import TOLERANCES, Trial, error_per_row, wanted

GOLDEN = Path(__file__).parent / "attention.txt"
STREAM = 7
HALVES = (DType.BFLOAT16, DType.FLOAT16)
CAUSAL: Attrs = {"causal": 1, "group": 1}
LATE: tuple[Box, ...] = (((0, 2), (4, 7), (0, 2), (0, 8)), *[((0, 2), (0, 7), (0, 2), (0, 8))] * 2)
"""The last three of seven queries."""


def boxed(trial: Trial, boxes: tuple[Box, ...]) -> Trial:
    return replace(trial, input_boxes=boxes)


def forward() -> Iterator[Trial]:
    """Packed and separate, causal and not, grouped and not; queries behind others."""
    rng = np.random.default_rng(1)

    def normal(*shape: int) -> np.ndarray:
        return rng.standard_normal(shape)

    yield Trial("attention", (normal(2, 5, 3, 3, 8),), attrs={"causal": 1})
    yield Trial("attention", (normal(2, 5, 1, 4, 8),), attrs={"causal": 0})
    yield Trial(
        "attention", (normal(2, 6, 4, 8), normal(2, 5, 2, 8), normal(2, 5, 2, 8)), attrs={"causal": 0, "group": 2}
    )
    yield Trial("attention", tuple(normal(2, 5, 3, 16) for _ in range(3)), attrs={**CAUSAL, "scale": 0.3})
    late = Trial("attention", (normal(2, 3, 2, 8), normal(2, 7, 2, 8), normal(2, 7, 2, 8)), attrs=CAUSAL)
    yield boxed(replace(late, results=((2, 3, 2, 8), (2, 2, 3))), LATE)


def call_of(trial: Trial, element: DType) -> Call:
    """The statistics of a half stay in float32, whatever the results' shapes were given as."""
    call = trial.call(element)
    if trial.results is None or len(call.outputs) != 2:
        return call
    out, lse = call.outputs
    return replace(call, outputs=(out, np.full(lse.shape, np.nan, np.float32)))


def backward(trial: Trial, element: DType) -> Trial:
    """The gradient's operands, from what the forward pass gives."""
    call = call_of(trial, element)
    out, lse = wanted(call, "attention")
    dout = np.random.default_rng(2).standard_normal(out.shape)
    position = len(trial.inputs) + 1
    shapes = None if trial.results is None else tuple(array.shape for array in trial.inputs)
    boxes = None if trial.input_boxes is None else (*trial.input_boxes, *[trial.input_boxes[0]] * 3)
    operands = (*trial.inputs, out, lse, dout)
    return replace(trial, kind="attention_grad", inputs=operands, wide=(position,), results=shapes, input_boxes=boxes)


def calls(element: DType) -> Iterator[tuple[str, Call]]:
    for trial in forward():
        yield "attention", call_of(trial, element)
        yield "attention_grad", backward(trial, element).call(element)


def acts(kind: str, call: Call) -> tuple[AttentionAct, ...]:
    work = work_of(kind, call)
    assert work is not None
    return tuple(one for one in work if isinstance(one, AttentionAct))


@pytest.mark.parametrize("element", HALVES)
def test_graphs_mean_what_the_op_means(element: DType) -> None:
    plans = AttentionPlans(HostCudnn())
    for kind, call in calls(element):
        right = wanted(call, kind)
        for act in acts(kind, call):
            assert plans.takes(act)
            plans.bind(act, Workspace(np))(STREAM)
        errors = [error_per_row(*pair) for pair in zip(call.outputs, right, strict=True)]
        assert max(errors) <= TOLERANCES[element], (kind, errors)


def test_graphs_are_as_recorded() -> None:
    """Write the file anew by running this module."""
    assert recorded() == GOLDEN.read_text()


def recorded() -> str:
    library, lines = HostCudnn(), []
    plans = AttentionPlans(library)
    for kind, call in calls(DType.BFLOAT16):
        for act in acts(kind, call):
            before = len(library.calls)
            plans.takes(act)
            lines += [f"{kind}: {line}" for line in library.calls[before:]]
    return "\n".join(lines) + "\n"


def test_the_frontend_takes_the_graphs() -> None:
    """Its own checks of dims, strides and types, which need no device."""
    try:
        library = import_cudnn()
    except EnvironmentLacks as error:
        pytest.skip(str(error))
    for element in HALVES:
        for kind, call in calls(element):
            for act in acts(kind, call):
                attention_graph(library, act).validate()


def test_a_graph_is_built_once_and_runs_on_the_stream_that_is_given() -> None:
    library = HostCudnn()
    plans, scratch = AttentionPlans(library), Workspace(np)
    for _ in range(3):
        for act in acts("attention", call_of(next(forward()), DType.BFLOAT16)):
            assert plans.takes(act)
            plans.bind(act, scratch)(STREAM)
    assert len(library.calls) == 1
    assert library.streams == [STREAM] * 3
    assert [array.nbytes for array in scratch.arrays.values()] == [WORKSPACE_NBYTES]


def test_what_cudnn_has_no_kernel_for_is_said_once() -> None:
    library = HostCudnn()
    library.refuses = True
    plans = AttentionPlans(library)
    (act,) = acts("attention", call_of(next(forward()), DType.FLOAT16))
    assert [plans.takes(act), plans.takes(act)] == [False, False]
    assert plans.refused == ["q[2, 3, 5, 8] forward: no engine"]
    with pytest.raises(EnvironmentLacks):
        plans.bind(act, Workspace(np))(STREAM)


def test_masks_are_by_the_corner_that_the_diagonal_starts_from() -> None:
    masks = [acts("attention", call_of(trial, DType.BFLOAT16))[0].mask for trial in forward()]
    assert masks == [CausalMask.FIRST, CausalMask.NONE, CausalMask.NONE, CausalMask.FIRST, CausalMask.LAST]


def one(shapes: tuple[Shape, ...], attrs: Attrs, boxes: tuple[Box, ...] | None = None) -> Trial:
    results = (shapes[0], (shapes[0][0], shapes[0][2], shapes[0][1])) if boxes else None
    return Trial("attention", tuple(map(np.ones, shapes)), attrs=attrs, input_boxes=boxes, results=results)


EVEN = ((2, 7, 2, 8),) * 3
LEFT = {
    "a window": one(EVEN, {**CAUSAL, "window": 3}),
    "a cap": one(EVEN, {**CAUSAL, "softcap": 2.0}),
    "sinks": one((*EVEN, (2,)), {**CAUSAL, "sinks": 1}),
    "hidden keys": Trial("attention", (*map(np.ones, EVEN), np.ones((2, 7), np.int32)), attrs=CAUSAL),
    "a width of 6": one(((2, 7, 2, 6),) * 3, CAUSAL),
    "a width of 136": one(((2, 7, 2, 136),) * 3, CAUSAL),
    "packed groups of several queries": one(((2, 7, 2, 4, 8),), {"causal": 1}),
    "queries out of the middle": one(((2, 3, 2, 8), *EVEN[1:]), CAUSAL, (((0, 2), (2, 5), (0, 2), (0, 8)), *LATE[1:])),
    "query heads that share a key head with those of another rank": one(
        ((2, 7, 3, 8), (2, 7, 2, 8), (2, 7, 2, 8)),
        {"causal": 0, "group": 2},
        (((0, 2), (0, 7), (1, 4), (0, 8)), *[((0, 2), (0, 7), (0, 2), (0, 8))] * 2),
    ),
}


@pytest.mark.parametrize("trial", LEFT.values(), ids=LEFT)
def test_what_is_left_to_the_array_module(trial: Trial) -> None:
    assert work_of("attention", call_of(trial, DType.BFLOAT16)) is None
    assert work_of("attention", one(EVEN, CAUSAL).call(DType.FLOAT32)) is None


def test_kinds_of_attention_are_tried() -> None:
    assert {kind for kind, _ in calls(DType.BFLOAT16)} == set(ATTENTION)


def test_work_of_attention_is_counted() -> None:
    """Two products forward, five backward; a causal mask leaves half of the pairs."""
    kinds = dict(calls(DType.BFLOAT16))
    forward_act, backward_act = (acts(kind, kinds[kind])[0] for kind in ("attention", "attention_grad"))
    assert forward_act.flop == 2 * 2 * (2 * 2 * 3 * 7 * 8) // 2
    assert 2 * backward_act.flop == 5 * forward_act.flop
    assert forward_act.nbytes == 2 * (2 * 2 * 3 * 2 * 8) + 2 * (2 * 2 * 7 * 2 * 8) + 4 * 2 * 2 * 3


if __name__ == "__main__":
    GOLDEN.write_text(recorded())
