"""Specs and boxes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategy.base.errors import InputError, InternalError
from strategy.sbp.tensor import Box, DType, Ragged, TensorSpec, box_shape, intersect, within

SPANS = st.tuples(st.integers(0, 6), st.integers(1, 6)).map(lambda pair: (pair[0], pair[0] + pair[1]))


def test_sizes_and_bytes() -> None:
    assert TensorSpec((3, 4)).size == 12
    assert TensorSpec(()).size == 1
    for dtype in DType:
        assert dtype.nbytes == dtype.numpy.itemsize
        assert dtype.is_float == (not (dtype.is_code or np.issubdtype(dtype.numpy, np.integer)))
        assert TensorSpec((3, 4), dtype).nbytes == np.zeros((3, 4), dtype.numpy).nbytes


@pytest.mark.parametrize("shape", [(0,), (3, 0), (-1, 4)])
def test_empty_dims_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"empty.*got.*expected"):
        TensorSpec(shape)


@given(st.lists(st.tuples(SPANS, SPANS), max_size=3))
def test_intersection_is_that_of_the_cells(pairs: list[tuple[tuple[int, int], tuple[int, int]]]) -> None:
    one: Box = tuple(a for a, _ in pairs)
    other: Box = tuple(b for _, b in pairs)
    shared = intersect(one, other)
    common = cells(one) & cells(other)
    assert (cells(shared) if shared is not None else set()) == common
    assert intersect(other, one) == shared


def cells(box: Box) -> set[tuple[int, ...]]:
    return set(itertools.product(*(range(begin, end) for begin, end in box)))


def test_within_cuts_a_box_out_of_its_frame() -> None:
    whole = np.arange(48).reshape(6, 8)
    frame, box = ((2, 6), (1, 7)), ((3, 5), (2, 3))
    held = whole[2:6, 1:7]
    np.testing.assert_array_equal(held[within(box, frame)], whole[3:5, 2:3])
    assert box_shape(box) == (2, 1)
    assert np.asarray(3.0)[within((), ())] == 3


def test_rows_are_those_of_a_ragged_tensor_alone() -> None:
    ragged = Ragged(2, (3, 4))
    assert TensorSpec((3, 4, 5), ragged=ragged).rows == ragged
    with pytest.raises(InternalError, match=r"float32\(3, 4\) is not ragged"):
        _ = TensorSpec((3, 4)).rows


def test_a_packed_entry_is_several_elements() -> None:
    assert TensorSpec((3, 4), DType.FLOAT4_E2M1_X2).elements == (3, 8)
    assert TensorSpec((3, 4)).elements == (3, 4)


def test_of_a_ragged_tensor_as_many_rows_are_priced_and_sent_as_are_expected() -> None:
    """One expert of two for each of four tokens, the busiest with half as many rows again."""
    even = TensorSpec((2, 4, 5), ragged=Ragged(1, (2, 4)))
    busiest = TensorSpec((2, 4, 5), ragged=Ragged(1, (2, 4), imbalance=1.5))
    assert even.expected == TensorSpec((even.expected_rows, 5))
    assert TensorSpec((3, 4)).expected == TensorSpec((3, 4))
    assert even.sent_nbytes(40) == 4 * even.row_nbytes
    assert busiest.sent_nbytes(40) == 6 * even.row_nbytes
    assert TensorSpec((3, 4)).sent_nbytes(6) == 6 * 4
