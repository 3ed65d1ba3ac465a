"""Clusters: what the devices and the links between them can do.

Figures come from data sheets: of a preset (`presets`), a file (`cluster_file`) or this machine.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from strategy.base.errors import InputError
from strategy.hardware.devices import FABRICS
from strategy.sbp.tensor import DType

NETWORKS = (*FABRICS, "tcp")
"""Networks between nodes: those to which shares of the data sheet are fitted, and TCP, which counts at face value."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device, by its data sheet. `backend` is the array module that runs on it; speed-ups are of products.

    While a device communicates, computation loses the share `slowdown` of that time: the kernels of both share it.
    With `mx_scales` products of 8 bits scale blocks of 32 by powers of two by themselves (MXFP8).
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
    fp8_speedup: float = 1.0
    mx_scales: bool = False
    nvfp4_speedup: float = 1.0

    @property
    def has_bf16(self) -> bool:
        """Whether products of bfloat16 are faster than those of float32, as they are on tensor cores."""
        return self.bf16_speedup > 1

    def product_flop_per_s(self, dtype: DType) -> float:
        """Rate of matrix products of a dtype."""
        if dtype is DType.FLOAT4_E2M1_X2:
            return self.flop_per_s * self.nvfp4_speedup
        if dtype.is_code:
            return self.flop_per_s * self.fp8_speedup
        return self.flop_per_s * {DType.BFLOAT16: self.bf16_speedup, DType.FLOAT16: self.fp16_speedup}.get(dtype, 1.0)


@dataclass(frozen=True, slots=True)
class Link:
    """One level of the network, per device and direction.

    `overlaps`: whether what passes through it goes on beside computation. Over a wire it does; through shared memory it
    does not, for a core copies by itself. None: as is usual for the devices, GPUs do and cores do not.
    """

    bytes_per_s: float
    latency_s: float
    overlaps: bool | None = None


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
        """Whether communication runs beside computation: between nodes, where there are several."""
        return self.overlaps_on("inter" if self.nodes > 1 else "intra")

    def overlaps_on(self, level: str) -> bool:
        """Whether communication on a level does: GPUs have copy engines, a core copies by itself, unless it is said."""
        said = self.link(level).overlaps
        return self.device.backend != "numpy" if said is None else said

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
        fp8_speedup=min(one.fp8_speedup for one in devices),
        mx_scales=all(one.mx_scales for one in devices),
        nvfp4_speedup=min(one.nvfp4_speedup for one in devices),
    )
    said = {one.overlaps for one in links}
    overlaps = said.pop() if len(said) == 1 else None if said <= {None, True} else False
    intra = Link(min(one.bytes_per_s for one in links), max(one.latency_s for one in links), overlaps)
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
