"""Collectives: the cheapest of NCCL's algorithms and protocols for a message over a group of GPUs.

The structure is that of NCCL's own tuning model (src/graph/tuning.cc): seconds = latency of the steps + bytes over what
the algorithm and the protocol make of the links. Added is the filling of the pipeline of chunks, which grows with the
root of the message (chunks of the best size), so that a large message reaches the bandwidth only slowly. Every way is
affine or concave in the bytes and increasing, and so is their minimum: no switch of algorithm makes more bytes cheaper.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from strategy.closed_form.constants import Constant, Constants
from strategy.hardware.devices import DeviceSheet, Generation
from strategy.hardware.nccl import LL128_SHARE, LL_SHARE, TREE_LL_SHARE, Algorithm, HopProtocol, Wire, tuning

Floats = npt.NDArray[np.float64]

_FAMILIES = tuple(Generation)
_RING, _TREE = Algorithm.RING, Algorithm.TREE
_SIMPLE = HopProtocol.SIMPLE
CONSTANTS = (
    Constant("nccl.latency.volta", 1.0, 0.5, "NCCL's latencies on NVLink 2, over its own table"),
    Constant("nccl.latency.ampere", 1.0, 0.5, "NCCL's latencies on NVLink 3, over its own table"),
    Constant("nccl.latency.later", 1.0, 0.5, "NCCL's latencies on NVLink 4 and 5, over its own table"),
    Constant("nccl.latency.efa", 8.0, 0.7, "latency of a hop over EFA, over NCCL's table for InfiniBand"),
    Constant("nccl.bandwidth.volta", 0.88, 0.1, "share of NVLink 2 that a ring reaches"),
    Constant("nccl.bandwidth.ampere", 0.84, 0.1, "share of NVLink 3 that a ring of many reaches"),
    Constant("nccl.small_ring", 0.3, 0.7, "bandwidth that a switched ring of n lacks, times n"),
    Constant("nccl.fill", 1.0, 0.5, "filling the pipeline of chunks, over chunks of the best size"),
    Constant("nccl.network", 0.92, 0.04, "share of a node's NICs that a ring over nodes reaches"),
)
_RING_SHARE = {Generation.HOPPER: 0.813, Generation.BLACKWELL: 0.757}
"""Share of NVLink 4 and 5 that a ring of eight reaches: 365.6 of 450 and 682 of 900 GB/s, one published point each."""
_NVLS_RATE = (0.0, 0.0, 0.601, 0.532)
"""All-reduce inside the switch, algorithm bandwidth over a link's: 473 and 838 GB/s on the bus, one point each."""
_CUBE_MESH_LINKS = 6.0


@dataclass(frozen=True, slots=True)
class Group:
    """GPUs that communicate, for many jobs at once: one entry per job.

    `ranks` GPUs, `local` of them behind each NVLink switch; `link` and `nic` in bytes/s per GPU and direction; `family`
    is the place of the device's generation among volta, ampere, hopper and blackwell;
    `switched` is whether NVLink goes through a switch, `efa` whether the network is Amazon's.
    """

    ranks: Floats
    local: Floats
    link: Floats
    nic: Floats
    family: npt.NDArray[np.intp]
    switched: npt.NDArray[np.bool_]
    efa: npt.NDArray[np.bool_]

    @property
    def nodes(self) -> Floats:
        """NVLink domains that the group spans."""
        return np.maximum(np.ceil(self.ranks / self.local), 1)


def family_of(sheet: DeviceSheet) -> int:
    """The place of a device's generation in NCCL's tables."""
    return _FAMILIES.index(sheet.generation)


def bus_bandwidth(group: Group, constants: Constants) -> Floats:
    """Bytes/s that a ring through the group carries per GPU: the slower of NVLink and the group's NICs."""
    share = _pick(group, _ring_efficiencies(constants))
    local = np.minimum(group.local, group.ranks)
    # A pair of a cube mesh has one of its six links between them; a switched pair has fewer channels than eight have.
    part = np.where(
        group.switched,
        1 - constants["nccl.small_ring"] / np.maximum(local, 2),
        np.minimum(np.maximum(local - 1, 1), _CUBE_MESH_LINKS) / _CUBE_MESH_LINKS,
    )
    inside = group.link * share * part
    across = group.nic * local * constants["nccl.network"]
    return np.where(group.nodes > 1, np.minimum(np.where(local > 1, inside, np.inf), across), inside)


def all_reduce(nbytes: Floats, group: Group, constants: Constants, *, levels: bool = False) -> Floats:
    """Seconds of an all-reduce of `nbytes` per GPU; 0 for a group of one.

    `levels` allows to scatter inside each node, reduce across and gather inside, which NCCL by itself does not do.
    """
    return _cheapest(nbytes, group, constants, rounds=2.0, levels=levels)


def reduce_scatter(nbytes: Floats, group: Group, constants: Constants) -> Floats:
    """Seconds of a reduce-scatter, or an all-gather, of `nbytes` in all; never dearer than the all-reduce."""
    return np.minimum(
        _cheapest(nbytes, group, constants, rounds=1.0, levels=False), all_reduce(nbytes, group, constants)
    )


def all_to_all(nbytes: Floats, group: Group, constants: Constants) -> Floats:
    """Seconds in which every GPU sends `nbytes` in equal parts to all of the group, itself included."""
    nccl = tuning()
    busy = group.link * _pick(group, _ring_efficiencies(constants))
    outside = np.maximum(group.ranks - group.local, 0) / group.ranks
    inside = (np.minimum(group.local, group.ranks) - 1) / group.ranks
    latency = _latency(group, constants) * (nccl.base_s(_RING, _SIMPLE) + nccl.hop_s(Wire.NVLINK, _RING, _SIMPLE))
    latency = latency + (group.nodes > 1) * nccl.hop_s(Wire.NETWORK, _RING, _SIMPLE) * _far(group, constants)
    seconds = latency + np.maximum(nbytes * inside / busy, nbytes * outside / (group.nic * constants["nccl.network"]))
    return np.where((group.ranks > 1) & (nbytes > 0), seconds, 0.0)


def send(nbytes: Floats, group: Group, constants: Constants) -> Floats:
    """Seconds of one message to the next GPU of the group: over NVLink, or over one GPU's share of the NICs."""
    rate = np.where(
        group.nodes > 1,
        group.nic * constants["nccl.network"],
        group.link * _pick(group, _ring_efficiencies(constants)),
    )
    nccl = tuning()
    near = nccl.hop_s(Wire.NVLINK, _RING, _SIMPLE) * _latency(group, constants)
    far = nccl.hop_s(Wire.NETWORK, _RING, _SIMPLE) * _far(group, constants)
    return np.where((group.ranks > 1) & (nbytes > 0), np.where(group.nodes > 1, far, near) + nbytes / rate, 0.0)


def _ring_efficiencies(constants: Constants) -> list[float]:
    """Share of a link that a ring of eight reaches, by family; `small_ring` then takes away what fewer ranks lack."""
    return [
        constants["nccl.bandwidth.volta"],
        constants["nccl.bandwidth.ampere"],
        *(share / (1 - constants["nccl.small_ring"] / 8) for share in _RING_SHARE.values()),
    ]


def _pick(group: Group, values: list[float]) -> Floats:
    return np.asarray(np.array(values)[group.family], dtype=float)


def _latency(group: Group, constants: Constants) -> Floats:
    names = ("volta", "ampere", "later", "later")
    return _pick(group, [constants[f"nccl.latency.{name}"] for name in names])


def _far(group: Group, constants: Constants) -> Floats:
    return np.where(group.efa, constants["nccl.latency.efa"], 1.0)


def _cheapest(nbytes: Floats, group: Group, constants: Constants, *, rounds: float, levels: bool) -> Floats:
    """Minimum over the ways; `rounds` is 2 for an all-reduce, 1 for its halves."""
    nccl = tuning()
    n, nodes = np.maximum(group.ranks, 2), group.nodes
    local = np.minimum(group.local, n)
    scale, far = _latency(group, constants), _far(group, constants)
    bus = bus_bandwidth(group, constants)
    steps, crossings = rounds * (n - 1), rounds * (nodes - 1)
    sent = rounds * (n - 1) / n * nbytes
    most = _pick(group, [nccl.most_by_ll[name] for name in _FAMILIES])
    channels = 16 * _pick(group, [nccl.channel_by_ll128[name] for name in _FAMILIES])
    best = np.full(np.broadcast_shapes(np.shape(nbytes), np.shape(n)), np.inf)
    for protocol in HopProtocol:
        rate = (np.minimum(most, LL_SHARE * bus), np.minimum(LL128_SHARE * bus, channels), bus)[protocol]
        hop, net = nccl.hop_s(Wire.NVLINK, _RING, protocol), nccl.hop_s(Wire.NETWORK, _RING, protocol)
        latency = scale * (nccl.base_s(_RING, protocol) + (steps - crossings) * hop) + far * crossings * net
        filling = 0.0 if protocol is HopProtocol.LL else constants["nccl.fill"]
        fill = filling * np.sqrt(np.maximum(latency * sent / rate, 0))
        best = np.minimum(best, latency + sent / rate + fill)
    if rounds == 2.0:
        for protocol in HopProtocol:
            rate = np.minimum(LL128_SHARE * bus, channels) * (TREE_LL_SHARE, 0.9, 1.0)[protocol] / 2
            hops_s = 2 * (local - 1) * nccl.hop_s(Wire.NVLINK, _TREE, protocol)
            inside_s = scale * (nccl.base_s(_TREE, protocol) + hops_s)
            across_s = far * 2 * np.log2(nodes) * nccl.hop_s(Wire.NETWORK, _TREE, protocol)
            best = np.minimum(best, inside_s + across_s + nbytes / rate)
        nvls = group.link * np.maximum(_pick(group, list(_NVLS_RATE)), 1e-9)
        able = (group.family >= 2) & (nodes == 1) & (n > 4)
        nvls_s = nccl.nvls_ns / 1e9
        best = np.minimum(
            best, np.where(able, scale * nvls_s + nbytes / nvls + np.sqrt(nvls_s * nbytes / nvls), np.inf)
        )
    if levels:
        inside = bus_bandwidth(
            Group(local, local, group.link, group.nic, group.family, group.switched, group.efa), constants
        )
        within = rounds * (local - 1) / local * nbytes / inside
        over = rounds * (nodes - 1) / nodes * nbytes / local / (group.nic * constants["nccl.network"])
        hops_s = rounds * (local - 1) * nccl.hop_s(Wire.NVLINK, _RING, _SIMPLE)
        latency = scale * (nccl.base_s(_RING, _SIMPLE) + hops_s)
        latency = latency + far * 2 * np.log2(nodes) * nccl.hop_s(Wire.NETWORK, _TREE, _SIMPLE)
        two = latency + within + over
        best = np.minimum(best, np.where((nodes > 1) & (local > 1), two, np.inf))
    return np.where((group.ranks > 1) & (np.asarray(nbytes) > 0), best, 0.0)
