"""Cluster: what the devices and the links between them can do, from a TOML file (or a preset, see `presets`).

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

import bisect
import itertools
import json
import math
import tomllib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

from strategy.base.errors import InputError, did_you_mean
from strategy.base.files import LARGEST, LONGEST_S
from strategy.base.units import parse_bandwidth, parse_bytes, parse_compute, parse_seconds
from strategy.hardware.devices import FABRICS
from strategy.sbp.tensor import DType

Number = TypeVar("Number", int, float)

NETWORKS = (*FABRICS, "tcp")
"""Networks between nodes: those to which shares of the data sheet are fitted, and TCP, which counts at face value."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device, by its data sheet. `backend` is the array module that runs on it; speed-ups are of products.

    While a device communicates, computation loses the share `slowdown` of that time: the kernels of both share it.
    """

    name: str
    backend: str
    memory_bytes: int
    memory_bytes_per_s: float
    flop_per_s: float
    launch_s: float
    bf16_speedup: float = 1.0
    fp16_speedup: float = 1.0
    slowdown: float = 0.0

    @property
    def has_bf16(self) -> bool:
        """Whether products of bfloat16 are faster than those of float32, as they are on tensor cores."""
        return self.bf16_speedup > 1

    def product_flop_per_s(self, dtype: DType) -> float:
        """Rate of matrix products of a dtype."""
        return self.flop_per_s * {DType.BFLOAT16: self.bf16_speedup, DType.FLOAT16: self.fp16_speedup}.get(dtype, 1.0)


@dataclass(frozen=True, slots=True)
class Link:
    """One level of the network, per device and direction."""

    bytes_per_s: float
    latency_s: float


@dataclass(frozen=True, slots=True)
class Host:
    """A device's share of the memory and the processors of its node, and the link to them, per direction."""

    memory_bytes: int
    memory_bytes_per_s: float
    flop_per_s: float
    link_bytes_per_s: float
    link_latency_s: float


@dataclass(frozen=True, slots=True)
class AlikeNodes:
    """Nodes of one type in a cluster of several."""

    nodes: int
    device: Device
    intra: Link
    host: Host | None = None


@dataclass(frozen=True, slots=True)
class Cluster:
    """Nodes of devices. Ranks count node by node. Without a host nothing can be offloaded.

    With `gpu_direct` network cards read and write the devices' memory; without it bytes that leave a node are copied to
    the host, sent, and copied from the host, piece by piece.

    `groups` are there where nodes are of several types, in the order of their ranks (see `of_groups`): `device`,
    `intra` and `host` are then what every node has at least.
    """

    name: str
    nodes: int
    devices_per_node: int
    device: Device
    intra: Link
    inter: Link
    host: Host | None = None
    fabric: str = "infiniband"
    gpu_direct: bool = True
    groups: tuple[AlikeNodes, ...] = ()

    def __post_init__(self) -> None:
        if self.groups and (self.nodes, self.device, self.intra, self.host) != _at_least(self.groups):
            raise InputError(
                "not what all groups of nodes have at least",
                where=f"cluster {self.name}",
                hint="change a group instead of nodes, device, intra or host",
            )

    @property
    def types(self) -> tuple[Cluster, ...]:
        """This cluster as if all nodes were of one group, for each of them; itself where all are alike."""
        return _types(self) if self.groups else (self,)

    def groups_of(self, ranks: Iterable[int]) -> tuple[int, ...]:
        """The numbers of the groups that ranks belong to, ascending; none where all nodes are alike."""
        if not self.groups:
            return ()
        ends = [self.devices_per_node * end for end in itertools.accumulate(one.nodes for one in self.groups)]
        return tuple(sorted({bisect.bisect(ends, rank) for rank in ranks}))

    def around(self, rank: int) -> Cluster:
        """This cluster as if all nodes were like that of a rank."""
        return self.types[self.groups_of((rank,))[0]] if self.groups else self

    def product_flop_per_s(self, dtype: DType) -> float:
        """Rate of matrix products of a dtype, on average over all devices."""
        if not self.groups:
            return self.device.product_flop_per_s(dtype)
        return sum(one.nodes * one.device.product_flop_per_s(dtype) for one in self.groups) / self.nodes

    def memory_limit_bytes(self, limit: int, ranks: Sequence[int]) -> int:
        """What the ranks of a stage may hold each, under a limit of them all: no more than the smallest device has."""
        return min((limit, *(self.groups[group].device.memory_bytes for group in self.groups_of(ranks))))

    @property
    def largest_memory_bytes(self) -> int:
        """Of any device."""
        return max(one.device.memory_bytes for one in self.types)

    @property
    def devices(self) -> int:
        """Devices in all."""
        return self.nodes * self.devices_per_node

    @property
    def overlaps(self) -> bool:
        """Whether communication runs beside computation: GPUs have copy engines, a CPU core copies by itself."""
        return self.device.backend != "numpy"

    def crosses_nodes(self, ranks: tuple[int, ...]) -> bool:
        """Whether a group of ranks spans nodes."""
        return any(rank // self.devices_per_node != ranks[0] // self.devices_per_node for rank in ranks)

    def level(self, ranks: tuple[int, ...]) -> str:
        """The slowest level that a group of ranks crosses: `intra` or `inter`."""
        return "inter" if self.crosses_nodes(ranks) else "intra"

    def link(self, level: str) -> Link:
        """The links of a level."""
        return self.inter if level == "inter" else self.intra


@lru_cache(maxsize=64)
def _types(cluster: Cluster) -> tuple[Cluster, ...]:
    return tuple(
        replace(cluster, device=one.device, intra=one.intra, host=one.host, groups=()) for one in cluster.groups
    )


def of_groups(
    name: str,
    devices_per_node: int,
    groups: Sequence[AlikeNodes],
    inter: Link,
    fabric: str = "infiniband",
    *,
    gpu_direct: bool = True,
) -> Cluster:
    """A cluster of several types of nodes.

    Raises:
        InputError: the devices of some groups run on another array module than those of others, or some have no host.
    """
    nodes, device, intra, host = _at_least(groups)
    return Cluster(name, nodes, devices_per_node, device, intra, inter, host, fabric, gpu_direct, tuple(groups))


def _at_least(groups: Sequence[AlikeNodes]) -> tuple[int, Device, Link, Host | None]:
    """How many nodes there are, and what each of them has at least."""
    devices, links, hosts = ([getattr(one, name) for one in groups] for name in ("device", "intra", "host"))
    backends = list(dict.fromkeys(one.backend for one in devices))
    if len(backends) > 1:
        expected = "one array module, which all ranks of a job share"
        raise InputError("groups of several backends", where="[[group]]", got=", ".join(backends), expected=expected)
    if None in hosts and any(hosts):
        hint = "give each group a host, or none"
        raise InputError("some groups have a host, others do not", where="[[group]]: host", hint=hint)
    device = Device(
        name=" + ".join(dict.fromkeys(one.name for one in devices)),
        backend=backends[0],
        slowdown=max(one.slowdown for one in devices),
        launch_s=max(one.launch_s for one in devices),
        memory_bytes=min(one.memory_bytes for one in devices),
        memory_bytes_per_s=min(one.memory_bytes_per_s for one in devices),
        flop_per_s=min(one.flop_per_s for one in devices),
        bf16_speedup=min(one.bf16_speedup for one in devices),
        fp16_speedup=min(one.fp16_speedup for one in devices),
    )
    intra = Link(min(one.bytes_per_s for one in links), max(one.latency_s for one in links))
    host = None
    if None not in hosts:
        host = Host(
            memory_bytes=min(one.memory_bytes for one in hosts),
            memory_bytes_per_s=min(one.memory_bytes_per_s for one in hosts),
            flop_per_s=min(one.flop_per_s for one in hosts),
            link_bytes_per_s=min(one.link_bytes_per_s for one in hosts),
            link_latency_s=max(one.link_latency_s for one in hosts),
        )
    return sum(one.nodes for one in groups), device, intra, host


def host_memory_bytes(cluster: Cluster) -> int:
    """Bytes that a device may offload."""
    return 0 if cluster.host is None else cluster.host.memory_bytes


_DEVICE_KEYS = (
    "name",
    "backend",
    "memory",
    "memory_bandwidth",
    "compute",
    "launch",
    "bf16_speedup",
    "fp16_speedup",
    "slowdown",
)
_LINK_KEYS = ("bandwidth", "latency")
_NETWORK_KEYS = (*_LINK_KEYS, "fabric", "gpu_direct")
_HOST_KEYS = ("memory", "memory_bandwidth", "compute", *_LINK_KEYS)
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
        slowdown=table.share("slowdown"),
    )
    if device.backend not in ("numpy", "cupy"):
        raise InputError("unknown backend", where=table.at("backend"), got=device.backend, expected='"numpy" or "cupy"')
    return device


def _link(table: _Table) -> Link:
    return Link(table.rate("bandwidth", parse_bandwidth), table.seconds("latency"))


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
        return self._within(key, parse_seconds(self.take(key), where=self.at(key)), 0.0, LONGEST_S)

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

    def truth(self, key: str) -> bool:
        """true or false; true where it is not given."""
        value = self._content.get(key, True)
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
        f"slowdown = {_exact(device.slowdown)}",
    ]


def _link_lines(link: Link) -> list[str]:
    return [f'bandwidth = "{_exact(link.bytes_per_s)} B/s"', f'latency = "{_exact(link.latency_s)} s"']


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
