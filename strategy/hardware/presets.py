"""Presets: clusters by name and number of nodes, from the makers' data sheets (`strategy.hardware.devices`).

float32 products run as TF32 from the A100 on; halves are without sparsity; a V100's tensor cores take fp16 alone.
NVLink counts per direction, and a node's network is shared evenly by its devices. The hosts: two EPYC 7742 with 8
channels of DDR4-3200, two Xeon 8480C with 8 of DDR5-4800, two Xeon E5-2698 v4 with 4 of DDR4-2400, two EPYC 9654 with
12 of DDR5-4800, a Grace for two GPUs; an equal share of each; cores times base clock times 32 float32 FLOPs, 64 with
AVX-512 (32 on EPYC); PCIe 4, 5, 3, 5 x16, NVLink-C2C. Latencies of links, launches and copies are ours.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from strategy.base.errors import InputError, did_you_mean
from strategy.base.units import GBIT_PER_S
from strategy.hardware.cluster import Cluster, Device, Host, Link
from strategy.hardware.cluster_file import read_cluster
from strategy.hardware.devices import DEVICES, Generation, named_sheet

_COUNT = re.compile("[0-9]{1,9}")

_EPYC = Host(2**41 // 8, 51.2e9, 1.15e12, 31.5e9, 10e-6)
_XEON = Host(2**41 // 8, 76.8e9, 1.79e12, 63e9, 10e-6)
_BROADWELL = Host(2**39 // 8, 19.2e9, 0.35e12, 15.75e9, 10e-6)
_GENOA = Host(2**41 // 8, 115.2e9, 1.84e12, 63e9, 10e-6)
_GRACE = Host(480 * 2**30 // 2, 256e9, 3.5e12, 450e9, 5e-6)


SLOWDOWN = 0.19
"""Of computation beside communication, on average over models and GPUs (A100, H100 and others; up to 0.4).

"Characterizing Compute-Communication Overlap in GPU-Accelerated Distributed Deep Learning", 2025,
arXiv:2507.03114.
"""


def _device(name: str, launch_s: float) -> Device:
    sheet = DEVICES[name]
    tensor_cores = sheet.generation is not Generation.VOLTA
    single = sheet.half / 2 if tensor_cores else sheet.single
    bf16 = sheet.half / single if tensor_cores else 1.0
    fp8 = sheet.eight / single if sheet.eight > sheet.half else bf16
    return Device(
        sheet.name,
        "cupy",
        sheet.memory_bytes,
        sheet.memory_bytes_per_s,
        single,
        launch_s,
        bf16,
        sheet.half / single,
        SLOWDOWN,
        fp8,
        mx_scales=sheet.mx_scales,
        nvfp4_speedup=sheet.four / single if sheet.nvfp4 else fp8,
    )


def _nodes_of(per_node: int, name: str, host: Host, *, nic: float = 0.0, fabric: str = "infiniband") -> Cluster:
    """One node; `nic` in bytes/s per device, that of the data sheet where it is not given."""
    sheet = DEVICES[name]
    launch_s = {Generation.VOLTA: 6e-6, Generation.AMPERE: 5e-6}.get(sheet.generation, 4e-6)
    near, far = (4e-6, 6e-6) if sheet.generation is Generation.VOLTA else (3e-6, 5e-6)
    inter = Link(nic or sheet.nic_bytes_per_s, far)
    device = _device(name, launch_s)
    return Cluster("", 1, per_node, device, Link(sheet.link_bytes_per_s, near), inter, host, fabric)


PRESETS: Mapping[str, Cluster] = {
    "dgx-1p": _nodes_of(8, "P100", _BROADWELL, nic=50 * GBIT_PER_S),
    "dgx-1": _nodes_of(8, "V100-32", _BROADWELL),
    "v100-ib100": _nodes_of(8, "V100-16", _BROADWELL),
    "v100-vpc25": _nodes_of(8, "V100-16", _BROADWELL, nic=25 / 8 * GBIT_PER_S, fabric="tcp"),
    "a100-opa": _nodes_of(8, "A100-80", _EPYC, nic=50 * GBIT_PER_S, fabric="omnipath"),
    "dgx-a100-40": _nodes_of(8, "A100-40", _EPYC),
    "dgx-a100": _nodes_of(8, "A100-80", _EPYC),
    "dgx-h100": _nodes_of(8, "H100", _XEON),
    "grand-teton": _nodes_of(8, "H100-96", _XEON),
    "dgx-h200": _nodes_of(8, "H200", _XEON),
    "dgx-b200": _nodes_of(8, "B200", _XEON),
    "gb200-nvl72": _nodes_of(72, "GB200", _GRACE),
    "gb300-nvl72": _nodes_of(72, "GB300", _GRACE),
    "mi300x": _nodes_of(8, "MI300X", _GENOA),
    "mi355x": _nodes_of(8, "MI355X", _GENOA),
}
"""One node of each."""


def find_cluster(text: str) -> Cluster:
    """A preset with its number of nodes (`dgx-a100:4`), or a TOML file.

    Raises:
        InputError: unknown preset, unreadable file, unknown key, figure without unit.
    """
    name, _, count = text.partition(":")
    if name in PRESETS:
        nodes = int(count) if _COUNT.fullmatch(count) else 1 if not count else 0
        if nodes < 1:
            raise InputError("not a number of nodes", where=text, got=count, expected=f"such as {name}:4")
        return replace(PRESETS[name], name=f"{name}:{nodes}", nodes=nodes)
    path = Path(text)
    if path.suffix == ".toml":
        return read_cluster(path)
    raise InputError(
        "unknown cluster", got=text, expected="a .toml file, local, or a preset", hint=did_you_mean(name, PRESETS)
    )


def preset_with(gpu: str) -> str:
    """The preset whose nodes, on InfiniBand, have a GPU of this name, ours or NVIDIA's, in any case.

    Raises:
        InputError: none has.
    """
    known = {cluster.device.name: name for name, cluster in PRESETS.items() if cluster.fabric == "infiniband"}
    sheet = named_sheet(gpu) or named_sheet(gpu.upper())
    if sheet is None or sheet.name not in known:
        raise InputError("no preset has nodes of this GPU", got=gpu, hint=did_you_mean(gpu.upper(), known))
    return known[sheet.name]
