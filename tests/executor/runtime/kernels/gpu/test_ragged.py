"""Kernels on ragged rows read on the device how many there are; run on the host, they give what the op means."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from executor.runtime.kernels.gpu.launch import Launch
from executor.runtime.kernels.gpu.program import ELEMENTS
from executor.runtime.kernels.gpu.table import ON_ROWS, launches_of, work_of
from strategy.graph.ops import op_definition
from strategy.sbp.tensor import DType
from tests.support.cuda_on_host.device import build, run
from tests.support.cuda_on_host.row_trials import (
    RowTrial,
    all_to_one,
    figures,
    of_a_piece,
    row_kinds,
    row_trials,
    untouched,
)
from tests.support.cuda_on_host.trials import TOLERANCES, error_per_row, wanted
from tests.support.long_parameters import long_but

BY_ELEMENT = [(kind, element) for kind in row_kinds() for element in ELEMENTS]
EVERY_RUN = [
    at
    for at, (kind, element) in enumerate(BY_ELEMENT)
    if element is (DType.BFLOAT16 if kind.startswith("grouped") or kind == "dropless_dispatch" else DType.FLOAT32)
]
"""Halves have kernels of their own in products alone; the other of both halves differs by how it is read.

In float32 everything is run twice, in both orders: what takes longest is so in the long run alone."""


def launches(kind: str, trial: RowTrial, element: DType) -> tuple[Launch, ...]:
    found = launches_of(kind, trial.call(element))
    assert found is not None
    return found


def test_every_kind_with_kernels_on_rows_is_tried() -> None:
    assert set(row_kinds()) == set(ON_ROWS)


@pytest.mark.parametrize(("kind", "element"), long_but(BY_ELEMENT, *EVERY_RUN))
def test_kernels_mean_what_the_op_means_on_rows(kind: str, element: DType) -> None:
    program, forwards = build(element), list[bytes]()
    for reverse in (False, True) if element == DType.FLOAT32 else (False,):
        calls = [trial.call(element) for trial in row_trials(kind)]
        right = [[part for piece in wanted(call, kind) for part in figures(piece)] for call in calls]
        some = [launches_of(kind, call) for call in calls]
        assert all(some)
        run(program, [launch for each in some for launch in each or ()], reverse=reverse)
        for call, good in zip(calls, right, strict=True):
            assert all(map(untouched, call.outputs))
            found = [part for piece in call.outputs for part in figures(piece)]
            errors = [error_per_row(*pair) for pair in zip(found, good, strict=True) if pair[1].size]
            assert [one.shape for one in found] == [one.shape for one in good]
            assert max(errors) <= TOLERANCES[element], errors
        bits = [part.tobytes() for call in calls for piece in call.outputs for part in figures(piece)]
        assert not forwards or bits == forwards
        forwards = bits


OVER = [(kind, position) for kind in row_kinds() for position in op_definition(kind).in_place]


@pytest.mark.parametrize(("kind", "position"), OVER)
def test_rows_may_be_written_over_an_operands(kind: str, position: int) -> None:
    program = build(DType.FLOAT32)
    calls = [trial.call(DType.FLOAT32) for trial in row_trials(kind) if len(trial.inputs) > position]
    right = [wanted(call, kind)[0] for call in calls]
    over = [replace(call, outputs=(call.inputs[position],)) for call in calls]
    run(program, [launch for call in over for launch in launches_of(kind, call) or ()])
    for call, good in zip(over, right, strict=True):
        pairs = zip(figures(call.outputs[0]), figures(good), strict=True)
        assert max(error_per_row(*pair) for pair in pairs if pair[1].size) <= TOLERANCES[DType.FLOAT32]


def test_more_rows_than_room_are_no_numbers() -> None:
    """The host does not know, and goes on; the loss that comes of them is none either."""
    routing = replace(all_to_one(np.random.default_rng(0)), chosen=np.full((1, 2000, 1), 1, np.int32), room=1.0)
    routing = replace(routing, dims=(3, 1, 2000), box=((1, 2), (0, 1), (0, 2000)))
    x = np.ones((1, 2000, 8))
    call = RowTrial("dropless_dispatch", routing, (x, routing.chosen), (), (8,)).call(DType.FLOAT32)
    assert len(call.outputs[0].room) == 1024
    run(build(DType.FLOAT32), launches_of("dropless_dispatch", call) or ())
    assert call.outputs[0].count == 1024
    assert call.outputs[0].cells.tolist() == list(range(2000, 3024))
    assert np.isnan(call.outputs[0].rows).all()


def test_what_no_kernel_takes_of_rows_is_left_to_the_array_module() -> None:
    (trial, *_), routing = row_trials("silu"), of_a_piece(np.random.default_rng(0))
    assert work_of("silu", trial.call(DType.BFLOAT16)) is not None
    assert work_of("relu", trial.call(DType.BFLOAT16)) is None
    assert work_of("silu", trial.call(DType.FLOAT64)) is None
    mixed = trial.call(DType.BFLOAT16)
    assert work_of("silu", replace(mixed, outputs=(routing.rows(77, DType.FLOAT32),))) is None
    terms = trial.call(DType.FLOAT32)
    assert work_of("add_n", replace(terms, inputs=terms.inputs * 33)) is None
