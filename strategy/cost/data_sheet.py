"""Data sheet: the constants of acts that nobody has measured here.

A CPU's figures count at face value. A GPU reaches, of what its sheet says, the shares that published training runs of
its generation reached (`strategy.closed_form`):

    products        what kernels of their shape take (`kernel_prices`)
    attention       the same; of what a causal mask hides it computes nothing
    other kernels   the share of the memory's bandwidth
    communication   what NCCL's cheapest algorithm makes of the links for large messages; without GPU-direct
                    no faster than the link to the host, and twice its latency later

A GPU whose generation is unknown takes the A100's shares. Latencies and launches are those of the cluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache

import numpy as np

from strategy.base.errors import present
from strategy.closed_form import collectives
from strategy.closed_form.calibration import shipped
from strategy.closed_form.collectives import Group, family_of
from strategy.closed_form.kernels import clock_of
from strategy.cost.kernel_prices import has_kernel, kernel_seconds, least_seconds, sheet_of
from strategy.cost.measurement import Features
from strategy.graph.ops import cost_class
from strategy.graph.ops.traits import Convolution, Movement, counts_flop
from strategy.hardware.cluster import Cluster, Device, Host, Link
from strategy.hardware.devices import Generation, named_sheet
from strategy.program.program import ActKind
from strategy.sbp.placement import Space
from strategy.sbp.tensor import DType

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
    """Constants of acts without measurements; what kernels take by their shapes is found of all at once.

    In a cluster of several types each constant is that of the slowest type that takes part; where an act does not say
    who does, that of the fastest type.
    """
    if cluster.groups:
        each = [data_sheets(one, features) for one in cluster.types]
        return [_of_several([found[i] for found in each], one.groups) for i, one in enumerate(features)]
    if cluster.device.backend == "numpy":
        return [_data_sheet(cluster, one) for one in features]
    kernels = [i for i, one in enumerate(features) if one.space is Space.DEVICE and one.flop and has_kernel(one)]
    known = dict(zip(kernels, kernel_seconds(cluster.device, [features[i] for i in kernels]), strict=True))
    return [
        Coefficients(0.0, known[i] / one.flop, 0.0) if i in known else _data_sheet(cluster, one)
        for i, one in enumerate(features)
    ]


def least_of_sheet(cluster: Cluster, features: Features) -> Coefficients:
    """Constants by which no part of an act without measurements is priced lower, whatever its shape."""
    if cluster.groups:
        return _of_several([least_of_sheet(one, features) for one in cluster.types], features.groups)
    return _data_sheet(cluster, features)


def _of_several(each: Sequence[Coefficients], groups: tuple[int, ...]) -> Coefficients:
    """Constants of an act, from those of every type."""
    pick, found = (max, [each[group] for group in groups]) if groups else (min, each)
    return Coefficients(*(pick(getattr(one, field.name) for one in found) for field in fields(Coefficients)))


def _data_sheet(cluster: Cluster, features: Features) -> Coefficients:
    """Constants of an act by its kind alone; of a product or attention those that no shape goes below."""
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
    if isinstance(cost, Convolution):
        return Coefficients(device.launch_s, _s_per_convolved_flop(device, features.half), 0.0)
    return Coefficients(*least_seconds(device, features), 0.0)


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


def _s_per_convolved_flop(device: Device, half: str) -> float:
    sheet, constants = sheet_of(device), shipped().constants
    clock = clock_of(sheet, constants)
    width = "single" if sheet.generation is Generation.VOLTA and not half else "half"
    return 1 / (device.product_flop_per_s(_dtype(half)) * clock * constants[f"conv.{width}"])


@cache
def _s_per_byte_sent(device: Device, link: Link, level: str, fabric: str, kind: str, hops: int) -> float:
    """Seconds per byte that the busiest rank of a group on one level sends in a large message."""
    constants, sheet = shipped().constants, sheet_of(device)
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
