"""Kernel prices: seconds of products and fused attention on a GPU by their shapes.

A kernel takes what microbenchmarks say of its shape (`strategy.kernels`), times what it takes longer in steps than by
itself, which published runs tell (`strategy.closed_form.kernels`): the same figures as of the step model. Launches are
in them. Peaks and bandwidth are those of the cluster's device, all else that of the sheet of its name; a GPU without a
sheet takes the A100's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, lru_cache

import numpy as np
import numpy.typing as npt

from strategy.closed_form.calibration import shipped
from strategy.closed_form.kernels import InSteps, in_steps_on
from strategy.closed_form.products import misfits
from strategy.cost.measurement import Features
from strategy.graph.ops import cost_class
from strategy.graph.ops.traits import Attention, CostClass, Gemm, Operands, Product
from strategy.hardware.cluster import Device
from strategy.hardware.devices import DEVICES, DeviceSheet, Generation, named_sheet
from strategy.kernels import on_device
from strategy.kernels.precision import KernelPrecision
from strategy.sbp.tensor import DType

Floats = npt.NDArray[np.float64]
_PAIR_FLOP = {False: 4, True: 10}
"""FLOPs per score and element of a head, of the forward pass and of the gradient."""
_WIDEST = 256
"""Elements of a head whose exponentials count least beside its products; of attention whose shape is not known."""


def has_kernel(features: Features) -> bool:
    """Whether an act is priced here: a product, or attention of a known shape."""
    cost = cost_class(features.kind)
    return (isinstance(cost, Product) and features.product is not None) or (
        isinstance(cost, Attention) and features.attention_shape is not None
    )


def kernel_seconds(device: Device, acts: Sequence[Features]) -> list[float]:
    """Seconds of acts that have a kernel, found of all alike at once."""
    alike: dict[Features, list[int]] = {}
    for i, one in enumerate(acts):
        alike.setdefault(Features(one.kind, 0, 0, half=one.half, every_pair=one.every_pair), []).append(i)
    found = [0.0] * len(acts)
    for like, mine in alike.items():
        shapes = tuple((acts[i].product or acts[i].attention_shape or (), acts[i].flop) for i in mine)
        for i, seconds in zip(mine, _alike_seconds(device, like, shapes), strict=True):
            found[i] = seconds
    return found


@lru_cache(maxsize=1 << 12)
def _alike_seconds(device: Device, like: Features, shapes: tuple[tuple[tuple[int, ...], int], ...]) -> list[float]:
    sizes = np.array([shape for shape, _ in shapes], float)
    if isinstance(cost_class(like.kind), Product):
        return [float(one) for one in product_seconds(device, like.kind, like.half, sizes)]
    flop = np.array([flop for _, flop in shapes], float)
    return [float(one) for one in _attention_seconds(device, like, sizes, flop)]


def product_seconds(device: Device, kind: str, half: str, sizes: npt.NDArray[np.generic]) -> Floats:
    """Seconds of products: rows, columns, depth and number of each, (products, 4)."""
    cost = cost_class(kind)
    sheet, precision, longer = _multiplying(device, half, blocks=isinstance(cost, Product) and cost.blocks)
    m, n, k, count = np.asarray(sizes, dtype=float).T
    if isinstance(cost, Product) and cost.gemm is Gemm.GROUPED:
        rows, columns, depth = (k, n, m) if cost.operands is Operands.TN else (m, n, k)
        seconds = on_device.grouped_seconds(sheet, precision, rows, columns, depth, count)
        _, per_flop_s = on_device.least_grouped_seconds(sheet, precision)
    else:
        seconds = on_device.product_seconds(sheet, precision, m, n, k, count)
        _, per_flop_s = on_device.least_product_seconds(sheet, precision)
    flat = np.minimum(2 * m * n * k * count * per_flop_s, seconds)
    odd, ragged = misfits(m, n, k)
    lost = longer.shape * (seconds - flat) + (longer.odd * odd + longer.ragged * ragged) * seconds
    return np.asarray(_longer(cost, longer) * (flat + lost))


def _attention_seconds(device: Device, like: Features, sizes: Floats, flop: Floats) -> Floats:
    """Seconds of fused attention and its gradient; as many keys as its FLOPs say."""
    cost = cost_class(like.kind)
    gradient = isinstance(cost, Attention) and cost.gradient
    sheet, _, longer = _multiplying(device, like.half)
    sequences, queries, heads, kv_heads, head_dim = sizes.T
    keys = flop / (_PAIR_FLOP[gradient] * sequences * queries * heads * head_dim)
    seconds = on_device.attention_seconds(
        sheet, sequences, queries, keys, heads, kv_heads, head_dim, causal=not like.every_pair
    )
    return seconds * (longer.attention_backward if gradient else longer.attention)


def least_seconds(device: Device, features: Features) -> tuple[float, float]:
    """(fixed, per FLOP) seconds that no part of an act that computes takes less than, however it is cut.

    Kernels are no faster than their best tiles (`strategy.kernels`), what starts them is lost like what their shapes
    lose, and misfits only slow them down.
    """
    cost = cost_class(features.kind)
    sheet, precision, longer = _multiplying(device, features.half, blocks=isinstance(cost, Product) and cost.blocks)
    if isinstance(cost, Attention):
        head_dim = features.attention_shape[-1] if features.attention_shape else _WIDEST
        fixed_s, per_pair_s = on_device.least_attention_seconds(sheet, head_dim)
        times = longer.attention_backward if cost.gradient else longer.attention
        left = 1.0 if features.every_pair else 0.5
        return times * fixed_s, times * left * per_pair_s / (_PAIR_FLOP[cost.gradient] * head_dim)
    in_groups = isinstance(cost, Product) and cost.gemm is Gemm.GROUPED
    least = on_device.least_grouped_seconds if in_groups else on_device.least_product_seconds
    fixed_s, per_flop_s = least(sheet, precision)
    times = _longer(cost, longer)
    return times * longer.shape * fixed_s, times * per_flop_s


def _longer(cost: CostClass, longer: InSteps) -> float:
    if isinstance(cost, Product):
        return {Gemm.BATCHED: longer.batched, Gemm.GROUPED: longer.grouped}.get(cost.gemm, longer.products)
    return longer.products


_CODES = DType.FLOAT8_E4M3, DType.FLOAT4_E2M1_X2


def _width(dtype: DType, *, blocks: bool) -> str:
    """Of codes, as `on_device` names it."""
    if dtype is DType.FLOAT4_E2M1_X2:
        return "four"
    return "mx8" if blocks else "eight"


@cache
def _multiplying(device: Device, half: str, *, blocks: bool = False) -> tuple[DeviceSheet, KernelPrecision, InSteps]:
    """A device as products of a dtype see it; float32 runs as TF32 where there is such, and loses as much as halves.

    Codes of 8 bits are multiplied as bf16 where the device has no faster way; those with a scale per block by a kernel
    of their own where the tensor cores do not scale blocks.
    """
    named, dtype = sheet_of(device), DType(half) if half else DType.FLOAT32
    eight, four = (device.product_flop_per_s(one) if dtype.is_code else 0.0 for one in _CODES)
    peak = device.product_flop_per_s(DType.BFLOAT16 if dtype.is_code else dtype)
    sheet = replace(named, half=peak, single=peak, eight=eight, four=four, memory_bytes_per_s=device.memory_bytes_per_s)
    width = _width(dtype, blocks=blocks) if dtype.is_code else "half" if half else "single"
    precision = on_device.precision_of(sheet, width)
    width = width if precision.casts else "half"
    own_single = named.generation is Generation.VOLTA and not half
    longer = in_steps_on(named, "single" if own_single else width, shipped().constants)
    return sheet, precision, longer


def sheet_of(device: Device) -> DeviceSheet:
    """The sheet of a device's name; the A100's where it has none."""
    return named_sheet(device.name) or DEVICES["A100-80"]
