"""Fabric: the levels of a network over which gradients are exchanged, and what its hosts add."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from strategy.base.errors import InputError
from strategy.base.units import GBIT_PER_S
from strategy.closed_form.calibration import shipped
from strategy.closed_form.collectives import CONSTANTS
from strategy.closed_form.constants import nominal
from strategy.hardware.cluster import Cluster
from strategy.hardware.nccl import Algorithm, HopProtocol, Wire, tuning

_TCP_HOP_S = 25e-6
"""One way between two virtual machines."""
_TCP_FLOW = 7 * GBIT_PER_S
"""Of one TCP connection: clouds hold it to 5 or 10 Gbit/s."""


def _straggle() -> float:
    """The fitted wait per doubling of the ranks is ln 2 of the mean, for that of the slowest grows with log n."""
    return round(shipped().constants["jitter.language"] / math.log(2), 4)


def _reached() -> float:
    """Share of a NIC's rate that NCCL reaches: the prior, for the fit rests on EFA, which is neither TCP nor RoCE."""
    return nominal(CONSTANTS)["nccl.network"]


def _hop_s(wire: Wire) -> float:
    """Of a ring by the LL protocol."""
    return tuning().hop_s(wire, Algorithm.RING, HopProtocol.LL)


@dataclass(frozen=True, slots=True)
class Fabric:
    """Alike nodes of alike GPUs; rates in bytes/s and per direction, times in seconds.

    Attributes:
        nodes: how many.
        gpus_per_node: how many on each; ranks count node by node.
        inside_bytes_per_s: of one GPU to the others of its node.
        bridge_bytes_per_s: between the two halves of a node.
        nic_bytes_per_s: of a whole node to the others.
        flow_bytes_per_s: the most that one connection between two nodes carries: less than the NICs over TCP.
        inside_hop_s: latency of a message inside a node.
        network_hop_s: latency of a message between nodes.
        message_s: what a rank's host spends on sending or taking one control message.
        entry_s: what a coordinator's host spends on one tensor that one rank names.
        core_bytes_per_s: that one core of a host moves in memory.
        thread_bytes_per_s: that one thread of a host sends and receives over all of its connections.
        sum_bytes_per_s: at which a host adds gradients up.
        straggle: mean of what a rank's compute takes longer, as a share of it; drawn anew in every step.
        slowdown: of compute while bytes move over the network, as a share of its time.
    """

    nodes: int
    gpus_per_node: int
    inside_bytes_per_s: float
    bridge_bytes_per_s: float
    nic_bytes_per_s: float
    flow_bytes_per_s: float
    inside_hop_s: float
    network_hop_s: float
    # What follows is ours, within what is usual, and the same for all figures but for the slowdown over TCP: no source
    # prints it. The straggling is that of the fit to systems for language models.
    message_s: float = 5e-6
    entry_s: float = 0.5e-6
    core_bytes_per_s: float = 10e9
    thread_bytes_per_s: float = 1.25e9
    sum_bytes_per_s: float = 20e9
    straggle: float = field(default_factory=_straggle)
    slowdown: float = 0.05

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus_per_node"):
            if getattr(self, name) < 1:
                raise InputError("not a count", where=f"fabric: {name}", got=getattr(self, name), expected="at least 1")
        for name in (
            "inside_bytes_per_s",
            "bridge_bytes_per_s",
            "nic_bytes_per_s",
            "flow_bytes_per_s",
            "core_bytes_per_s",
            "thread_bytes_per_s",
            "sum_bytes_per_s",
        ):
            if not 1 <= getattr(self, name) < float("inf"):
                raise InputError("not a rate", where=f"fabric: {name}", got=getattr(self, name), expected="bytes/s")
        for name in ("inside_hop_s", "network_hop_s", "message_s", "entry_s", "straggle", "slowdown"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise InputError("not possible", where=f"fabric: {name}", got=getattr(self, name), expected=">= 0")

    @property
    def ranks(self) -> int:
        """GPUs in all."""
        return self.nodes * self.gpus_per_node


def tcp_cloud(nodes: int, gbit_per_s: float, *, gpus_per_node: int = 8) -> Fabric:
    """Virtual machines with V100s on NVLink."""
    nic = gbit_per_s * GBIT_PER_S * _reached()
    flow = min(_TCP_FLOW, nic)
    return Fabric(nodes, gpus_per_node, 130e9, 130e9, nic, flow, _hop_s(Wire.NVLINK), _TCP_HOP_S, slowdown=0.15)


def rdma_nvlink(nodes: int, gbit_per_s: float, *, gpus_per_node: int = 8) -> Fabric:
    """V100s on NVLink, and RDMA, of which one connection takes all."""
    nic = gbit_per_s * GBIT_PER_S * _reached()
    return Fabric(nodes, gpus_per_node, 130e9, 130e9, nic, nic, _hop_s(Wire.NVLINK), _hop_s(Wire.NETWORK))


def rdma_pcie(nodes: int, gbit_per_s: float, *, gpus_per_node: int) -> Fabric:
    """GPUs under PCIe 3 x16 switches, and RoCE, of which one connection takes all."""
    nic = gbit_per_s * GBIT_PER_S * _reached()
    return Fabric(nodes, gpus_per_node, 10e9, 5e9, nic, nic, _hop_s(Wire.PCIE), _hop_s(Wire.NETWORK))


def cluster_fabric(cluster: Cluster, ranks: int) -> Fabric:
    """Of the first nodes of a cluster that hold so many ranks, which do not straggle.

    Raises:
        InputError: the last of the nodes would have fewer ranks than the others.
    """
    gpus = min(ranks, cluster.devices_per_node)
    if ranks % gpus:
        expected = f"a multiple of {gpus}"
        raise InputError("nodes that are not alike", where="ranks", got=ranks, expected=expected)
    intra, inter = cluster.intra, cluster.inter
    nic = gpus * inter.bytes_per_s * _reached()
    return Fabric(
        nodes=ranks // gpus,
        gpus_per_node=gpus,
        inside_bytes_per_s=intra.bytes_per_s,
        bridge_bytes_per_s=intra.bytes_per_s,
        nic_bytes_per_s=nic,
        flow_bytes_per_s=min(_TCP_FLOW, nic) if cluster.fabric == "tcp" else nic,
        inside_hop_s=intra.latency_s,
        network_hop_s=inter.latency_s,
        straggle=0.0,
        slowdown=cluster.device.slowdown,
    )
