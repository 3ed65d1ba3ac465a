"""Scratch of a device: what acts ask for is what was declared, where it lies, and that no more is given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.op_validation.signatures import try_listed
from executor.op_validation.subject import subjects_of
from executor.runtime.kernels.bound_act import BoundAct
from executor.runtime.kernels.numpy import NumpyKernels
from executor.runtime.workspaces import AssignedScratch, assign_workspaces
from strategy.base.errors import InternalError
from strategy.graph.ops import REGISTRY, op_definition
from strategy.graph.ops.base import Call, OpDef, Workspace
from strategy.graph.ops.half_precision import run_act, scratch_of_act
from strategy.graph.ops.scratch import SCRATCH_ALIGNMENT, ScratchSizes
from strategy.sbp.ragged import Rows
from strategy.sbp.tensor import DType
from tests.support.strict_device.device import ELSEWHERE


def rounded(sizes: tuple[int, ...]) -> int:
    return sum(-(-nbytes // SCRATCH_ALIGNMENT) * SCRATCH_ALIGNMENT for nbytes in sizes)


def placed(sizes: ScratchSizes) -> AssignedScratch:
    anew, kept = (np.full(rounded(found), 0xFF, np.uint8) for found in (sizes.anew, sizes.kept))
    return AssignedScratch(np, "an act", anew, kept)


class Declared(NumpyKernels):
    """NumPy in the place of a device: acts have the scratch that was declared; `asked` and `declared` are bytes."""

    def __init__(self) -> None:
        self.asked, self.declared = 0, 0
        self._placed: dict[int, tuple[object, AssignedScratch]] = {}

    def bind(self, definition: OpDef, call: Call) -> BoundAct:
        return BoundAct(lambda: self._run(definition, call))

    def _run(self, definition: OpDef, call: Call) -> None:
        if any(isinstance(array, Rows) for array in (*call.inputs, *call.outputs)):
            run_act(definition, call)
            return
        sizes = scratch_of_act(definition, call)
        _, scratch = self._placed.setdefault(id(call.workspace), (call.workspace, placed(sizes)))
        scratch.anew.fill(0xFF)  # nothing is left of the act before
        run_act(definition, replace(call, xp=ELSEWHERE, workspace=scratch))
        self.asked = max(self.asked, sum(array.nbytes for array in scratch._arrays.values()))
        self.declared = max(self.declared, sum((*sizes.anew, *sizes.kept)))


AT_MOST = {"attention": 1.5, "attention_grad": 1.5, "attention_block": 40.0, "attention_block_grad": 40.0}
"""What may be declared over what is asked for: key heads that are shared, and pairs of chunks, are counted alone."""


@pytest.mark.parametrize("kind", [kind for kind in REGISTRY if op_definition(kind).examples])
def test_acts_under_every_signature_ask_for_what_their_op_declares(kind: str) -> None:
    kernels = Declared()
    subjects = subjects_of(kind)
    found = [one for subject in subjects for one in try_listed(subject, kernels, meshes=((2,), (3,)), most=6)]
    assert [str(one) for one in found if one.problem] == []
    assert kernels.declared <= kernels.asked * AT_MOST.get(kind, 1.0), "declares what no act asks for"
    assert kernels.declared > 0 or op_definition(kind).scratch is None


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
def test_wide_copies_of_narrow_operands_are_declared(dtype: DType) -> None:
    x, w, y = (np.ones(shape, dtype.numpy) for shape in ((3, 5), (5, 7), (3, 7)))
    call = Call(np, {}, (x, w), (y,), (), (), (), Workspace(np))
    sizes = scratch_of_act(op_definition("matmul"), call)
    assert sizes == ScratchSizes((4 * 15, 4 * 35, 4 * 21))
    run_act(op_definition("matmul"), replace(call, workspace=placed(sizes)))
    assert (y == 5).all()


def test_scratch_that_was_not_declared_is_refused() -> None:
    scratch = placed(ScratchSizes((64,), (64,)))
    first = scratch.get("a", (4, 4), "float32")
    assert scratch.get("a", (2, 4), "float32").ctypes.data == first.ctypes.data
    with pytest.raises(InternalError, match=r"an act asks for scratch 'b', 4 bytes \(anew\), and has declared 256"):
        scratch.get("b", (1,), "float32")
    assert scratch.constant("ones", (16,), "float32", lambda: np.ones(16, "float32")).tolist() == [1] * 16
    with pytest.raises(InternalError, match="asks for scratch 'twos'"):
        scratch.constant("twos", (16,), "float32", lambda: np.ones(16, "float32"))


SIZES = st.lists(st.integers(0, 3000), max_size=3).map(tuple)
DECLARED = st.dictionaries(st.integers(0, 20), st.builds(ScratchSizes, SIZES, SIZES), max_size=8)


@given(DECLARED, st.integers(1, 3))
def test_what_lives_together_lies_apart(declared: dict[int, ScratchSizes], streams: int) -> None:
    """What is kept lies apart from all; what is begun anew shares one place with that of its stream alone."""
    stream_of = {actor: actor % streams for actor in declared}
    places, nbytes = assign_workspaces(declared, stream_of)
    assert set(places) == set(declared)
    taken = [(place.anew, stream_of[actor], False) for actor, place in places.items()]
    taken += [(place.kept, actor, True) for actor, place in places.items()]
    for (begin, end), _, _ in taken:
        assert 0 <= begin <= end <= nbytes
        assert begin % SCRATCH_ALIGNMENT == end % SCRATCH_ALIGNMENT == 0
    for number, (one, stream, kept) in enumerate(taken):
        for other, other_stream, other_kept in taken[:number]:
            if kept or other_kept or stream != other_stream:
                assert min(one[1], other[1]) <= max(one[0], other[0]) or one[0] == one[1] or other[0] == other[1]
    for actor, place in places.items():
        assert place.anew[1] - place.anew[0] == rounded(declared[actor].anew)
        assert place.kept[1] - place.kept[0] == rounded(declared[actor].kept)
    on_streams = {s: [d for a, d in declared.items() if stream_of[a] == s] for s in range(streams)}
    least = sum(
        max((rounded(d.anew) for d in some), default=0) + sum(rounded(d.kept) for d in some)
        for some in on_streams.values()
    )
    assert nbytes == least
