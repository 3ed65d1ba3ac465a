"""Dropout: one mask whatever the pieces, another at every act, the rate that was asked for."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from strategy.ops import op_definition
from strategy.ops.base import Call, Workspace
from strategy.ops.dropout import random_words
from strategy.sbp import NdSbp, Split, local_box
from strategy.tensor import Box, Shape, within
from tests.oracle import Array

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


def test_neighbours_are_not_alike() -> None:
    """Bits of elements that differ in one coordinate, or at one act, agree half of the time."""
    words = random_words(np, 11, 5, ((0, 64), (0, 64)))
    later = random_words(np, 11, 6, ((0, 64), (0, 64)))
    assert len(np.unique(words)) == words.size
    for other in (np.roll(words, 1, 0), np.roll(words, 1, 1), words.T.copy(), later):
        differs = np.unpackbits((words ^ other)[~np.eye(64, dtype=bool)].view(np.uint8)).mean()
        assert differs == pytest.approx(0.5, abs=0.01)


def test_a_scalar_has_one_coordinate_less() -> None:
    assert random_words(np, 1, 0, ()).shape == ()
    assert float(dropped(np.asarray(2.0), (), rate=0.0)) == 2.0
