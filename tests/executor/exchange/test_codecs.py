"""Codecs keep to their bounds, carry what is not finite, and take the bytes that they say."""

from __future__ import annotations

import numpy as np
import pytest

from executor.exchange.codecs import BFloat16, Codec, Float16, Int8, TopK
from strategy.base.errors import InputError

ALL: tuple[Codec, ...] = (Float16(), BFloat16(), Int8(), TopK(0.3))
BOUNDS = ((Float16(), 2.0**-11, 2.0**-39), (BFloat16(), 2.0**-8, 0.0), (Int8(), 0.0, 1 / 253))
"""Codec, error of a value as a share of it, and of the largest of its block."""


@pytest.mark.parametrize("codec", ALL, ids=repr)
@pytest.mark.parametrize("count", [0, 1, 2, 7, 1000])
def test_a_block_is_as_long_as_said(codec: Codec, count: int) -> None:
    values = np.random.default_rng(count).normal(size=count).astype(np.float32)
    block = codec.encode(values)
    assert block.shape == (codec.nbytes(count),)
    assert codec.decode(block, count).shape == (count,)


@pytest.mark.parametrize(("codec", "own", "of_largest"), BOUNDS, ids=lambda value: repr(value))
def test_errors_keep_to_their_bounds(codec: Codec, own: float, of_largest: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        values = (rng.normal(size=200) * 10.0 ** rng.uniform(-12, 12) * rng.choice([1, 1e-4], 200)).astype(np.float32)
        error = np.abs(codec.decode(codec.encode(values), 200).astype(np.float64) - values)
        assert (error <= own * np.abs(values) + of_largest * np.abs(values).max()).all()


def test_halves_without_a_scale_would_be_lost() -> None:
    values = np.array([1e-9, 3e7], np.float32)
    for one in values:
        assert Float16().decode(Float16().encode(values[values == one]), 1)[0] == pytest.approx(one, rel=1e-3)
        with np.errstate(over="ignore"):
            assert np.float16(one) in (0, np.inf)


@pytest.mark.parametrize("codec", ALL, ids=repr)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_arrives_so(codec: Codec, bad: float) -> None:
    values = np.array([1, bad, 2, 3], np.float32)
    assert not np.isfinite(codec.decode(codec.encode(values), 4)).all()


@pytest.mark.parametrize("codec", ALL, ids=repr)
def test_zeros_stay_zeros(codec: Codec) -> None:
    assert not codec.decode(codec.encode(np.zeros(5, np.float32)), 5).any()


def test_top_k_keeps_the_largest() -> None:
    values = np.array([1, -5, 2, 3, -3], np.float32)
    assert TopK(0.4).decode(TopK(0.4).encode(values), 5).tolist() == [0, -5, 0, 3, 0]
    with pytest.raises(InputError, match="above 0, at most 1"):
        TopK(0)
