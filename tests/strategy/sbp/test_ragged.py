"""Packed rows: held in order and by their cells, found again, written out, and never more than there is room for."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from strategy.base.errors import GraphError, InputError, InternalError, RunError
from strategy.graph.signature import piece_specs
from strategy.nn.tracer import Tracer
from strategy.sbp.ragged import Rows, piece_of
from strategy.sbp.sbp import Partial, Reduce, Split, local_box, may_be_partial
from strategy.sbp.tensor import DType, Ragged, TensorSpec, box_shape

Array = npt.NDArray[Any]
DIMS = (5, 2, 3)
SPEC = TensorSpec((*DIMS, 4), DType.FLOAT64, Ragged(2, DIMS))
WHOLE = tuple((0, size) for size in SPEC.shape)


def routed(chosen: list[list[list[int]]], *, width: int = 4) -> Array:
    """Written out: the rows of these experts, [group][token][choice], all different."""
    out = np.zeros((*DIMS, width))
    for g, tokens in enumerate(chosen):
        for s, experts in enumerate(tokens):
            for e in experts:
                out[e, g, s] = 1 + 100 * e + 10 * g + s + np.arange(width) / 10
    return out


EVEN = routed([[[0, 1], [1, 2], [3, 4]], [[2, 0], [4], []]])
ONE_EXPERT = routed([[[3], [3], [3]], [[3], [3], [3]]])


def held(dense: Array, box: tuple[tuple[int, int], ...] = WHOLE) -> Rows:
    rows: Rows = piece_of(np, SPEC, box)
    rows.hold_dense(dense[tuple(slice(*cut) for cut in box)])
    return rows


@pytest.mark.parametrize("dense", [EVEN, ONE_EXPERT, np.zeros_like(EVEN)])
@pytest.mark.parametrize("layout", [(Split(0),), (Split(1),), (Split(2),), (Split(3),)])
def test_pieces_written_out_make_up_the_whole(dense: Array, layout: tuple[Split]) -> None:
    boxes = [local_box(SPEC.shape, layout, (2,), (coord,)) for coord in range(2)]
    pieces = [held(dense, box) for box in boxes]
    whole = np.concatenate([piece.dense() for piece in pieces], axis=layout[0].dim)
    np.testing.assert_array_equal(whole, dense)
    joined: Rows = piece_of(np, SPEC, WHOLE)
    joined.put([(piece.cells, piece.rows, piece.box[-1]) for piece in pieces])
    np.testing.assert_array_equal(joined.dense(), dense)
    assert (np.diff(joined.cells) > 0).all()


def test_rows_lie_by_expert() -> None:
    rows = held(EVEN)
    assert rows.count == 9
    bounds = rows.expert_bounds().tolist()
    assert bounds == [0, 2, 4, 6, 7, 9]
    for expert in range(5):
        np.testing.assert_array_equal(
            rows.rows[bounds[expert] : bounds[expert + 1]], EVEN[expert][EVEN[expert, ..., 0] > 0]
        )
    assert held(ONE_EXPERT).expert_bounds().tolist() == [0, 0, 0, 0, 6, 6]


def test_what_is_not_there_is_not_found() -> None:
    rows = held(EVEN)
    absent = np.setdiff1d(np.arange(30), rows.cells)
    hits, place = rows.find(np.concatenate([absent, rows.cells[::-1]]))
    np.testing.assert_array_equal(hits, len(absent) + np.arange(rows.count))
    np.testing.assert_array_equal(place, np.arange(rows.count)[::-1])
    assert len(held(np.zeros_like(EVEN)).find(absent)[0]) == 0


def test_memory_is_for_the_worst_case_and_no_more() -> None:
    """All experts of a token may be in the piece of one rank, but it chose two, or as many as the piece has."""
    assert SPEC.most_rows == 2 * 6
    assert SPEC.nbytes == 8 + 12 * (8 + 4 * 8)
    two_experts, one_expert = (SPEC.piece((experts, 2, 3, 4)) for experts in (2, 1))
    assert (two_experts.most_rows, one_expert.most_rows) == (12, 6)
    (busiest,) = piece_specs([SPEC], [(Split(0),)], (4,))
    assert (busiest.shape[0], busiest.most_rows, busiest.expected_rows) == (2, 12, 5)
    with pytest.raises(InternalError, match="13 rows in a piece that holds 12"):
        piece_of(np, SPEC, WHOLE).hold(np.arange(13))


def test_room_may_allow_for_less_than_the_worst_case() -> None:
    """Of 64 experts, 8 a token, four on a rank: half of what all tokens want at worst is 8 times an even share."""
    dims = (64, 2, 8192)
    whole = TensorSpec((*dims, 4), DType.BFLOAT16, Ragged(8, dims, 1.5, room=2.0))
    four, few = whole.piece((4, *dims[1:], 4)), whole.piece((4, 1, 64, 4))
    even, worst = 8 * 2 * 8192 // 16, 4 * 2 * 8192
    assert (whole.most_rows, whole.expected_rows) == (8 * 2 * 8192, 8 * 2 * 8192)
    assert (four.most_rows, four.expected_rows) == (2 * even, 1.5 * even)
    assert four.nbytes == 8 + 2 * even * (8 + 8)
    assert few.most_rows == 4 * 64, "of few tokens the worst case"
    assert TensorSpec(four.shape, DType.BFLOAT16, Ragged(8, dims)).most_rows == worst
    rows: Rows = piece_of(np, whole, ((0, 4), (0, 2), (0, 8192), (0, 4)))
    rows.hold(np.arange(2 * even))
    with pytest.raises(RunError, match=r"16385 rows are for 4 of 64 experts.*room for 16384: 2 times.*expert_room=4 "):
        rows.hold(np.arange(2 * even + 1))


def test_prices_expect_an_uneven_demand_where_experts_are_split() -> None:
    skewed = TensorSpec(SPEC.shape, SPEC.dtype, Ragged(2, DIMS, 1.5))
    split = skewed.piece((2, 2, 3, 4))
    assert (skewed.expected_rows, split.expected_rows) == (12, 8)
    assert split.expected == TensorSpec((8, 4), DType.FLOAT64)
    assert SPEC.sent_nbytes(4 * 30) == 12 * SPEC.row_nbytes
    assert skewed.sent_nbytes(4 * 30) == 18 * SPEC.row_nbytes


def test_terms_of_rows_are_sums_alone() -> None:
    assert [may_be_partial(SPEC, reduce) for reduce in Reduce] == [True, False, False]
    assert not may_be_partial(TensorSpec((2,), DType.INT32), Partial().reduce)


@pytest.mark.parametrize(
    ("shape", "most", "demand", "says"),
    [
        ((4, 3, 2), 5, (1.0, 0.0), "experts per token"),
        ((4, 3, 2), 0, (1.0, 0.0), "experts per token"),
        ((4, 3, 2), 2, (0.5, 0.0), "imbalance"),
        ((4, 3, 2), 2, (1.5, 1.2), "no room"),
        ((4, 3), 2, (1.0, 0.0), "other dims"),
    ],
)
def test_specs_that_mean_nothing_are_refused(
    shape: tuple[int, ...], most: int, demand: tuple[float, float], says: str
) -> None:
    with pytest.raises(InputError, match=says):
        TensorSpec(shape, ragged=Ragged(most, (4, 3), *demand))


def test_ops_that_know_no_rows_refuse_them() -> None:
    tracer = Tracer()
    x, chosen = tracer.input("x", TensorSpec((2, 3, 4))), tracer.input("chosen", TensorSpec((2, 3, 2), DType.INT32))
    rows = x.apply("rows", "dropless_dispatch", chosen, attrs={"experts": 5, "imbalance": 1.0, "room": 0.0})
    assert rows.spec.ragged == Ragged(2, DIMS)
    rows.sum(), rows.softmax(), rows.reshape((10, 3, 4)), rows + x
    with pytest.raises(GraphError) as raised:
        tracer.check()
    said = raised.value.problems
    assert len(said) == 4
    assert all("takes no ragged operands" in problem and "dropless_combine" in problem for problem in said[:3])
    assert "mixes rows" in said[3]


def test_a_ragged_tensor_is_computed_never_given() -> None:
    with pytest.raises(GraphError, match="ragged"):
        Tracer().input("rows", SPEC)


def test_box_shape_of_a_piece() -> None:
    rows = held(EVEN, ((1, 3), (0, 2), (1, 3), (0, 4)))
    assert rows.shape == box_shape(rows.box) == (2, 2, 2, 4)
    assert rows.nbytes == len(rows.raw) == 8 + 8 * (8 + 32)


def test_rows_inside_a_box_are_those_of_its_cells() -> None:
    rows = held(EVEN)
    box = ((1, 3), (0, 1), (0, 3), (0, 4))
    found = rows.inside(box)
    within = routed([[[1], [1, 2], []], [[], [], []]])
    np.testing.assert_array_equal(rows.rows[found], held(within).rows)
    assert len(rows.inside(((4, 5), (0, 1), (0, 2), (0, 4)))) == 0


def test_a_piece_lies_in_the_memory_that_it_is_given() -> None:
    spec = TensorSpec((4, 6), DType.FLOAT64)
    raw = np.arange(12, dtype=np.float64).view("uint8")
    piece = piece_of(np, spec, ((1, 3), (0, 6)), raw)
    assert piece.shape == (2, 6)
    assert np.shares_memory(piece, raw)
    np.testing.assert_array_equal(piece, np.arange(12.0).reshape(2, 6))
    kept = np.zeros(SPEC.nbytes, "uint8")
    piece_of(np, SPEC, WHOLE, kept).hold_dense(EVEN)
    assert kept.any()
