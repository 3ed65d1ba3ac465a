"""Layouts: texts, pieces that tile the tensor, and layouts that cannot be."""

from __future__ import annotations

import itertools
import math
import random
import string

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategy.base.errors import SbpError
from strategy.sbp.sbp import (
    B,
    NdSbp,
    Owner,
    P,
    Partial,
    Reduce,
    Sbp,
    Split,
    adjoint,
    balanced_split,
    check_layout,
    format_nd,
    has_partial,
    is_legal_layout,
    largest_position,
    local_box,
    local_boxes,
    local_shape,
    may_be_partial,
    owners,
    parse_nd,
    parse_sbp,
    reductions,
)
from strategy.sbp.tensor import DType, Shape, TensorSpec, box_shape
from tests.support.oracle import scatter

SBPS = st.one_of(
    st.builds(Split, st.integers(0, 30), st.integers(0, 12)),
    st.just(B),
    st.builds(Partial, st.sampled_from(Reduce)),
    st.builds(Owner, st.integers(0, 30)),
)


@given(st.lists(SBPS, max_size=4))
def test_texts_read_back(sbps: list[Sbp]) -> None:
    nd = tuple(sbps)
    assert parse_nd(format_nd(nd)) == nd


def test_texts_are_those_of_the_plan_file() -> None:
    assert format_nd((Split(0), B, P, Partial(Reduce.MAX))) == ["S(0)", "B", "P(sum)", "P(max)"]
    assert parse_sbp("P") == P
    assert parse_sbp(" S(12) ") == Split(12)
    assert str(Split(1, 2)) == "S(1)+2"
    assert parse_sbp("S(1)+2") == Split(1, 2)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "S",
        "S()",
        "S(-1)",
        "S(1.0)",
        "S(a)",
        "s(0)",
        "b",
        "BB",
        "P()",
        "P(mean)",
        "P(SUM)",
        "S(0)x",
        "S(0)+",
        "S(0)+0",
        "S(0)-1",
        "B+1",
        "S(0",
        0,
        None,
        b"B",
        True,
        "S (0)",
    ],
)
def test_what_is_no_sbp_is_refused_with_its_place(text: object) -> None:
    with pytest.raises(SbpError, match=r"pins\.toml: \[sbp\] x: not an SBP .*expected"):
        parse_sbp(text, where="pins.toml: [sbp] x")


@pytest.mark.parametrize("text", ["S(0)", "S(0)+1", "P(sum)", "P(max)"])
def test_single_character_mistakes_never_read_as_the_same(text: str) -> None:
    right = parse_sbp(text)
    for position in range(len(text)):
        for character in ["", *string.ascii_letters, *string.digits, *"()., "]:
            wrong = text[:position] + character + text[position + 1 :]
            if wrong != text:
                try:
                    assert parse_sbp(wrong) != right
                except SbpError:
                    continue


def test_a_bare_text_is_no_list_of_sbps() -> None:
    with pytest.raises(SbpError, match=r"not a list.*BB"):
        parse_nd("BB")


def test_a_negative_split_is_refused() -> None:
    with pytest.raises(SbpError, match="negative"):
        Split(-1)
    with pytest.raises(SbpError, match="backwards"):
        Split(0, -1)


def test_gradients_arrive_in_the_adjoint() -> None:
    assert adjoint((Split(1), B, P)) == (Split(1), P, B)
    assert adjoint(adjoint((Split(1), B, P))) == (Split(1), B, P)


@pytest.mark.parametrize(
    ("shape", "nd", "mesh", "problem"),
    [
        ((4,), (Split(1),), (2,), "beyond the dims"),
        ((4,), (Split(0, 2),), (2,), "goes round the axis"),
        ((), (Split(0),), (2,), "beyond the dims"),
        ((3,), (Split(0),), (4,), "more parts than it has rows"),
        ((3, 9), (Split(0), Split(0)), (2, 2), "more parts than it has rows"),
        ((4,), (B,), (2, 2), "one SBP per mesh axis"),
        ((4,), (B, B, B), (2, 2), "one SBP per mesh axis"),
        ((4,), (), (2,), "one SBP per mesh axis"),
    ],
)
def test_layouts_that_cannot_be(shape: Shape, nd: NdSbp, mesh: Shape, problem: str) -> None:
    assert not is_legal_layout(shape, nd, mesh)
    with pytest.raises(SbpError, match=rf"^value w: .*{problem}.*got.*expected"):
        check_layout(shape, nd, mesh, where="value w")
    with pytest.raises(SbpError, match=problem):
        local_shape(shape, nd, mesh, (0,) * len(mesh))


def random_case(rng: random.Random) -> tuple[Shape, NdSbp, Shape]:
    mesh = tuple(rng.randint(1, 4) for _ in range(rng.randint(1, 3)))
    shape = tuple(rng.randint(1, 20) for _ in range(rng.randint(0, 3)))
    options: list[Sbp] = [B, P, *map(Split, range(len(shape)))]
    return shape, tuple(rng.choice(options) for _ in mesh), mesh


def test_pieces_tile_the_tensor_on_ten_thousand_random_layouts() -> None:
    """Elements of all ranks sum to the tensor's, times its copies; no rank is empty."""
    rng = random.Random(0)
    tried = 0
    while tried < 10_000:
        shape, nd, mesh = random_case(rng)
        if not is_legal_layout(shape, nd, mesh):
            continue
        tried += 1
        ranks = list(itertools.product(*map(range, mesh)))
        held = [math.prod(local_shape(shape, nd, mesh, rank)) for rank in ranks]
        copies = math.prod(parts for sbp, parts in zip(nd, mesh, strict=True) if not isinstance(sbp, Split))
        assert min(held) >= 1
        assert sum(held) == math.prod(shape) * copies


def test_boxes_are_those_of_the_super_device() -> None:
    rng = random.Random(1)
    tried = 0
    while tried < 500:
        shape, nd, mesh = random_case(rng)
        if not is_legal_layout(shape, nd, mesh) or has_partial(nd):
            continue
        tried += 1
        whole = np.arange(math.prod(shape)).reshape(shape)
        pieces = scatter(whole, nd, mesh, np.random.default_rng(0))
        for rank, piece in zip(itertools.product(*map(range, mesh)), pieces, strict=True):
            box = local_box(shape, nd, mesh, rank)
            assert box_shape(box) == piece.shape == local_shape(shape, nd, mesh, rank)
            np.testing.assert_array_equal(whole[tuple(slice(b, e) for b, e in box)], piece)


def test_legality_is_no_empty_piece() -> None:
    rng = random.Random(2)
    verdicts = set()
    for _ in range(2000):
        shape, nd, mesh = random_case(rng)
        boxes = [local_box(shape, nd, mesh, rank) for rank in itertools.product(*map(range, mesh))]
        legal = all(math.prod(box_shape(box)) > 0 for box in boxes)
        assert is_legal_layout(shape, nd, mesh) == legal
        verdicts.add(legal)
    assert verdicts == {True, False}


@given(st.integers(-50, 50), st.integers(0, 200), st.integers(1, 40))
def test_balanced_splits(begin: int, length: int, parts: int) -> None:
    pieces = balanced_split(begin, begin + length, parts)
    sizes = [end - start for start, end in pieces]
    assert len(pieces) == parts
    assert pieces[0][0] == begin
    assert pieces[-1][1] == begin + length
    assert all(one[1] == other[0] for one, other in itertools.pairwise(pieces))
    assert sizes == sorted(sizes, reverse=True)
    assert max(sizes) - min(sizes) <= 1


def test_nested_splits_are_not_the_split_of_the_flat_axis() -> None:
    nested = [
        local_shape((6,), (Split(0), Split(0)), (2, 2), rank)[0] for rank in itertools.product(range(2), repeat=2)
    ]
    assert nested == [2, 1, 2, 1]
    assert [local_shape((6,), (Split(0),), (4,), (i,))[0] for i in range(4)] == [2, 2, 1, 1]


def test_partial_is_seen() -> None:
    assert has_partial((B, P))
    assert not has_partial((B, Split(0)))


def test_an_owner_holds_the_whole_and_others_nothing() -> None:
    assert local_boxes((5, 4), (Owner(1),), (3,)) == (((0, 0), (0, 0)), ((0, 5), (0, 4)), ((0, 0), (0, 0)))
    assert local_shape((5, 4), (Owner(1), Split(0)), (2, 2), (1, 0)) == (3, 4)
    assert local_shape((5, 4), (Split(0), Owner(1)), (2, 2), (1, 0)) == (0, 0)
    assert adjoint((Owner(2), B)) == (Owner(2), P)
    for mesh in ((3,), (2, 3)):
        nd_sbp = (Split(1), Owner(2))[-len(mesh) :]
        boxes = local_boxes((5, 4), nd_sbp, mesh)
        sizes = [math.prod(box_shape(box)) for box in boxes]
        assert sizes[largest_position(nd_sbp, mesh)] == max(sizes)
        coords = itertools.product(*map(range, mesh))
        assert boxes == tuple(local_box((5, 4), nd_sbp, mesh, at) for at in coords)


@pytest.mark.parametrize(
    ("shape", "nd_sbp", "message"),
    [((4,), (Owner(2),), "no such owner"), ((), (Owner(0),), "a scalar has no owner")],
)
def test_owners_that_cannot_be(shape: Shape, nd_sbp: NdSbp, message: str) -> None:
    with pytest.raises(SbpError, match=message):
        check_layout(shape, nd_sbp, (2,))


def test_a_negative_owner_is_refused() -> None:
    with pytest.raises(SbpError, match="a coordinate is negative"):
        Owner(-1)
    with pytest.raises(SbpError, match="not an SBP"):
        parse_sbp("O(-1)")


def test_owners_are_named_each_once() -> None:
    assert owners((Owner(1), B, Owner(1), Split(0))) == {Owner(1)}
    assert owners((B, Split(0))) == frozenset()


def test_a_list_among_sbps_is_named() -> None:
    with pytest.raises(SbpError, match=r"got .*\['B'\]"):
        parse_nd(["B", ["B"]])


@pytest.mark.parametrize(
    ("dtype", "allowed"),
    [(DType.FLOAT32, tuple(Reduce)), (DType.INT32, (Reduce.MIN, Reduce.MAX)), (DType.FLOAT8_E4M3, ())],
)
def test_codes_are_whole_and_sums_are_of_floats(dtype: DType, allowed: tuple[Reduce, ...]) -> None:
    assert tuple(reduce for reduce in Reduce if may_be_partial(TensorSpec((4,), dtype), reduce)) == allowed


def test_reductions_are_those_of_the_terms() -> None:
    assert reductions((P, Split(0), Partial(Reduce.MAX))) == {Reduce.SUM, Reduce.MAX}
    assert reductions((B, Split(0))) == set()
    assert len({hash(Partial(reduce)) for reduce in Reduce}) == len(Reduce)
