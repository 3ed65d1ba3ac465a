"""One tree: sums of parts are its nodes, so that it does not matter who adds up which."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.data.batch_rows import BatchRows
from executor.runtime.summation_tree import Node, TreeSum, combined, left_half, nodes_over
from strategy.sbp.sbp import Reduce
from tests.support.oracle import combine

Array = npt.NDArray[np.float32]


def leaves_of(count: int, seed: int) -> list[Array]:
    """Of very different sizes, so that every order of adding them up gives another sum."""
    rng = np.random.default_rng(seed)
    return [(rng.standard_normal(5) * 10.0 ** rng.integers(-4, 4)).astype(np.float32) for _ in range(count)]


def one_by_one(leaves: list[Array]) -> Array:
    """The sum of what comes one after the other, twice, in the same memory."""
    made: list[Array] = []

    def make() -> Array:
        made.append(np.empty(5, np.float32))
        return made[-1]

    tree = TreeSum(range(len(leaves)), len(leaves), make, lambda one, other, into: np.add(one, other, out=into))
    for _ in range(2):
        for number, leaf in enumerate(leaves, 1):
            tree.room()[...] = leaf
            found = tree.add()
            assert (found is None) is (number < len(leaves))
    assert len(made) <= len(leaves).bit_length() + 1
    assert found is not None
    (whole,) = found
    return np.array(whole)


def at_once(leaves: list[Array]) -> Array:
    into, before = np.full(5, np.nan, np.float32), [leaf.copy() for leaf in leaves]
    scratch = [np.full(5, np.nan, np.float32) for _ in range(len(leaves).bit_length())]
    terms = {(at, at + 1): leaf for at, leaf in enumerate(leaves)}
    root = combined(terms, len(leaves), lambda one, other, to: np.add(one, other, out=to), into, scratch.__getitem__)
    assert all((leaf == other).all() for leaf, other in zip(leaves, before, strict=True))
    assert (root is into) is (len(leaves) > 1)
    return root


@given(st.integers(1, 40), st.integers(0, 2**31))
def test_sums_are_those_of_pairs_of_pairs(count: int, seed: int) -> None:
    leaves = leaves_of(count, seed)
    wanted = combine(leaves, Reduce.SUM).tobytes()
    assert one_by_one(leaves).tobytes() == wanted
    assert at_once(leaves).tobytes() == wanted


@given(st.integers(0, 4), st.integers(1, 7), st.integers(0, 2**31))
def test_parts_of_a_power_of_two_are_nodes(each: int, parts: int, seed: int) -> None:
    size = 2**each
    leaves = leaves_of(size * parts, seed)
    sums = [one_by_one(leaves[begin : begin + size]) for begin in range(0, len(leaves), size)]
    assert at_once(sums).tobytes() == one_by_one(leaves).tobytes()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(0, 2**31))
def test_whoever_has_which_leaves_the_sum_is_one(owners: list[int], seed: int) -> None:
    """Each adds up what it has of the tree's nodes, and all of these make up the tree."""
    leaves, terms = leaves_of(len(owners), seed), dict[Node, Array]()
    for rank in range(4):
        mine = [leaf for leaf, owner in enumerate(owners) if owner == rank]
        nodes = list(nodes_over(mine, len(owners)))
        assert [leaf for begin, end in nodes for leaf in range(begin, end)] == mine
        if not mine:
            continue
        tree = TreeSum(mine, len(owners), lambda: np.empty(5, np.float32), add_into)
        for leaf in mine:
            tree.room()[...] = leaves[leaf]
            found = tree.add()
        assert found is not None
        terms |= {node: array.copy() for node, array in zip(nodes, found, strict=True)}
    scratch = [np.empty(5, np.float32) for _ in range(len(owners).bit_length())]
    root = combined(terms, len(owners), add_into, np.empty(5, np.float32), scratch.__getitem__)
    assert root.tobytes() == at_once(leaves).tobytes()


def add_into(one: Array, other: Array, into: Array) -> None:
    np.add(one, other, out=into)


def test_other_orders_give_other_sums() -> None:
    leaves = leaves_of(8, 3)
    in_a_row = leaves[0].copy()
    for leaf in leaves[1:]:
        in_a_row += leaf
    assert in_a_row.tobytes() != one_by_one(leaves).tobytes()


@pytest.mark.parametrize(("count", "left"), [(2, 1), (3, 2), (4, 2), (5, 4), (8, 4), (9, 8)])
def test_the_left_half_is_the_largest_power_of_two(count: int, left: int) -> None:
    assert left_half(count) == left


@given(st.integers(1, 4), st.integers(1, 5), st.integers(1, 3), st.booleans())
def test_every_row_of_the_global_batch_is_trained_on_once(ranks: int, count: int, size: int, by_rank: bool) -> None:
    rows, deal = ranks * size, BatchRows(count, by_rank)
    found = [
        row
        for rank in range(ranks)
        for micro_batch in range(count)
        for row in range(*deal.of(rank * size, (rank + 1) * size, rows, micro_batch))
    ]
    assert sorted(found) == list(range(rows * count))
    assert not by_rank or found == sorted(found)
