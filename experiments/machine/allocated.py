"""Allocated nodes: what a hostfile, Slurm or `nvidia-smi topo -m` say of the machines of a job, as a cluster.

    hostfile    a line per node, with its number of ranks: `node1 slots=8` (Open MPI), `node1:8` (MPICH), or a line
                `node1` per rank
    Slurm       SLURM_JOB_NUM_NODES, and SLURM_GPUS_ON_NODE or SLURM_GPUS_PER_NODE (`8`, or with their name: `h100:8`)
    topology    the GPUs of one node, and whether NVLink (NV1, NV2, ...) or PCIe (PIX, PXB, PHB, NODE, SYS) joins them

What none of them tells (memory, rates, links) is that of the preset with this GPU.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace

from strategy.base.errors import InputError, present
from strategy.base.limits import LARGEST
from strategy.hardware.cluster import Cluster, Link
from strategy.hardware.presets import PRESETS, preset_with

_LINE = re.compile(r"(?P<host>[\w.\-]+)(?::(?P<after>\d{1,9})|\s+slots=(?P<slots>\d{1,9})(\s.*)?)?")
_GPUS = re.compile(r"(?:(?P<name>[\w.\-]*[A-Za-z][\w.\-]*):)?(?P<count>\d{1,9})")
_GPU = re.compile(r"GPU\d{1,4}")
_DEVICE = re.compile(r"(GPU|NIC|mlx\d_)\d{1,4}")
_STYLE = re.compile(r"\x1b\[[0-9;]*m")
_NVLINK = re.compile(r"NV\d{1,3}")
_PCIE = ("PIX", "PXB", "PHB", "NODE", "SYS")


@dataclass(frozen=True, slots=True)
class AllocatedNodes:
    """Alike nodes of a job; the name of their GPUs, where it is told."""

    nodes: int
    gpus_per_node: int
    gpu: str = ""


@dataclass(frozen=True, slots=True)
class NodeTopology:
    """GPUs of a node, and whether NVLink joins every two of them."""

    gpus: int
    has_nvlink: bool


def nodes_of_hostfile(text: str, where: str) -> AllocatedNodes:
    """Nodes of a hostfile of MPI.

    Raises:
        InputError: a line is none of a hostfile, there is none, or nodes have different numbers of ranks.
    """
    ranks: Counter[str] = Counter()
    for number, line in enumerate(text.splitlines(), 1):
        said = line.partition("#")[0].strip()
        if not said:
            continue
        match = _LINE.fullmatch(said)
        if match is None:
            raise InputError(
                "not a line of a hostfile", where=f"{where}: line {number}", got=said, expected="HOST slots=N"
            )
        ranks[match["host"]] += int(match["after"] or match["slots"] or 1)
    if not ranks or min(ranks.values()) < 1:
        raise InputError("no node, or one without ranks", where=where, expected="HOST slots=N, a line per node")
    if len(set(ranks.values())) > 1:
        got = ", ".join(f"{host} {count}" for host, count in list(ranks.items())[:4])
        raise InputError("nodes have different numbers of ranks", where=where, got=got, expected="one number")
    return AllocatedNodes(len(ranks), next(iter(ranks.values())))


def nodes_of_slurm(variables: Mapping[str, str]) -> AllocatedNodes:
    """Nodes of the Slurm job that this process is part of.

    Raises:
        InputError: a variable is missing, or no number.
    """
    nodes = variables.get("SLURM_JOB_NUM_NODES") or variables.get("SLURM_NNODES", "")
    gpus = variables.get("SLURM_GPUS_PER_NODE") or variables.get("SLURM_GPUS_ON_NODE", "")
    match = _GPUS.fullmatch(gpus)
    if not (nodes.isdecimal() and 0 < int(nodes[:20]) <= LARGEST):
        raise InputError("no number of nodes", where="SLURM_JOB_NUM_NODES", got=nodes, hint="run it inside of the job")
    if match is None or int(match["count"]) < 1:
        hint = "run it inside of a job that asked for --gpus-per-node"
        raise InputError("no number of GPUs per node", where="SLURM_GPUS_PER_NODE", got=gpus, hint=hint)
    return AllocatedNodes(int(nodes), int(match["count"]), match["name"] or "")


def topology_of(text: str, where: str) -> NodeTopology:
    """What `nvidia-smi topo -m` printed.

    Raises:
        InputError: it is no such matrix.
    """
    lines = [_STYLE.sub("", line).split() for line in text.splitlines()]
    header = next((line for line in lines if line and all(_DEVICE.fullmatch(word) for word in line[:1])), [])
    columns = [word for word in header if _DEVICE.fullmatch(word)]
    gpus = [place for place, word in enumerate(columns) if _GPU.fullmatch(word)]
    rows = [line for line in lines if line and line is not header and _GPU.fullmatch(line[0])]
    joins = [row[1 + place] for row in rows for place in gpus if len(row) > 1 + place]
    known = all(word == "X" or _NVLINK.fullmatch(word) or word in _PCIE for word in joins)
    if not gpus or len(rows) != len(gpus) or len(joins) != len(gpus) ** 2 or not known:
        raise InputError("no matrix of GPUs", where=where, expected="what `nvidia-smi topo -m` prints")
    return NodeTopology(len(gpus), all(word == "X" or word.startswith("NV") for word in joins))


def described(gpu: str, found: AllocatedNodes | None, topology: NodeTopology | None) -> Cluster:
    """A cluster of nodes with a GPU of this name, ours or its maker's.

    Raises:
        InputError: no preset has it, nothing says how many there are, or two sources contradict each other.
    """
    name = gpu or (found.gpu if found else "")
    if not name:
        raise InputError("nothing says which GPU it is", where="--gpu", hint="such as --gpu h100")
    like = PRESETS[preset_with(name)]
    if found is not None and topology is not None and found.gpus_per_node != topology.gpus:
        expected = f"the {topology.gpus} of --topology"
        raise InputError("not as many GPUs per node", where="nodes", got=found.gpus_per_node, expected=expected)
    nodes = 1 if found is None else found.nodes
    per_node = found.gpus_per_node if found else present(topology, "a source of nodes").gpus
    intra = like.intra
    if topology is not None and not topology.has_nvlink:
        host = present(like.host, "the host of a preset")
        intra = Link(min(host.link_bytes_per_s, intra.bytes_per_s), host.link_latency_s)
    return replace(like, name=f"{name}-{nodes}x{per_node}", nodes=nodes, devices_per_node=per_node, intra=intra)
