"""Codes with a scale for each block: kernels on the host against the op's own code, to the bit; products of codes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from executor.runtime.kernels.gpu.cublaslt import ProductPlans
from executor.runtime.kernels.gpu.launch import Launch
from executor.runtime.kernels.gpu.products import MatrixProduct
from executor.runtime.kernels.gpu.program import ELEMENTS, all_parameters
from executor.runtime.kernels.gpu.table import PRODUCTS_OF_CODES, launches_of, work_of
from strategy.graph.ops.base import Array, Call, Workspace
from strategy.graph.ops.block_scales import Blocks
from strategy.sbp.tensor import DType
from tests.executor.runtime.kernels.gpu.test_codes import STREAM, call_of, figures, meant
from tests.executor.runtime.kernels.gpu.test_launches import fits
from tests.support.cuda_on_host.device import build
from tests.support.cuda_on_host.device import run as run_launches
from tests.support.cuda_on_host.host_cublaslt import HostCublasLt
from tests.support.cuda_on_host.trials import TOLERANCES, error_per_row
from tests.support.long_parameters import long_but

E4M3, E5M2, E2M1 = DType.FLOAT8_E4M3, DType.FLOAT8_E5M2, DType.FLOAT4_E2M1_X2
FLOATS, POWERS, FRACTIONS = DType.FLOAT32, DType.FLOAT8_E8M0, DType.FLOAT8_E4M3
"""Dtypes of scales."""
PAIRS = [(E4M3, FLOATS), (E5M2, FLOATS), (E4M3, POWERS), (E5M2, POWERS), (E4M3, FRACTIONS), (E2M1, FRACTIONS)]
BLOCKS = ((1, 16), (16, 1), (16, 16), (5, 3), (64, 64))


def cast_of(x: Array, codes: DType, scales: DType, blocks: Blocks, amax: float | None = None) -> Call:
    """A cast; of the tensor's own largest magnitude, if it has to be told and no other is."""
    if amax is None:
        with np.errstate(invalid="ignore"):
            amax = float(np.abs(x.astype(np.float32)).max())
    told = (np.array(amax, np.float32),) if scales is FRACTIONS else ()
    return call_of("quantize_blocks", (x, *told), dtype=str(codes), scales=str(scales), blocks=blocks)


def spread_figures(element: DType) -> Array:
    """Of many magnitudes, with blocks of zeros, and one of figures that are small beside all others."""
    rng = np.random.default_rng(3)
    x = 3 * rng.standard_normal((2, 37, 50)) * np.exp(1.5 * rng.standard_normal((2, 37, 50)))
    x[0, :16, :16], x[1, 16:32, 16:32] = 0, 1e-6
    return x.astype(element.numpy)


def check(calls: list[Call], element: DType, *, whole: bool = False) -> None:
    """Every result is that of the op's code to the bit, but for the bits of what is no number."""
    right = [meant("quantize_blocks", call) for call in calls]
    run_launches(build(element), [one for call in calls for one in launches_of("quantize_blocks", call) or ()])
    for call, good in zip(calls, right, strict=True):
        for found, wanted in zip(call.outputs, good, strict=True):
            if whole or str(found.dtype) == "uint8":
                assert found.tobytes() == wanted.tobytes(), call.attrs
                continue
            numbers = ~np.isnan(wanted.astype(np.float32))
            assert (np.isnan(found.astype(np.float32)) == ~numbers).all(), call.attrs
            assert found[numbers].tobytes() == wanted[numbers].tobytes(), call.attrs


@pytest.mark.parametrize(("codes", "scales"), PAIRS)
@pytest.mark.parametrize("element", ELEMENTS)
def test_codes_and_scales_are_those_of_the_op_to_the_bit(element: DType, codes: DType, scales: DType) -> None:
    """Blocks of rows, of columns and of both, the last ones shorter; larger than the tensor."""
    x = spread_figures(element)
    check([cast_of(x, codes, scales, blocks) for blocks in BLOCKS], element, whole=True)


@pytest.mark.parametrize("element", ELEMENTS)
def test_every_figure_and_every_tie_between_two(element: DType) -> None:
    """Of a block whose scale is one."""
    calls = []
    for codes in (E4M3, E5M2):
        some = figures(codes, element)
        x = some[np.abs(some.astype(np.float32)) <= (448 if codes is E4M3 else 57344)][None]
        calls.append(cast_of(x, codes, POWERS, (1, x.size)))
    sizes = np.float32([0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 5.5, 6])
    calls.append(cast_of(np.concatenate([sizes, -sizes]).astype(element.numpy)[None], E2M1, POWERS, (1, 32)))
    check(calls, element, whole=True)
    assert all(call.outputs[1].astype(np.float32) == 1 for call in calls)


@pytest.mark.parametrize("element", [DType.FLOAT32, DType.BFLOAT16])
def test_the_smallest_and_the_largest_scales(element: DType) -> None:
    """Powers of two at both ends; fractions that are zero, and of a tensor whose largest magnitude is told wrong."""
    ends = [1e-45, 1e-38, 2.0**-119, 1.2, 3e38]
    tops = np.float32(ends if element is DType.FLOAT32 else ends[1:])
    x = (tops[:, None] * np.float32([1, 0.5, 0.3, -0.9])).astype(element.numpy)
    small = np.float32([[1e-30, -2e-30, 1, 1]]).astype(element.numpy)
    fractions = [cast_of(small, E2M1, FRACTIONS, (1, 2), amax) for amax in (6.0, 1e-3, 0.0, np.inf)]
    check([cast_of(x, E4M3, POWERS, (1, 4)), cast_of(x, E4M3, FLOATS, (1, 2)), *fractions], element)


@pytest.mark.parametrize("element", ELEMENTS)
def test_what_is_no_number_makes_its_block_none(element: DType) -> None:
    x = np.ones((3, 40), element.numpy)
    x[1, 5], x[2, 20] = np.nan, -np.inf
    calls = [cast_of(x, codes, scales, (1, 16), 1.0) for codes, scales in PAIRS if codes is not E2M1]
    check(calls, element)
    four = cast_of(x, E2M1, POWERS, (1, 16))
    run_launches(build(element), launches_of("quantize_blocks", four) or ())
    assert np.isnan(four.outputs[1].astype(np.float32)).tolist() == [
        [False] * 3,
        [True, False, False],
        [False, True, False],
    ]


def products(element: DType) -> Iterator[tuple[str, Call]]:
    """Of all kinds of scales; sizes that the library's tensor cores take as they are, and others."""
    m, k, n = (2, 37), 70, 102
    shapes = {"": ((*m, k), (k, n)), "_nt": ((*m, n), (k, n)), "_tn": ((*m, k), (*m, n))}
    along = {"": ((1, 16), (16, 1)), "_nt": ((1, 16), (1, 16)), "_tn": ((16, 1), (16, 1))}
    rng = np.random.default_rng(8)
    for suffix, pair in shapes.items():
        for codes, scales in PAIRS:
            square = scales is FLOATS and suffix != "_tn"
            both = (along[suffix][0], (16, 16) if square else along[suffix][1])
            casts = [
                cast_of(rng.standard_normal(shape).astype(np.float32), codes, scales, blocks)
                for shape, blocks in zip(pair, both, strict=True)
            ]
            made = [meant("quantize_blocks", cast) for cast in casts]
            inputs = tuple(array for arrays in zip(*made, strict=True) for array in arrays)
            kind = f"block_scaled_matmul{suffix}"
            yield kind, call_of(kind, inputs, dtype=str(element), blocks=(*both[0], *both[1]))


@pytest.mark.parametrize("element", long_but(ELEMENTS, 1))
def test_products_of_codes_mean_what_the_op_means(element: DType) -> None:
    """In double precision; what codes stand for is rounded once, to the result's dtype."""
    program, plans, seen = build(element), ProductPlans(HostCublasLt()), set()
    for kind, call in products(element):
        wide = np.zeros(call.outputs[0].shape, np.float64)
        (right,) = meant(kind, replace(call, outputs=(wide,), attrs={**call.attrs, "dtype": "float64"}))
        for one in work_of(kind, call) or ():
            if isinstance(one, MatrixProduct):
                plans.bind(one, Workspace(np))(STREAM)
            else:
                seen.add(getattr(one, "kernel", ""))
                run_launches(program, [one])
        assert error_per_row(call.outputs[0], right) <= TOLERANCES[element], (kind, call.attrs)
    assert seen >= {"block_figures_e4m3", "block_figures_e5m2", "block_figures_e2m1"}
    assert {kind for kind in PRODUCTS_OF_CODES if "block" in kind} == {kind for kind, _ in products(element)}


def test_arguments_are_what_parameters_take() -> None:
    known, element = all_parameters(), DType.FLOAT16
    launches = [one for kind, call in products(element) for one in work_of(kind, call) or () if isinstance(one, Launch)]
    for codes, scales in PAIRS:
        launches += launches_of("quantize_blocks", cast_of(spread_figures(element), codes, scales, (1, 16))) or ()
    assert len({launch.kernel for launch in launches}) >= 7
    for launch in launches:
        types = known[launch.kernel]
        assert len(types) == len(launch.arguments)
        wrong = [p for a, p in zip(launch.arguments, types, strict=True) if not fits(a, p, launch.element)]
        assert wrong == [], launch.kernel


def test_pieces_without_elements_and_float64_are_left_to_the_array_module() -> None:
    kind, call = next(products(DType.FLOAT32))
    assert work_of(kind, call) is not None
    few = (call.inputs[0][:0], call.inputs[1], call.inputs[2][:0], call.inputs[3])
    assert work_of(kind, replace(call, inputs=few, outputs=(call.outputs[0][:0],))) is None
    assert work_of(kind, replace(call, outputs=(call.outputs[0].astype(np.float64),))) is None
    cast = cast_of(np.zeros((3, 16), np.float32), E4M3, POWERS, (1, 16))
    assert launches_of("quantize_blocks", cast) is not None
    none = replace(cast, inputs=(cast.inputs[0][:0],), outputs=tuple(array[:0] for array in cast.outputs))
    assert launches_of("quantize_blocks", none) is None
