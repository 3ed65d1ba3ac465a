"""Codes and scales of blocks, against exact fractions; products of them, against what they stand for."""

from __future__ import annotations

import bisect
import itertools
import math
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from strategy.base.errors import InputError
from strategy.graph.graph import Attrs
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import Call, Workspace
from strategy.graph.ops.block_scales import Blocks, is_aligned, scales_shape
from strategy.graph.ops.half_precision import run_act
from strategy.passes.block_scaling import RECIPES, BlockRecipe
from strategy.passes.low_precision import Scaling
from strategy.sbp.tensor import LARGEST_CODE, DType, TensorSpec
from tests.support.learned_codes import decoded, figures_of
from tests.support.reference import Array

SINGLE = np.float32
SMALL: dict[Scaling, Blocks] = {Scaling.BLOCK: (4, 3), Scaling.MX: (1, 4), Scaling.NV: (2, 2)}
"""Blocks of these tests, by the recipe whose dtypes they have."""


def acted(kind: str, arrays: Sequence[Array], specs: Sequence[TensorSpec], attrs: Attrs) -> list[Array]:
    """Results of an op on arrays of its own dtypes, as the executor runs it."""
    definition = op_definition(kind)
    made = definition.infer(specs, (), attrs)
    outputs = tuple(np.zeros(spec.shape, spec.dtype.numpy) for spec in made)
    run_act(definition, Call(np, attrs, tuple(arrays), outputs, (), (), (), Workspace(np)))
    return list(outputs)


def quantized(x: Array, recipe: BlockRecipe, blocks: Blocks) -> list[Array]:
    """Codes and scales as float32."""
    attrs: Attrs = {"dtype": str(recipe.codes), "scales": str(recipe.scales), "blocks": blocks}
    arrays = [x]
    if recipe.scales is DType.FLOAT8_E4M3:
        arrays.append(np.abs(x).max())
    specs = [TensorSpec(array.shape) for array in arrays]
    codes, scales, *scale = acted("quantize_blocks", arrays, specs, attrs)
    return [decoded(recipe.codes, codes), decoded(recipe.scales, scales), *scale]


@cache
def positive(dtype: DType) -> list[float]:
    """The figures of a dtype from zero on: by their codes."""
    return sorted(figure for figure in figures_of(dtype) if figure >= 0)


def nearest(x: Any, dtype: DType) -> float:
    """The figure of a dtype that is nearest, of two the one with the even code; exact."""
    grid, size = positive(dtype), abs(float(x))
    above = bisect.bisect(grid, size)
    near = range(max(above - 1, 0), min(above + 1, len(grid)))
    code = min(near, key=lambda i: (abs(Fraction(grid[i]) - Fraction(size)), i % 2))
    return math.copysign(grid[code], float(x))


def wanted(x: Array, recipe: BlockRecipe, blocks: Blocks) -> tuple[Array, Array, Array]:
    """Codes, scales and the scale of the tensor, one after another."""
    largest, whole = SINGLE(LARGEST_CODE[recipe.codes]), SINGLE(1)
    amax = np.abs(x).max()
    if recipe.scales is DType.FLOAT8_E4M3:
        whole = amax / SINGLE(largest * SINGLE(448)) or whole
    scales = np.empty(scales_shape(x.shape, blocks), SINGLE)
    codes = np.empty(x.shape, SINGLE)
    for i, j in itertools.product(*map(range, scales.shape)):
        where = slice(i * blocks[0], (i + 1) * blocks[0]), slice(j * blocks[1], (j + 1) * blocks[1])
        most = np.abs(x[where]).max()
        scales[i, j] = scale_of(most, whole, recipe, largest)
        divisor = SINGLE(scales[i, j] * whole)
        for row, column in itertools.product(
            *(range(*one.indices(size)) for one, size in zip(where, x.shape, strict=True))
        ):
            quotient = x[row, column] / divisor if scales[i, j] else SINGLE(0)
            codes[row, column] = nearest(np.clip(quotient, -largest, largest), recipe.codes)
    return codes, scales, whole


def scale_of(amax: Any, whole: Any, recipe: BlockRecipe, largest: Any) -> Any:
    """The scale of a block by its largest magnitude."""
    if recipe.scales is DType.FLOAT8_E4M3:
        return nearest(min(amax / largest / whole, SINGLE(448)), DType.FLOAT8_E4M3)
    if amax == 0:
        return 1.0
    if recipe.scales is DType.FLOAT32:
        return amax / largest or 1.0
    first = max(math.frexp(float(amax))[1] - 12, -127)
    most = Fraction(float(amax)) / Fraction(float(largest))
    return 2.0 ** next(power for power in range(first, 128) if most <= Fraction(2) ** power)


def drawn(rng: np.random.Generator) -> Array:
    """A matrix of figures that may tie, or lie far apart, some of them zero."""
    shape = 4 * int(rng.integers(1, 3)), 6 * int(rng.integers(1, 3))
    most = int(rng.choice((16, 2**24)))
    fractions = rng.integers(-most, most + 1, shape).astype(SINGLE)
    low, high = ((-4, 5), (-60, 61), (-149, 80))[rng.integers(3)]
    return np.ldexp(fractions, rng.integers(low, high, shape)) * (rng.random(shape) < rng.choice((0.3, 1.0)))


@pytest.mark.parametrize("exponent", [-149, -140, -130, -120])
@pytest.mark.parametrize("scaling", RECIPES)
def test_what_is_too_small_for_a_scale_has_codes_of_zero(scaling: Scaling, exponent: int) -> None:
    x = np.zeros((4, 12), SINGLE)
    x[0, 0] = x[1, 5] = np.ldexp(SINGLE(1), exponent)
    codes, scales, *whole = quantized(x, RECIPES[scaling], SMALL[scaling])
    assert all(np.isfinite(figures).all() for figures in (codes, scales, *whole))
    assert codes[0, 0] or exponent < -126


@pytest.mark.parametrize("scaling", RECIPES)
@settings(max_examples=50)
@given(seed=st.integers(0, 2**32))
@example(seed=80)  # a block whose scale would be less than the least float32
def test_codes_and_scales_are_those_of_exact_fractions(scaling: Scaling, seed: int) -> None:
    recipe, blocks, x = RECIPES[scaling], SMALL[scaling], drawn(np.random.default_rng(seed))
    with np.errstate(over="ignore", under="ignore"):
        found, expected = quantized(x, recipe, blocks), wanted(x, recipe, blocks)
    for one, other in zip(found, expected, strict=False):
        np.testing.assert_array_equal(one, other)
    assert np.isin(found[0], sorted(figures_of(recipe.codes))).all()


@pytest.mark.parametrize("scaling", RECIPES)
@settings(max_examples=40)
@given(seed=st.integers(0, 2**32), shift=st.integers(-20, 20))
def test_what_codes_stand_for_is_off_by_half_a_step_at_most(scaling: Scaling, seed: int, shift: int) -> None:
    """Of a block's largest magnitude; where scales are rounded, one rounding more."""
    recipe = RECIPES[scaling]
    x = np.ldexp(np.random.default_rng(seed).standard_normal((32, 128)).astype(SINGLE), shift)
    blocks = (1, recipe.size)
    codes, scales, *scale = quantized(x, recipe, blocks)
    stood = codes * np.repeat(scales, recipe.size, axis=1) * (scale[0] if scale else SINGLE(1))
    largest = np.abs(x).reshape(32, -1, recipe.size).max(axis=-1).repeat(recipe.size, axis=1)
    # Below the largest code a step is 1/16 of it in E4M3, 1/3 in E2M1; powers of two may be twice too large.
    step = {Scaling.BLOCK: 1 / 14, Scaling.MX: 1 / 7, Scaling.NV: 1 / 3}[scaling]
    assert (np.abs(stood - x) <= largest * step / 2 * (1 + 2**-3)).all()


@pytest.mark.parametrize("scaling", RECIPES)
def test_a_figure_that_is_none_spoils_its_block_alone(scaling: Scaling) -> None:
    recipe, blocks = RECIPES[scaling], (1, 4)
    for strange in (np.inf, np.nan):
        x = np.arange(1, 17, dtype=SINGLE).reshape(2, 8)
        x[1, 2] = strange
        with np.errstate(invalid="ignore", over="ignore"):
            codes, scales, *scale = quantized(x, recipe, blocks)
            stood = codes * np.repeat(scales, 4, axis=1) * (scale[0] if scale else SINGLE(1))
        assert not np.isfinite(stood[1, 2])
        if not scale:
            assert np.isfinite(stood[0]).all()
            assert np.isfinite(stood[1, 4:]).all()


def test_powers_of_two_are_the_least_that_clip_nothing() -> None:
    x = np.array([[448.0], [449.0], [512.0], [2.0**-127 * 448], [0.0], [2.0**127]], SINGLE)
    _, scales = quantized(x, RECIPES[Scaling.MX], (1, 1))
    assert scales.ravel().tolist() == [1.0, 2.0, 2.0, 2.0**-127, 1.0, 2.0**119]


@pytest.mark.parametrize("scaling", RECIPES)
@pytest.mark.parametrize(
    ("kind", "blocks"), [("", ((1, 4), (4, 1))), ("_nt", ((1, 4), (1, 4))), ("_tn", ((4, 1), (4, 1)))]
)
def test_a_product_is_that_of_what_the_codes_stand_for(
    scaling: Scaling, kind: str, blocks: tuple[Blocks, Blocks]
) -> None:
    recipe, rng = RECIPES[scaling], np.random.default_rng(0)
    given_: list[Array] = [rng.standard_normal((2, 8, 8)), rng.standard_normal((2, 8, 8) if kind == "_tn" else (8, 8))]
    specs: list[list[TensorSpec]] = []
    arrays: list[list[Array]] = []
    for x, one in zip(given_, blocks, strict=True):
        attrs: Attrs = {"dtype": str(recipe.codes), "scales": str(recipe.scales), "blocks": one}
        read = [x.astype(SINGLE), *([SINGLE(np.abs(x).max())] if recipe.scales is DType.FLOAT8_E4M3 else [])]
        of_read = [TensorSpec(np.shape(array)) for array in read]
        arrays.append(acted("quantize_blocks", read, of_read, attrs))
        specs.append(list(op_definition("quantize_blocks").infer(of_read, (), attrs)))
    attrs = {"dtype": "float32", "blocks": (*blocks[0], *blocks[1])}
    (found,) = acted(
        f"block_scaled_matmul{kind}",
        [array for both in zip(*arrays, strict=True) for array in both],
        [spec for both in zip(*specs, strict=True) for spec in both],
        attrs,
    )
    stood = []
    for made, of_made, (rows, columns) in zip(arrays, specs, blocks, strict=True):
        codes, scales, *scale = (decoded(s.dtype, a).astype(float) for a, s in zip(made, of_made, strict=True))
        stood.append(codes * scales.repeat(rows, axis=-2).repeat(columns, axis=-1) * (scale[0] if scale else 1.0))
    x, w = stood
    product = {"": lambda: x @ w, "_nt": lambda: x @ w.T, "_tn": lambda: np.einsum("bsk,bsn->kn", x, w)}[kind]()
    np.testing.assert_allclose(found, product, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "dim", "blocks", "parts", "aligned"),
    [
        ((4, 64, 7), 0, (32, 1), 3, True),
        ((4, 64, 7), 1, (32, 1), 2, True),
        ((4, 64, 7), 1, (32, 1), 4, False),
        ((4, 64, 7), 2, (32, 1), 2, True),
        ((4, 96, 64), 2, (1, 32), 2, True),
        ((4, 96, 64), 2, (1, 32), 3, False),
    ],
)
def test_a_split_cuts_no_block(shape: tuple[int, ...], dim: int, blocks: Blocks, parts: int, aligned: bool) -> None:
    assert is_aligned(TensorSpec(shape), dim, blocks, parts) is aligned


def test_a_split_cuts_no_byte_of_two_codes() -> None:
    codes = TensorSpec((4, 6), DType.FLOAT4_E2M1_X2)
    assert codes.elements == (4, 12)
    assert codes.nbytes == 24
    assert is_aligned(codes, 1, (2, 1), 3)
    assert not is_aligned(codes, 1, (2, 1), 4)
    assert is_aligned(codes, 0, (2, 1), 2)


REFUSED: dict[str, tuple[Attrs, tuple[TensorSpec, ...], str]] = {
    "codes": ({"dtype": "float16"}, (), "no dtype of codes"),
    "scales": ({"scales": "float8_e5m2"}, (), "no dtype of scales"),
    "amax": ({"scales": "float8_e4m3fn"}, (), "do not compose"),
    "halves": ({"dtype": "float4_e2m1fn_x2"}, (), "two codes are a byte"),
    "vector": ({}, (TensorSpec((8,)),), "do not compose"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_cast_is_refused(case: str) -> None:
    attrs, specs, said = REFUSED[case]
    usual: Attrs = {"dtype": "float8_e4m3fn", "scales": "float32", "blocks": (1, 4)}
    with pytest.raises(InputError, match=said):
        op_definition("quantize_blocks").infer(specs or (TensorSpec((4, 7)),), (), {**usual, **attrs})


def test_scales_that_do_not_fit_the_codes_are_refused() -> None:
    codes = TensorSpec((8, 8), DType.FLOAT8_E4M3)
    attrs: Attrs = {"dtype": "float32", "blocks": (1, 4, 4, 1)}
    with pytest.raises(InputError, match="scales of blocks do not fit"):
        op_definition("block_scaled_matmul").infer((codes, codes, TensorSpec((8, 2)), TensorSpec((8, 2))), (), attrs)
