"""Every kernel, run on the host from its own source, gives what its op means; in either order the same bits."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from executor.runtime.kernels.gpu.program import ELEMENTS
from executor.runtime.kernels.gpu.table import LAUNCHES, launches_of
from strategy.graph.ops import op_definition
from strategy.sbp.tensor import DType
from tests.support.cuda_on_host.device import build, run
from tests.support.cuda_on_host.trials import TOLERANCES, error_per_row, kinds, trials, wanted
from tests.support.long_parameters import long_but

BY_ELEMENT = [(kind, element) for kind in kinds() for element in ELEMENTS if kind != "adamw" or not element.is_half]
"""The op adamw has parameters in float32; gradients in halves are in test_fused.py."""
IN_TURN = dict(zip(kinds(), itertools.cycle(ELEMENTS))) | {"adamw": DType.FLOAT32}
IN_TURN |= dict.fromkeys(("gather_grad", "cross_entropy", "cross_entropy_grad", "layer_norm_grad"), DType.FLOAT16)
"""Kind -> of what its elements are in every run: each dtype in turn, float16 where blocks take longest."""
EVERY_RUN = [at for at, (kind, element) in enumerate(BY_ELEMENT) if element is IN_TURN[kind]]


def test_every_kind_with_kernels_is_tried() -> None:
    """Casts, those to codes too, have tests of their own: two dtypes each."""
    assert set(kinds()) == set(LAUNCHES) - {"cast", "quantize"}


@pytest.mark.parametrize(("kind", "element"), long_but(BY_ELEMENT, *EVERY_RUN))
def test_kernels_mean_what_the_op_means(kind: str, element: DType) -> None:
    program, forwards = build(element), [[b""]]
    for reverse in (False, True) if element == DType.FLOAT32 else (False,):
        calls = [trial.call(element) for trial in trials(kind)]
        right = [wanted(call, kind) for call in calls]
        launches = [launches_of(kind, call) for call in calls]
        assert all(launches)
        run(program, [launch for some in launches for launch in some or ()], reverse=reverse)
        found = [[*call.outputs, *call.updates] for call in calls]
        errors = [[error_per_row(*pair) for pair in zip(*both, strict=True)] for both in zip(found, right, strict=True)]
        assert max(max(some) for some in errors) <= TOLERANCES[element], errors
        if reverse:
            assert [[array.tobytes() for array in some] for some in found] == forwards
        forwards = [[array.tobytes() for array in some] for some in found]


OVER = [(kind, position) for kind in kinds() for position in op_definition(kind).in_place]


@pytest.mark.parametrize(("kind", "position"), OVER)
def test_a_result_may_be_written_over_an_operand(kind: str, position: int) -> None:
    """Where the op says so: an element is read before it is written, and not after."""
    program = build(DType.FLOAT32)
    for reverse in (False, True):
        calls = [trial.call(DType.FLOAT32) for trial in trials(kind)]
        calls = [call for call in calls if call.inputs[position].size == call.outputs[0].size]
        right = [wanted(call, kind)[0] for call in calls]
        over = [
            replace(call, outputs=(call.inputs[position].reshape(call.outputs[0].shape), *call.outputs[1:]))
            for call in calls
        ]
        run(program, [launch for call in over for launch in launches_of(kind, call) or ()], reverse=reverse)
        errors = [error_per_row(call.outputs[0], good) for call, good in zip(over, right, strict=True)]
        assert max(errors) <= TOLERANCES[DType.FLOAT32]
