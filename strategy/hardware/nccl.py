"""NCCL: the figures of its own tuning model (src/graph/tuning.cc), from `nccl.json`, which names the commit.

The closed form's collectives and the simulated exchange of gradients read them here. Latencies are whole nanoseconds in
the table, so that a difference of two is exact.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import IntEnum, StrEnum
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any

from strategy.hardware.devices import Generation

LL_SHARE = 0.5
"""Of a ring's bandwidth by LL, which sends a flag with every word."""
LL128_SHARE = 0.92
"""The same by LL128, with a flag in every line of 128 bytes; and of a tree's."""
TREE_LL_SHARE = 1 / 3.8
"""Of a tree's bandwidth by LL."""


class Algorithm(StrEnum):
    """Along what a collective sends; values are NCCL's words."""

    RING = "Ring"
    TREE = "Tree"


class Wire(StrEnum):
    """Over what a hop goes; values are NCCL's words."""

    NVLINK = "NVLINK"
    PCIE = "PCI"
    NETWORK = "NET"


class HopProtocol(IntEnum):
    """How a hop tells that its bytes are there: in the order of NCCL's tables."""

    LL = 0
    LL128 = 1
    SIMPLE = 2


@dataclass(frozen=True, slots=True)
class Tuning:
    """NCCL's table. Latencies by protocol, rates in bytes/s by generation.

    Attributes:
        base_ns: latency of a collective before its first hop.
        hop_ns: latency of one hop.
        nvls_ns: latency of an all-reduce inside NVLink's switch.
        most_by_ll: the most that LL carries inside one node.
        channel_by_ll128: what one channel of a ring by LL128 carries.
    """

    base_ns: Mapping[Algorithm, tuple[int, ...]]
    hop_ns: Mapping[tuple[Wire, Algorithm], tuple[int, ...]]
    nvls_ns: int
    most_by_ll: Mapping[Generation, float]
    channel_by_ll128: Mapping[Generation, float]

    def base_s(self, algorithm: Algorithm, protocol: int) -> float:
        """Seconds before the first hop."""
        return self.base_ns[algorithm][protocol] / 1e9

    def hop_s(self, wire: Wire, algorithm: Algorithm, protocol: int) -> float:
        """Seconds of a hop."""
        return self.hop_ns[wire, algorithm][protocol] / 1e9

    def fence_s(self, wire: Wire) -> float:
        """Seconds that a hop of a ring takes longer by Simple, which waits for a fence, than by LL."""
        by_protocol = self.hop_ns[wire, Algorithm.RING]
        return (by_protocol[HopProtocol.SIMPLE] - by_protocol[HopProtocol.LL]) / 1e9


@cache
def tuning() -> Tuning:
    """The table that comes with the package, read once."""
    path = resources.files("strategy.hardware") / "nccl.json"
    found = json.loads(path.read_text(encoding="utf-8"), parse_float=Decimal, parse_int=Decimal)
    hops, most, channels = (found[key] for key in ("hwLatencies", "llMaxBws", "perChMaxRingLL128"))
    return Tuning(
        base_ns=MappingProxyType({algorithm: _ns(found["baseLatencies"][algorithm]) for algorithm in Algorithm}),
        hop_ns=MappingProxyType({(wire, one): _ns(hops[wire][one]) for wire in Wire for one in Algorithm}),
        nvls_ns=_ns([hops[Wire.NVLINK]["NVLS_simple"]])[0],
        most_by_ll=MappingProxyType({one: _bytes_per_s(most[one.capitalize()][0]) for one in Generation}),
        channel_by_ll128=MappingProxyType({one: _bytes_per_s(channels[one.capitalize()]) for one in Generation}),
    )


def _ns(microseconds: Any) -> tuple[int, ...]:
    return tuple(int(figure * 1000) for figure in microseconds)


def _bytes_per_s(gigabytes_per_s: Decimal) -> float:
    return float(gigabytes_per_s * 10**9)
