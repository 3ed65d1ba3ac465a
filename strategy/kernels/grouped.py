"""Grouped products: seconds of the experts' products of one rank, with routing, permutation and casts.

    work = sqrt(multiply-adds^2 + bytes of weights^2) + bytes of activations + routing
    seconds = launch + work + sqrt(fill * work)

Every expert that has a row loads its weights and has half a tile of rows that count for nothing; activations are
gathered, cast, written between the products and added up again; every choice of every token is sorted, whichever rank
it is for. The root is what filling the multiprocessors takes: little work keeps few of them busy.

A product by itself, forward or backward, takes its part of that: multiply-adds, the bytes of its operands and result,
the filling, and one of the launches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strategy.hardware.devices import DeviceSheet
from strategy.kernels.expert_load import RankLoad
from strategy.kernels.precision import Floats, KernelPrecision

_ALIGNED_BYTES = 128
"""To which the width of an expert's part is filled up: 64 elements of 16 bits, 128 of fewer."""
_HALF_TILE = 64.0
"""Rows by which an expert's last tile of 128 is filled up on average."""
_LAUNCHES = 6
"""Kernels of a layer of experts: sorting, gathering, two products, what is between them, adding up."""


@dataclass(frozen=True, slots=True)
class GroupedConstants:
    """What experts' products of one precision reach on one device; shares are of its sheet.

    Attributes:
        rate: share of the dense peak.
        weights: share of the memory's bandwidth at which weights are loaded; above 1 where a benchmark's weights stay
            in the cache from run to run.
        activations: share of the memory's bandwidth at which activations are moved.
        fill_s: seconds of work that fill the device once.
        launch_s: seconds of launching all kernels.
        choice_s: seconds per choice that is sorted.
    """

    rate: float
    weights: float
    activations: float
    fill_s: float
    launch_s: float
    choice_s: float


@dataclass(frozen=True, slots=True)
class ExpertLayer:
    """Experts, one entry per layer: `ffn` is the width of one over `parts` ranks; `matrices` 3 if gated, else 2."""

    hidden: Floats
    ffn: Floats
    parts: Floats
    matrices: Floats


def seconds(
    sheet: DeviceSheet,
    precision: KernelPrecision,
    constants: GroupedConstants,
    layer: ExpertLayer,
    load: RankLoad,
    choices: Floats,
) -> Floats:
    """Seconds of the experts of the rank that has `load`; `choices` are all tokens times the experts that each has."""
    aligned = _ALIGNED_BYTES // max(int(precision.weight_bytes), 1)
    width = np.ceil(layer.ffn / layer.parts / aligned) * aligned
    bandwidth = sheet.memory_bytes_per_s
    rows = load.rows + load.experts * _HALF_TILE
    flop = 2 * rows * layer.hidden * width * layer.matrices
    weights = load.experts * layer.matrices * layer.hidden * width * precision.weight_bytes
    operand = precision.operand_bytes
    per_row = layer.hidden * (2 + operand + 2) + width * (2 * (layer.matrices - 1) + 2 + operand)
    multiplying = np.hypot(
        flop / (sheet.peak(precision.multiplied_bits) * constants.rate), weights / (bandwidth * constants.weights)
    )
    moving = load.rows * per_row / (bandwidth * constants.activations)
    work = multiplying + moving + choices * constants.choice_s
    return np.asarray(constants.launch_s + work + np.sqrt(constants.fill_s * work), dtype=float)


def product_seconds(
    sheet: DeviceSheet,
    precision: KernelPrecision,
    constants: GroupedConstants,
    rows: Floats,
    columns: Floats,
    depth: Floats,
    experts: Floats,
) -> Floats:
    """Seconds of one product of `experts`, each (rows, depth) by (depth, columns); 0 where a dim is 0.

    `rows` are of an expert's tokens. The gradient of its weights has them as the depth: give (tokens, depth, columns).
    """
    rows, columns, depth, experts = (
        np.asarray(dim, dtype=float) for dim in np.broadcast_arrays(rows, columns, depth, experts)
    )
    there = (rows > 0) & (columns > 0) & (depth > 0) & (experts > 0)
    flop = 2 * experts * (rows + _HALF_TILE) * columns * depth
    tokens_nbytes = rows * (depth * precision.operand_bytes + columns * precision.given_bytes)
    nbytes = experts * (columns * depth * precision.weight_bytes + tokens_nbytes)
    bandwidth = sheet.memory_bytes_per_s
    work = np.hypot(
        flop / (sheet.peak(precision.multiplied_bits) * constants.rate), nbytes / (bandwidth * constants.weights)
    )
    found = constants.launch_s / _LAUNCHES + work + np.sqrt(constants.fill_s * work)
    return np.where(there, found, 0.0)


def least_seconds(sheet: DeviceSheet, precision: KernelPrecision, constants: GroupedConstants) -> tuple[float, float]:
    """(fixed, per FLOP) seconds that no product takes less than, whatever its shape."""
    return constants.launch_s / _LAUNCHES, 1 / (sheet.peak(precision.multiplied_bits) * constants.rate)
