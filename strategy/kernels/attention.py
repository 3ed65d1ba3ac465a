"""Attention: seconds of fused attention forward, from tiles of scores, exponentials, bytes and launch.

A tile of 128 x 128 scores takes its two products at a share of the tensor cores' peak, and one exponential per score;
the two overlap but not perfectly (FlashAttention-3, arXiv:2407.08608), which the root of the sum of squares says. A
sequence of one head has a row of tiles per 128 queries; of causal ones half is hidden, but for the diagonal. A part of
a sequence sees as many keys as are left of the mask, as parts do that are dealt out evenly. Multiprocessors share all
rows evenly, but none is done before its longest row is. An inference engine also writes keys and values into its cache
of pages, token by token, by a kernel whose time grows with the root of a token's width.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strategy.hardware.devices import DeviceSheet
from strategy.kernels.precision import Floats

_TILE = 128
_WIDE = 256
"""The largest dim of a head that the fast kernels hold in registers."""


@dataclass(frozen=True, slots=True)
class AttentionConstants:
    """What fused attention reaches on one device; shares are of its sheet.

    Attributes:
        rate: share of the dense half peak of the products of a tile.
        exponentials_per_s: of one multiprocessor.
        memory: share of the memory's bandwidth.
        launch_s: seconds of launching.
        cached_token_s: seconds per token of 128 elements of keys that is written into a cache of pages.
        wide: times that products take longer for heads of more than 256 elements.
    """

    rate: float
    exponentials_per_s: float
    memory: float
    launch_s: float
    cached_token_s: float
    wide: float = 1.0


def seconds(
    sheet: DeviceSheet,
    constants: AttentionConstants,
    batch: Floats,
    seq: Floats,
    heads: Floats,
    kv_heads: Floats,
    head_dim: Floats,
    *,
    keys: Floats | None = None,
    causal: bool | npt.NDArray[np.bool_] = True,
    cached: bool = False,
) -> Floats:
    """Seconds of the forward pass in 16 bits.

    `seq` queries see as many `keys`, or as many as are given; `cached` where keys and values are written into pages.
    """
    keys = seq if keys is None else keys
    batch, seq, heads, kv_heads, head_dim, keys = (
        np.asarray(dim, dtype=float) for dim in np.broadcast_arrays(batch, seq, heads, kv_heads, head_dim, keys)
    )
    count = sheet.multiprocessors
    pair_s = pair_seconds(sheet, constants, head_dim)
    rows, columns = np.ceil(seq / _TILE), np.ceil(keys / _TILE)
    tiles = np.where(causal, rows * (columns + 1) / 2, rows * columns)
    computing = _TILE**2 * np.maximum(batch * heads * tiles, columns * count) * pair_s
    nbytes = 4 * batch * head_dim * (seq * heads + keys * kv_heads)
    moved = nbytes / (sheet.memory_bytes_per_s * constants.memory)
    caching = constants.cached_token_s * batch * seq * np.sqrt(kv_heads * head_dim / 128) if cached else 0.0
    found = constants.launch_s + computing + moved + caching
    return np.where((batch > 0) & (seq > 0) & (keys > 0) & (heads > 0), found, 0.0)


def least_seconds(sheet: DeviceSheet, constants: AttentionConstants, head_dim: float) -> tuple[float, float]:
    """(fixed, per score that the mask leaves) seconds that no attention takes less than, whatever its shape."""
    return constants.launch_s, float(pair_seconds(sheet, constants, np.asarray(head_dim, dtype=float)))


def pair_seconds(sheet: DeviceSheet, constants: AttentionConstants, head_dim: Floats) -> Floats:
    """Seconds of one score on all multiprocessors together."""
    products = 4 * head_dim / (sheet.half * constants.rate) * np.where(head_dim > _WIDE, constants.wide, 1.0)
    return np.hypot(products, 1 / (constants.exponentials_per_s * sheet.multiprocessors))
