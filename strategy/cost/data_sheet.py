"""Data sheet: the constants of acts that nobody has measured here.

A CPU's figures count at face value. A GPU reaches, of what its sheet says, the shares that published training runs of
its generation reached (`strategy.closed_form`):

    products        tile and wave quantisation by shape, and the share that large products reach
    attention       the share that fused kernels reach; of what a causal mask hides they compute nothing
    other kernels   the share of the memory's bandwidth
    communication   what NCCL's cheapest algorithm makes of the links for large messages; without GPU-direct
                    no faster than the link to the host, and twice its latency later

A GPU whose generation is unknown takes the A100's shares. Latencies and launches are those of the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from strategy.base.errors import present
from strategy.closed_form import collectives, gemm
from strategy.closed_form.calibration import shipped
from strategy.closed_form.collectives import Group, family_of
from strategy.closed_form.constants import Constants
from strategy.closed_form.kernels import FLASH, full_rate_flop
from strategy.cost.measurement import Features
from strategy.graph.ops import cost_class
from strategy.graph.ops.traits import Attention, Convolution, CostClass, Gemm, Movement, Product, counts_flop
from strategy.hardware.cluster import Cluster, Device, Host, Link
from strategy.hardware.devices import DEVICES, DeviceSheet, Generation, named_sheet
from strategy.program.program import ActKind
from strategy.sbp.placement import Space
from strategy.sbp.tensor import DType, Shape

_LARGE = 2**30
"""Bytes of a message whose time is that of its bytes."""


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Constants of one kind (and level): seconds fixed (per hop for communication), per FLOP, per byte."""

    fixed_s: float
    s_per_flop: float
    s_per_byte: float


def data_sheet(cluster: Cluster, features: Features) -> Coefficients:
    """Constants of an act without measurements."""
    (found,) = data_sheets(cluster, [features])
    return found


def data_sheets(cluster: Cluster, features: Sequence[Features]) -> list[Coefficients]:
    """Constants of acts without measurements; what the shapes of products lose is found of all at once.

    In a cluster of several types each constant is that of the slowest type that takes part; where an act does not say
    who does, that of the fastest type.
    """
    if cluster.groups:
        each = [data_sheets(one, features) for one in cluster.types]
        return [_of_several([found[i] for found in each], one.groups) for i, one in enumerate(features)]
    full = dict[tuple[str, Shape | None], float]()
    shapes = tuple(dict.fromkeys((one.half, one.product) for one in features if one.product is not None))
    if shapes and cluster.device.backend != "numpy":
        full |= zip(shapes, _full_rate_flop(cluster.device, shapes), strict=True)
    return [_data_sheet(cluster, one, full.get((one.half, one.product), 0.0)) for one in features]


def _of_several(each: Sequence[Coefficients], groups: tuple[int, ...]) -> Coefficients:
    """Constants of an act, from those of every type."""
    pick, found = (max, [each[group] for group in groups]) if groups else (min, each)
    return Coefficients(*(pick(getattr(one, field.name) for one in found) for field in fields(Coefficients)))


def product_seconds(device: Device, kind: str, half: str, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Seconds of products on a GPU: rows, columns, depth and number of each, (products, 4); launches are not in it."""
    rate = device.product_flop_per_s(_dtype(half)) * _share(cost_class(kind), half, _sheet(device), shipped().constants)
    return _full_rate_flop_of(device, [half] * len(sizes), sizes) / rate


def _data_sheet(cluster: Cluster, features: Features, full_rate_flop: float) -> Coefficients:
    """Constants of an act; a product takes as long as so many FLOPs at the full rate."""
    device, cost = cluster.device, cost_class(features.kind)
    if isinstance(cost, Movement):
        host = _host(cluster)
        return Coefficients(host.link_latency_s, 0.0, 1 / host.link_bytes_per_s)
    if features.space is Space.HOST:
        host = _host(cluster)
        s_per_flop = 1 / host.flop_per_s if counts_flop(cost) else 0.0
        return Coefficients(device.launch_s, s_per_flop, 1 / host.memory_bytes_per_s)
    if features.level:
        link = cluster.link(features.level)
        s_per_byte = 1 / link.bytes_per_s
        if device.backend != "numpy":
            s_per_byte = _s_per_byte_sent(device, link, features.level, cluster.fabric, features.kind, features.hops)
        if features.level == "intra" or cluster.gpu_direct:
            return Coefficients(link.latency_s, 0.0, s_per_byte)
        host = _host(cluster)
        return Coefficients(link.latency_s + 2 * host.link_latency_s, 0.0, max(s_per_byte, 1 / host.link_bytes_per_s))
    if device.backend == "numpy":
        s_per_flop = 1 / device.product_flop_per_s(_dtype(features.half)) if counts_flop(cost) else 0.0
        return Coefficients(device.launch_s, s_per_flop, 1 / device.memory_bytes_per_s)
    if not counts_flop(cost):
        return Coefficients(device.launch_s, 0.0, 1 / (device.memory_bytes_per_s * shipped().constants["bytes.rate"]))
    s_per_flop = _s_per_flop(device, cost, features, full_rate_flop)
    return Coefficients(device.launch_s, s_per_flop, 0.0)


def unpublished(cluster: Cluster) -> tuple[str, ...]:
    """Parts of a cluster on which no published run was: what is said of them is its data sheet alone."""
    if cluster.groups:
        return tuple(dict.fromkeys(part for one in cluster.types for part in unpublished(one)))
    if cluster.device.backend == "numpy":
        return (f"device {cluster.device.name}", "links")
    fitted = shipped()
    seen = named_sheet(cluster.device.name)
    device = () if seen and seen.name in fitted.strata[""].devices else (f"device {cluster.device.name}",)
    known = cluster.nodes == 1 or f"fabric.{cluster.fabric}" in fitted.constants
    return device if known else (*device, f"fabric {cluster.fabric}")


def _s_per_flop(device: Device, cost: CostClass, features: Features, full_flop: float) -> float:
    """Seconds per counted FLOP on a GPU; where no shape is given, of one that loses nothing."""
    peak = device.product_flop_per_s(_dtype(features.half))
    rate = peak * _share(cost, features.half, _sheet(device), shipped().constants)
    if isinstance(cost, Attention):
        return (1.0 if features.every_pair else 0.5) / rate
    if features.product is None or not isinstance(cost, Product):
        return 1 / rate
    m, n, k, count = map(float, features.product)
    return full_flop / (2 * (m * n * k * count) * rate)


@lru_cache(maxsize=1 << 14)
def _full_rate_flop(device: Device, shapes: tuple[tuple[str, tuple[int, int, int, int]], ...]) -> list[float]:
    """FLOPs at the full rate that products take as long as, by what their shapes lose; each with its 16-bit dtype."""
    sizes = np.array([product for _, product in shapes], float)
    found: list[float] = _full_rate_flop_of(device, [half for half, _ in shapes], sizes).tolist()
    return found


def _full_rate_flop_of(device: Device, halves: Sequence[str], sizes: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    constants, sheet = shipped().constants, _sheet(device)
    m, n, k, count = sizes.astype(float).T
    peaks = {half: device.product_flop_per_s(_dtype(half)) for half in dict.fromkeys(halves)}
    lost = gemm.product(
        m, n, k, count,
        multiprocessors=np.full(len(sizes), float(sheet.multiprocessors)),
        peak=np.array([peaks[half] for half in halves]),
        bandwidth=np.full(len(sizes), device.memory_bytes_per_s),
        nbytes=np.array([2.0 if half else 4.0 for half in halves]),
    )  # fmt: skip
    return full_rate_flop(lost, constants)


def _sheet(device: Device) -> DeviceSheet:
    return named_sheet(device.name) or DEVICES["A100-80"]


def _share(cost: CostClass, half: str, sheet: DeviceSheet, constants: Constants) -> float:
    """Share of the peak that the kernels of a cost class reach where nothing of their shape is lost."""
    generation = sheet.generation
    clock = constants["rate.capped"] if sheet.power_cap_w else 1.0
    width = "single" if generation is Generation.VOLTA and not half else "half"
    if isinstance(cost, Attention):
        return clock * constants[f"flash.{FLASH[generation]}"]
    if isinstance(cost, Convolution):
        return clock * constants[f"conv.{width}"]
    of_weights = clock * constants[f"rate.{generation}.{width}"]
    if isinstance(cost, Product) and cost.gemm is not Gemm.SINGLE:
        return of_weights * constants[f"gemm.{cost.gemm}"]
    return of_weights


@cache
def _s_per_byte_sent(device: Device, link: Link, level: str, fabric: str, kind: str, hops: int) -> float:
    """Seconds per byte that the busiest rank of a group on one level sends in a large message."""
    constants, sheet = shipped().constants, _sheet(device)
    ranks = hops + 1 if kind not in (ActKind.ROTATE, ActKind.TRANSFER) else 2
    inside = level == "intra"
    group = Group(
        ranks=np.full(1, float(ranks)),
        local=np.full(1, float(ranks if inside else 1)),
        link=np.full(1, link.bytes_per_s),
        nic=np.full(1, link.bytes_per_s),
        family=np.full(1, family_of(sheet)),
        switched=np.full(1, sheet.switched),
        efa=np.zeros(1, dtype=bool),
    )
    whole = np.full(1, float(_LARGE))
    if kind == ActKind.ALL_REDUCE:
        seconds, sent = collectives.all_reduce(whole, group, constants), 2 * _LARGE * hops / ranks
    elif kind == ActKind.ALL_TO_ALL:
        seconds, sent = collectives.all_to_all(whole, group, constants), _LARGE * hops / ranks
    elif kind in (ActKind.ALL_GATHER, ActKind.REDUCE_SCATTER):
        seconds, sent = collectives.reduce_scatter(whole, group, constants), _LARGE * hops / ranks
    else:
        seconds, sent = collectives.send(whole, group, constants), float(_LARGE)
    over = 1.0 if inside else constants.get(f"fabric.{fabric}", 1.0)
    return float(seconds[0]) / sent / over


def _dtype(half: str) -> DType:
    return DType(half) if half else DType.FLOAT32


def _host(cluster: Cluster) -> Host:
    return present(cluster.host, "a host for what is offloaded")
