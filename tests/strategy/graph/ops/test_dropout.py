"""Dropout: one mask whatever the pieces, another at every act, the rate that was asked for."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from strategy.graph.ops import op_definition
from strategy.graph.ops.base import Call, Workspace
from strategy.graph.ops.dropout import random_words
from strategy.sbp.sbp import NdSbp, Split, local_box
from strategy.sbp.tensor import Box, Shape, within
from tests.support.oracle import Array

SHAPE = (7, 6, 5)
WHOLE: Box = ((0, 7), (0, 6), (0, 5))


def dropped(x: Array, box: Box, *, seed: int = 3, number: int = 0, rate: float = 0.25) -> Array:
    out = np.full(x.shape, np.nan)
    attrs = {"rate": rate, "seed": seed}
    op_definition("dropout").run(Call(np, attrs, (x,), (out,), (), (box,), (box,), Workspace(np), number=number))
    return out


@pytest.mark.parametrize(
    ("mesh", "layout"),
    [((2,), (Split(0),)), ((3,), (Split(2),)), ((2, 2), (Split(0), Split(0))), ((2, 3), (Split(1), Split(0)))],
)
def test_pieces_draw_the_mask_of_the_whole(mesh: Shape, layout: NdSbp) -> None:
    x = np.random.default_rng(0).standard_normal(SHAPE)
    wanted = dropped(x, WHOLE)
    for coords in itertools.product(*map(range, mesh)):
        box = local_box(SHAPE, layout, mesh, coords)
        np.testing.assert_array_equal(dropped(x[within(box, WHOLE)], box), wanted[within(box, WHOLE)])


def test_acts_and_seeds_differ_and_repeat() -> None:
    x = np.ones(SHAPE)
    masks = [dropped(x, WHOLE, seed=seed, number=number) for seed in (3, 4) for number in (0, 1, 2)]
    for one, other in itertools.combinations(masks, 2):
        assert (one != other).mean() > 0.2
    np.testing.assert_array_equal(masks[1], dropped(x, WHOLE, seed=3, number=1))


def test_the_kept_share_is_that_of_the_rate_along_every_dim() -> None:
    shape = (40, 50, 60)
    box = tuple((0, size) for size in shape)
    for rate in (0.0, 0.1, 0.5):
        kept = dropped(np.ones(shape), box, rate=rate) != 0
        assert kept.mean() == pytest.approx(1 - rate, abs=0.005)
        for dim in range(3):
            others = tuple(d for d in range(3) if d != dim)
            np.testing.assert_allclose(kept.mean(axis=others), 1 - rate, atol=0.06)
        np.testing.assert_allclose(dropped(np.ones(shape), box, rate=rate)[kept], 1 / (1 - rate))


def words_of(seed: int, act: int, box: Box) -> np.ndarray:
    return np.concatenate([words.copy() for _, words in random_words(np, seed, act, box, Workspace(np))])


def test_words_are_those_of_splitmix_by_coordinate() -> None:
    """Blocks of rows, uneven ones too, hold what the definition gives element by element."""
    begins, shape = (3, 0, 7), (9, 5, 700)
    box = tuple((begin, begin + size) for begin, size in zip(begins, shape, strict=True))
    words = words_of(11, 5, box).reshape(shape)
    for place in ((0, 0, 0), (8, 4, 699), (3, 2, 250), (7, 1, 33)):
        assert int(words[place]) == by_hand(11, 5, [b + p for b, p in zip(begins, place, strict=True)])


def by_hand(seed: int, act: int, coordinates: Sequence[int]) -> int:
    """Steele, Lea and Flood 2014, figure 16, one round per figure that sets an element apart."""

    def mixed(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    z = mixed(seed)
    for figure in (act, *coordinates):
        z = mixed((z + (figure + 1) * 0x9E3779B97F4A7C15) % 2**64)
    return z


def test_neighbours_are_not_alike() -> None:
    """Bits of elements that differ in one coordinate, or at one act, agree half of the time."""
    words, later = (words_of(11, act, ((0, 64), (0, 64))) for act in (5, 6))
    assert len(np.unique(words)) == words.size
    for other in (np.roll(words, 1, 0), np.roll(words, 1, 1), words.T.copy(), later):
        differs = np.unpackbits((words ^ other)[~np.eye(64, dtype=bool)].view(np.uint8)).mean()
        assert differs == pytest.approx(0.5, abs=0.01)


def test_a_scalar_has_one_coordinate_less() -> None:
    assert words_of(1, 0, ()).shape == (1, 1)
    assert float(dropped(np.asarray(2.0), (), rate=0.0)) == 2.0
