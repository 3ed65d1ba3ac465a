"""Cluster files: a cluster in TOML, read with every problem named by its key, and written.

name = "two-boxes"
nodes = 2
devices_per_node = 8

[device]
name = "A100-SXM4-80GB"
backend = "cupy"
memory = "80 GiB"
memory_bandwidth = "2039 GB/s"
launch = "5 us"
compute = "156 TFLOP/s"          # of float32; here by TF32
bf16_speedup = 2.0               # of products in bfloat16, over `compute`; 1 if not given
fp16_speedup = 2.0
fp8_speedup = 2.0                # of codes of 8 bits; where it is no more than bf16's, they multiply as bf16
mx_scales = false                # whether these scale blocks of 32 by powers of two by themselves (mxfp8)
nvfp4_speedup = 1.0              # of codes of 4 bits in blocks of 16 (nvfp4)
slowdown = 0.19                  # of what computes beside communication; 0 if not given

[intra]                          # between devices of a node, per device and direction
bandwidth = "300 GB/s"
latency = "3 us"

[inter]                          # between nodes, per device and direction
bandwidth = "25 GB/s"
latency = "5 us"
fabric = "infiniband"            # omnipath, edr or tcp; infiniband if not given
gpu_direct = true                # false: what leaves a node passes through the host, [host] bandwidth both ways

[host]                           # a device's share of its node, for offloading; may be left out
memory = "256 GiB"
memory_bandwidth = "51 GB/s"
compute = "1.1 TFLOP/s"
bandwidth = "31.5 GB/s"          # between device and host, per direction
latency = "10 us"

Where nodes are of several types, groups of alike nodes stand in the place of nodes, [device], [intra] and [host]. Ranks
count node by node, group by group. A host is there in all groups or in none.

name = "three-and-three"
devices_per_node = 5

[inter]
bandwidth = "25 GB/s"
latency = "5 us"

[[group]]
nodes = 3
device = { name = "A100-SXM4-80GB", backend = "cupy", ... }
intra = { bandwidth = "300 GB/s", latency = "3 us" }

[[group]]
nodes = 3
device = { name = "H100-SXM5-80GB", backend = "cupy", ... }
intra = { bandwidth = "450 GB/s", latency = "3 us" }
"""

from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from strategy.base.errors import InputError, did_you_mean
from strategy.base.limits import LARGEST, LONGEST_ACT_S
from strategy.base.units import parse_bandwidth, parse_bytes, parse_compute, parse_seconds
from strategy.hardware.cluster import NETWORKS, AlikeNodes, Cluster, Device, Host, Link, of_groups

Number = TypeVar("Number", int, float)

_DEVICE_KEYS = (
    "name",
    "backend",
    "memory",
    "memory_bandwidth",
    "compute",
    "launch",
    "bf16_speedup",
    "fp16_speedup",
    "fp8_speedup",
    "mx_scales",
    "nvfp4_speedup",
    "slowdown",
)
_LINK_KEYS = ("bandwidth", "latency", "overlaps")
_NETWORK_KEYS = (*_LINK_KEYS, "fabric", "gpu_direct")
_HOST_KEYS = ("memory", "memory_bandwidth", "compute", "bandwidth", "latency")
_NODE_KEYS = ("nodes", "device", "intra", "host")


def read_cluster(path: Path) -> Cluster:
    """A cluster file, every problem of it reported with its key.

    Raises:
        InputError: the file is missing, is no TOML, or has a wrong key or figure.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError("no such cluster file", where=str(path)) from error
    except (OSError, ValueError, RecursionError) as error:
        raise InputError("cannot be read as TOML", where=str(path), got=str(error)) from error
    if "group" in document:
        cluster = _mixed(str(path), document)
    else:
        root = _Table(str(path), document, ("name", "nodes", "devices_per_node", "device", "intra", "inter", "host"))
        network = root.table("inter", _NETWORK_KEYS) if "inter" in document else root.table("intra", _LINK_KEYS)
        cluster = Cluster(
            name=root.text("name"),
            nodes=root.count("nodes"),
            devices_per_node=root.count("devices_per_node"),
            device=_device(root.table("device", _DEVICE_KEYS)),
            intra=_link(root.table("intra", _LINK_KEYS)),
            inter=_link(network),
            host=_host(root.table("host", _HOST_KEYS)) if "host" in document else None,
            fabric=network.one_of("fabric", NETWORKS),
            gpu_direct=network.truth("gpu_direct"),
        )
    if not cluster.gpu_direct and cluster.host is None:
        where = f"{path}: [inter]: gpu_direct"
        raise InputError("no host to pass through", where=where, got=False, hint="add a [host]")
    return cluster


def _mixed(path: str, document: dict[str, Any]) -> Cluster:
    """A file of several groups of nodes.

    Raises:
        InputError: it is wrong.
    """
    for key in _NODE_KEYS:
        if key in document:
            hint = f"write {key} into every [[group]]"
            raise InputError("not beside groups of nodes", where=f"{path}: {key}", hint=hint)
    root = _Table(path, document, ("name", "devices_per_node", "inter", "group"))
    network = root.table("inter", _NETWORK_KEYS)
    groups = []
    for one in root.tables("group", _NODE_KEYS):
        group = AlikeNodes(
            nodes=one.count("nodes"),
            device=_device(one.table("device", _DEVICE_KEYS)),
            intra=_link(one.table("intra", _LINK_KEYS)),
            host=_host(one.table("host", _HOST_KEYS)) if one.has("host") else None,
        )
        groups.append(group)
    found = root.text("name"), root.count("devices_per_node"), groups, _link(network)
    try:
        return of_groups(*found, network.one_of("fabric", NETWORKS), gpu_direct=network.truth("gpu_direct"))
    except InputError as error:
        where = f"{path}: {error.where}"
        raise InputError(error.problem, where=where, got=error.got, expected=error.expected, hint=error.hint) from error


def _device(table: _Table) -> Device:
    device = Device(
        name=table.text("name"),
        backend=table.text("backend"),
        memory_bytes=table.size("memory"),
        memory_bytes_per_s=table.rate("memory_bandwidth", parse_bandwidth),
        flop_per_s=table.rate("compute", parse_compute),
        launch_s=table.seconds("launch"),
        bf16_speedup=table.ratio("bf16_speedup"),
        fp16_speedup=table.ratio("fp16_speedup"),
        fp8_speedup=table.ratio("fp8_speedup"),
        mx_scales=table.truth("mx_scales", unsaid=False),
        nvfp4_speedup=table.ratio("nvfp4_speedup"),
        slowdown=table.share("slowdown"),
    )
    if device.backend not in ("numpy", "cupy"):
        raise InputError("unknown backend", where=table.at("backend"), got=device.backend, expected='"numpy" or "cupy"')
    return device


def _link(table: _Table) -> Link:
    overlaps = table.truth("overlaps") if table.has("overlaps") else None
    return Link(table.rate("bandwidth", parse_bandwidth), table.seconds("latency"), overlaps)


def _host(table: _Table) -> Host:
    link = _link(table)
    return Host(
        memory_bytes=table.size("memory"),
        memory_bytes_per_s=table.rate("memory_bandwidth", parse_bandwidth),
        flop_per_s=table.rate("compute", parse_compute),
        link_bytes_per_s=link.bytes_per_s,
        link_latency_s=link.latency_s,
    )


class _Table:
    """One TOML table, in which every key is a known one."""

    def __init__(self, path: str, content: Any, known: tuple[str, ...]) -> None:
        self._path = path
        if not isinstance(content, dict):
            raise InputError("not a table", where=path, got=content, expected="[section] with keys")
        absent = [key for key in known if key not in content]
        for key in content:
            if key not in known:
                raise InputError("unknown key", where=self.at(key), hint=did_you_mean(key, absent or known))
        self._content = content

    def at(self, key: str) -> str:
        """Where a key stands, for messages."""
        return f"{self._path}: {key}"

    def take(self, key: str) -> Any:
        """The value of a key that must be there."""
        if key not in self._content:
            raise InputError("the key is missing", where=self.at(key))
        return self._content[key]

    def text(self, key: str) -> str:
        """A text that must be there."""
        value = self.take(key)
        if not isinstance(value, str) or not value:
            raise InputError("not a text", where=self.at(key), got=value)
        return value

    def count(self, key: str) -> int:
        """A whole number >= 1 that must be there."""
        value = self.take(key)
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError("not a count", where=self.at(key), got=value, expected="a whole number >= 1")
        return self._within(key, value, 1, LARGEST)

    def size(self, key: str) -> int:
        """Bytes that must be there."""
        return self._within(key, parse_bytes(self.take(key), where=self.at(key)), 0, LARGEST)

    def rate(self, key: str, parse: Callable[..., float]) -> float:
        """So much per second, which must be there."""
        return self._within(key, parse(self.take(key), where=self.at(key)), 1.0, LARGEST)

    def seconds(self, key: str) -> float:
        """A time that must be there."""
        return self._within(key, parse_seconds(self.take(key), where=self.at(key)), 0.0, LONGEST_ACT_S)

    def _within(self, key: str, value: Number, least: float, most: float) -> Number:
        """A figure as plans may hold it."""
        if not least <= value <= most:
            got, expected = self._content[key], f"a figure from {least:g} to {most:.3g} in bytes, FLOPs and seconds"
            raise InputError("a figure out of range", where=self.at(key), got=got, expected=expected)
        return value

    def one_of(self, key: str, known: tuple[str, ...]) -> str:
        """One of several words; the first where it is not given."""
        value = self._content.get(key, known[0])
        if value not in known:
            raise InputError("not known", where=self.at(key), got=value, expected=" or ".join(known))
        return str(value)

    def truth(self, key: str, *, unsaid: bool = True) -> bool:
        """true or false; `unsaid` where it is not given."""
        value = self._content.get(key, unsaid)
        if not isinstance(value, bool):
            raise InputError("neither true nor false", where=self.at(key), got=value, expected="true or false")
        return value

    def ratio(self, key: str) -> float:
        """A figure above zero; 1 where it is not given."""
        value = self._content.get(key, 1.0)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < math.inf:
            raise InputError("not a ratio", where=self.at(key), got=value, expected="a finite figure above zero")
        if not 1 / LARGEST <= value <= LARGEST:
            raise InputError("a ratio out of range", where=self.at(key), got=value)
        return float(value)

    def share(self, key: str) -> float:
        """A part of one, one not included; 0 where it is not given."""
        value = self._content.get(key, 0.0)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
            raise InputError("not a share", where=self.at(key), got=value, expected="a figure from 0 to less than 1")
        return float(value)

    def table(self, key: str, known: tuple[str, ...]) -> _Table:
        """A sub-table that must be there."""
        return _Table(self.at(f"[{key}]"), self.take(key), known)

    def has(self, key: str) -> bool:
        """Whether a key is there."""
        return key in self._content

    def tables(self, key: str, known: tuple[str, ...]) -> list[_Table]:
        """Several sub-tables of a name, two at least."""
        value = self.take(key)
        if not isinstance(value, list) or len(value) < 2:
            expected, hint = f"[[{key}]] twice or more", "nodes of one type need no group"
            raise InputError("not several tables", where=self.at(f"[[{key}]]"), expected=expected, hint=hint)
        return [_Table(self.at(f"[[{key}]] {number}"), one, known) for number, one in enumerate(value, start=1)]


def write_cluster(cluster: Cluster) -> str:
    """The TOML text of a cluster; `read_cluster` reads it back to an equal value."""
    lines = [f"name = {_quoted(cluster.name)}"]
    if not cluster.groups:
        lines += [f"nodes = {cluster.nodes}"]
    lines += [f"devices_per_node = {cluster.devices_per_node}"]
    if not cluster.groups:
        lines += ["\n[device]", *_device_lines(cluster.device), "\n[intra]", *_link_lines(cluster.intra)]
    lines += ["\n[inter]", *_link_lines(cluster.inter)]
    lines += [f"fabric = {_quoted(cluster.fabric)}", f"gpu_direct = {str(cluster.gpu_direct).lower()}"]
    if cluster.host is not None and not cluster.groups:
        lines += ["\n[host]", *_host_lines(cluster.host)]
    for group in cluster.groups:
        lines += ["\n[[group]]", f"nodes = {group.nodes}"]
        lines += ["\n[group.device]", *_device_lines(group.device), "\n[group.intra]", *_link_lines(group.intra)]
        if group.host is not None:
            lines += ["\n[group.host]", *_host_lines(group.host)]
    return "\n".join(lines) + "\n"


def _device_lines(device: Device) -> list[str]:
    return [
        f"name = {_quoted(device.name)}",
        f"backend = {_quoted(device.backend)}",
        f'memory = "{device.memory_bytes} B"',
        f'memory_bandwidth = "{_exact(device.memory_bytes_per_s)} B/s"',
        f'compute = "{_exact(device.flop_per_s)} FLOP/s"',
        f'launch = "{_exact(device.launch_s)} s"',
        f"bf16_speedup = {_exact(device.bf16_speedup)}",
        f"fp16_speedup = {_exact(device.fp16_speedup)}",
        f"fp8_speedup = {_exact(device.fp8_speedup)}",
        f"mx_scales = {str(device.mx_scales).lower()}",
        f"nvfp4_speedup = {_exact(device.nvfp4_speedup)}",
        f"slowdown = {_exact(device.slowdown)}",
    ]


def _link_lines(link: Link) -> list[str]:
    lines = [f'bandwidth = "{_exact(link.bytes_per_s)} B/s"', f'latency = "{_exact(link.latency_s)} s"']
    return lines if link.overlaps is None else [*lines, f"overlaps = {str(link.overlaps).lower()}"]


def _host_lines(host: Host) -> list[str]:
    return [
        f'memory = "{host.memory_bytes} B"',
        f'memory_bandwidth = "{_exact(host.memory_bytes_per_s)} B/s"',
        f'compute = "{_exact(host.flop_per_s)} FLOP/s"',
        f'bandwidth = "{_exact(host.link_bytes_per_s)} B/s"',
        f'latency = "{_exact(host.link_latency_s)} s"',
    ]


def _quoted(text: str) -> str:
    """A basic string of TOML: that of JSON, except that TOML escapes DEL too."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _exact(figure: float) -> str:
    return repr(float(figure))
