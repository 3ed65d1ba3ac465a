"""On a device: seconds of kernels by the constants that come with the package.

This is where the step model (`strategy.closed_form`) and the prices of acts (`strategy.cost`) meet: both ask for a
product, a product of experts and attention here, of a device by its sheet and of an operand by its width.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np
import numpy.typing as npt

from strategy.hardware.devices import DeviceSheet, Generation
from strategy.kernels import attention, grouped, products
from strategy.kernels.attention import AttentionConstants
from strategy.kernels.calibration import KernelKind, shipped
from strategy.kernels.grouped import GroupedConstants
from strategy.kernels.precision import Floats, KernelPrecision
from strategy.kernels.products import ProductConstants


def precision_of(sheet: DeviceSheet, width: str) -> KernelPrecision:
    """The recipe of operands of a width, as jobs name it: single, half, eight, row8, mx8, four.

    Widths that the tensor cores lack are multiplied as the next wider ones. Blackwell scales blocks by itself, at the
    rate of tensors; on others blocks are a recipe of its own.
    """
    if width in ("single", "half"):
        return KernelPrecision.SINGLE if width == "single" else KernelPrecision.BF16
    if sheet.eight <= sheet.half:
        return KernelPrecision.BF16
    if width == "four" and sheet.four > sheet.eight:
        return KernelPrecision.NVFP4
    blocks = width == "mx8" and sheet.generation is not Generation.BLACKWELL
    return KernelPrecision.FP8_BLOCK if blocks else KernelPrecision.FP8


def product_seconds(
    sheet: DeviceSheet, precision: KernelPrecision, m: Floats, n: Floats, k: Floats, count: Floats | float = 1.0
) -> Floats:
    """Seconds of `count` products of (m, k) by (k, n) in one launch, of operands as they are multiplied.

    What casts them is no part of it: in a step that is fused with what makes them.
    """
    return products.seconds(sheet, precision, _of_products(sheet, precision), m, n, k, count, cast=False)


def least_product_seconds(sheet: DeviceSheet, precision: KernelPrecision) -> tuple[float, float]:
    """(fixed, per FLOP) seconds that no product takes less than."""
    return products.least_seconds(sheet, precision, _of_products(sheet, precision))


def grouped_seconds(
    sheet: DeviceSheet, precision: KernelPrecision, rows: Floats, columns: Floats, depth: Floats, experts: Floats
) -> Floats:
    """Seconds of one product of experts, each of so many `rows`."""
    return grouped.product_seconds(sheet, precision, _of_grouped(sheet, precision), rows, columns, depth, experts)


def least_grouped_seconds(sheet: DeviceSheet, precision: KernelPrecision) -> tuple[float, float]:
    """(fixed, per FLOP) seconds that no product of experts takes less than."""
    return grouped.least_seconds(sheet, precision, _of_grouped(sheet, precision))


def attention_seconds(
    sheet: DeviceSheet,
    batch: Floats,
    queries: Floats,
    keys: Floats,
    heads: Floats,
    kv_heads: Floats,
    head_dim: Floats,
    *,
    causal: bool | npt.NDArray[np.bool_],
) -> Floats:
    """Seconds of fused attention forward; a sheet's `half` is the peak of its products."""
    constants = _of_attention(sheet)
    return attention.seconds(sheet, constants, batch, queries, heads, kv_heads, head_dim, keys=keys, causal=causal)


def least_attention_seconds(sheet: DeviceSheet, head_dim: float) -> tuple[float, float]:
    """(fixed, per score that the mask leaves) seconds that no fused attention takes less than, forward."""
    return attention.least_seconds(sheet, _of_attention(sheet), head_dim)


@cache
def _of_products(sheet: DeviceSheet, precision: KernelPrecision) -> ProductConstants:
    found = shipped().constants(KernelKind.PRODUCTS, precision, sheet)
    assert isinstance(found, ProductConstants)
    return found


@cache
def _of_grouped(sheet: DeviceSheet, precision: KernelPrecision) -> GroupedConstants:
    found = shipped().constants(KernelKind.GROUPED, precision, sheet)
    assert isinstance(found, GroupedConstants)
    return found


@cache
def _of_attention(sheet: DeviceSheet) -> AttentionConstants:
    found = shipped().constants(KernelKind.ATTENTION, KernelPrecision.BF16, sheet)
    assert isinstance(found, AttentionConstants)
    return found


def at_width(sheet: DeviceSheet, width: str) -> DeviceSheet:
    """The sheet of a device whose attention is computed in single precision, or in half."""
    return replace(sheet, half=sheet.single) if width == "single" else sheet
