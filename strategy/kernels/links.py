"""Collectives inside one domain: seconds by NCCL's rings, and by kernels that read the others' memory directly.

Ring: a base, a latency per step, bytes on the wire at a share of the link, what fills the pipeline of chunks (it grows
with the root of the bytes, as chunks of the best size do), and a rank's own part, which an all-gather, a reduce-
scatter and an all-to-all copy through the memory. Point-to-point sends have fewer channels towards few peers.

Direct: one shot reads all of the others' bytes; two shots read a part, reduce it and read the others' results. The
cheaper counts. All are increasing in the bytes, and more ranks never finish the same bytes of an all-reduce earlier.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from strategy.base.errors import InputError
from strategy.hardware.devices import DeviceSheet
from strategy.kernels.precision import Floats
from strategy.program.program import ActKind

_RINGS = (ActKind.ALL_REDUCE, ActKind.ALL_GATHER, ActKind.REDUCE_SCATTER, ActKind.ALL_TO_ALL)


@dataclass(frozen=True, slots=True)
class RingConstants:
    """What NCCL reaches in one domain; shares are of the device's sheet.

    Attributes:
        rate: share of the links.
        copying: share of the memory's bandwidth at which a rank copies its own part.
        base_s: seconds before the first step.
        step_s: seconds of one step.
        fill_s: seconds of transfer that fill the pipeline once: it adds sqrt(fill_s * seconds on the wire).
        few_peers: share of the links that an all-to-all among n ranks lacks, times n.
    """

    rate: float
    copying: float
    base_s: float
    step_s: float
    fill_s: float
    few_peers: float


@dataclass(frozen=True, slots=True)
class DirectConstants:
    """What one- and two-shot all-reduces reach in one domain; shares are of the device's links.

    Attributes:
        one_shot: share of the links by one shot.
        two_shot: share by two shots.
        base_s: seconds before anything is read.
        peer_s: seconds per peer.
        second_s: seconds more of the second shot.
        fill_s: as of a ring, of two shots.
    """

    one_shot: float
    two_shot: float
    base_s: float
    peer_s: float
    second_s: float
    fill_s: float


def ring(sheet: DeviceSheet, constants: RingConstants, collective: ActKind, ranks: Floats, nbytes: Floats) -> Floats:
    """Seconds by NCCL among `ranks` of one domain; `nbytes` in all, of an all-reduce and all-to-all per rank.

    Raises:
        InputError: an act that is no collective.
    """
    if collective not in _RINGS:
        raise InputError("no collective", got=collective, expected=", ".join(_RINGS))
    rounds = 2 if collective is ActKind.ALL_REDUCE else 1
    ranks, nbytes = (np.asarray(value, dtype=float) for value in np.broadcast_arrays(ranks, nbytes))
    n = np.maximum(ranks, 2)
    sends = collective is ActKind.ALL_TO_ALL
    steps = np.ones_like(n) if sends else rounds * (n - 1)
    rate = sheet.link_bytes_per_s * constants.rate * (1 - constants.few_peers / n if sends else 1.0)
    wire = rounds * (n - 1) / n * nbytes / rate
    own = 0.0 if collective is ActKind.ALL_REDUCE else nbytes / n / (sheet.memory_bytes_per_s * constants.copying)
    found = constants.base_s + steps * constants.step_s + wire + np.sqrt(constants.fill_s * wire) + own
    return np.where((ranks > 1) & (nbytes > 0), found, 0.0)


def direct(sheet: DeviceSheet, constants: DirectConstants, ranks: Floats, nbytes: Floats) -> Floats:
    """Seconds of an all-reduce of `nbytes` per rank by one or two shots among `ranks` of one domain."""
    ranks, nbytes = (np.asarray(value, dtype=float) for value in np.broadcast_arrays(ranks, nbytes))
    n = np.maximum(ranks, 2)
    one = (n - 1) * nbytes / (sheet.link_bytes_per_s * constants.one_shot)
    wire = 2 * (n - 1) / n * nbytes / (sheet.link_bytes_per_s * constants.two_shot)
    two = constants.second_s + wire + np.sqrt(constants.fill_s * wire)
    found = constants.base_s + (n - 1) * constants.peer_s + np.minimum(one, two)
    return np.where((ranks > 1) & (nbytes > 0), found, 0.0)
