"""What if the cluster were another: `inter.bandwidth=2x`, `device.compute=500 TFLOP/s`, `inter.gpu_direct=false`.

A field is one of the cluster file's; its new figure is a factor, or absolute with a unit. What was measured on the
cluster is scaled with it: with twice the bandwidth, a byte takes half the time that it took. What was measured between
nodes through the host says nothing of GPU-direct: with it, the data sheet says.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strategy.base.errors import InputError, did_you_mean, report
from strategy.base.limits import LARGEST, LONGEST_ACT_S
from strategy.base.units import parse_bandwidth, parse_compute, parse_seconds
from strategy.cost.cost import CostModel
from strategy.cost.data_sheet import Coefficients
from strategy.cost.measurement import CostKey
from strategy.graph.ops import cost_class
from strategy.graph.ops.traits import Movement
from strategy.hardware.cluster import Cluster, of_groups
from strategy.sbp.placement import Space


@dataclass(frozen=True, slots=True)
class Field:
    """A figure of the cluster: where it stands, how it is read, and which constants depend on it."""

    part: str
    name: str
    parse: Callable[..., float]
    example: str
    least: float
    most: float


def _share(text: str, *, where: str) -> float:
    """A percentage, as a share of one."""
    if not text.endswith("%"):
        raise InputError("no percentage", where=where, got=text)
    try:
        return float(text[:-1]) / 100
    except ValueError:
        raise InputError("no percentage", where=where, got=text) from None


def _rate(part: str, name: str, parse: Callable[..., float], example: str) -> Field:
    return Field(part, name, parse, example, 1.0, LARGEST)


def _time(part: str, name: str) -> Field:
    return Field(part, name, parse_seconds, "5 us", 1e-12, LONGEST_ACT_S)


FIELDS: Mapping[str, Field] = {
    "device.compute": _rate("device", "flop_per_s", parse_compute, "312 TFLOP/s"),
    "device.memory_bandwidth": _rate("device", "memory_bytes_per_s", parse_bandwidth, "2 TB/s"),
    "device.launch": _time("device", "launch_s"),
    "device.slowdown": Field("device", "slowdown", _share, "20 %", 0.0, 0.99),
    "intra.bandwidth": _rate("intra", "bytes_per_s", parse_bandwidth, "300 GB/s"),
    "intra.latency": _time("intra", "latency_s"),
    "inter.bandwidth": _rate("inter", "bytes_per_s", parse_bandwidth, "25 GB/s"),
    "inter.latency": _time("inter", "latency_s"),
    "host.compute": _rate("host", "flop_per_s", parse_compute, "1 TFLOP/s"),
    "host.memory_bandwidth": _rate("host", "memory_bytes_per_s", parse_bandwidth, "50 GB/s"),
    "host.bandwidth": _rate("host", "link_bytes_per_s", parse_bandwidth, "32 GB/s"),
    "host.latency": _time("host", "link_latency_s"),
}


GPU_DIRECT = "inter.gpu_direct"
TRUTHS = {"true": True, "false": False}


def what_if(cost: CostModel, changes: Sequence[str]) -> CostModel:
    """The cost model on the cluster with these changes, each `FIELD=FIGURE`.

    Raises:
        InputError: with every change that cannot be made.
    """
    pairs = [change.partition("=") for change in changes]
    given = Counter(key.strip() for key, _, _ in pairs)
    problems = [InputError("given more than once", where=f"--set {key}") for key, count in given.items() if count > 1]
    cluster = cost.cluster
    for key, _, text in pairs:
        try:
            cluster = _changed(cluster, key.strip(), text.strip())
        except InputError as error:
            problems.append(error)
    report(problems, where="--set")
    straight = cluster.gpu_direct and not cost.cluster.gpu_direct
    coefficients = {
        key: _scaled(key, found, cost.cluster, cluster)
        for key, found in cost.coefficients.items()
        if not (straight and key.level == "inter")
    }
    return replace(cost, cluster=cluster, coefficients=coefficients)


def _changed(cluster: Cluster, key: str, text: str) -> Cluster:
    where = f"--set {key}"
    if key == GPU_DIRECT:
        return _with_gpu_direct(cluster, text, where)
    field = FIELDS.get(key)
    if field is None:
        known = (*FIELDS, GPU_DIRECT)
        expected = f"one of: {', '.join(known)}"
        raise InputError("unknown field", where=where, expected=expected, hint=did_you_mean(key, known))
    if not cluster.groups or field.part == "inter":
        return replace(cluster, **{field.part: _with_figure(getattr(cluster, field.part), field, text, where)})
    changed = [{field.part: _with_figure(getattr(one, field.part), field, text, where)} for one in cluster.groups]
    groups = [replace(one, **part) for one, part in zip(cluster.groups, changed, strict=True)]
    found = cluster.name, cluster.devices_per_node, groups, cluster.inter, cluster.fabric
    return of_groups(*found, gpu_direct=cluster.gpu_direct)


def _with_figure(part: Any, field: Field, text: str, where: str) -> Any:
    """A part of a cluster, or of a group of its nodes, with another figure."""
    if part is None:
        raise InputError(f"the cluster has no {field.part}", where=where)
    current = getattr(part, field.name)
    expected = f'a factor such as "2x", or a figure with its unit such as "{field.example}", above zero'
    if text.endswith("x"):
        try:
            figure = current * float(text[:-1])
        except ValueError:
            raise InputError("not a factor", where=where, got=text, expected=expected) from None
    else:
        try:
            figure = field.parse(text, where=where)
        except InputError:
            raise InputError("not a possible figure", where=where, got=text, expected=expected) from None
    if not (math.isfinite(figure) and field.least <= figure <= field.most):
        raise InputError("not a possible figure", where=where, got=text, expected=expected)
    return replace(part, **{field.name: figure})


def _with_gpu_direct(cluster: Cluster, text: str, where: str) -> Cluster:
    if text not in TRUTHS:
        raise InputError("neither true nor false", where=where, got=text, expected="true or false")
    if not TRUTHS[text] and cluster.host is None:
        raise InputError("the cluster has no host to pass through", where=where)
    return replace(cluster, gpu_direct=TRUTHS[text])


def _scaled(key: CostKey, found: Coefficients, old: Cluster, new: Cluster) -> Coefficients:
    """Measured constants of a kind of act, changed as much as the figures that they depend on."""
    if key.level:
        before, after = old.link(key.level), new.link(key.level)
        scaled = _times(found, before.latency_s, after.latency_s, byte=before.bytes_per_s / after.bytes_per_s)
        if key.level == "inter" and old.gpu_direct and not new.gpu_direct and new.host is not None:
            copied_s = max(scaled.s_per_byte, 1 / new.host.link_bytes_per_s)
            return replace(scaled, fixed_s=scaled.fixed_s + 2 * new.host.link_latency_s, s_per_byte=copied_s)
        return scaled
    if old.host is not None and new.host is not None:
        one, other = old.host, new.host
        if isinstance(cost_class(key.kind), Movement):
            byte = one.link_bytes_per_s / other.link_bytes_per_s
            return _times(found, one.link_latency_s, other.link_latency_s, byte=byte)
        if key.space is Space.HOST:
            flop, byte = one.flop_per_s / other.flop_per_s, one.memory_bytes_per_s / other.memory_bytes_per_s
            return _times(found, old.device.launch_s, new.device.launch_s, flop=flop, byte=byte)
    flop = old.device.flop_per_s / new.device.flop_per_s
    byte = old.device.memory_bytes_per_s / new.device.memory_bytes_per_s
    return _times(found, old.device.launch_s, new.device.launch_s, flop=flop, byte=byte)


def _times(found: Coefficients, old_s: float, new_s: float, *, flop: float = 1.0, byte: float = 1.0) -> Coefficients:
    """Constants under another fixed time, and with this much more time per FLOP and byte."""
    fixed_s = found.fixed_s * new_s / old_s if old_s else found.fixed_s + new_s
    return Coefficients(fixed_s, found.s_per_flop * flop, found.s_per_byte * byte)
