"""Devices and fabrics by their data sheets: what a GPU of a name can do before anything is fitted.

Dense peaks in FLOP/s, bandwidths in bytes/s and per direction, from NVIDIA's data sheets and architecture papers. An
unknown GPU is a `DeviceSheet` of its own; it takes the fitted efficiencies of its `generation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from strategy.base.errors import InputError, did_you_mean

GIB = 2**30


class Generation(StrEnum):
    """Whose fitted efficiencies a GPU takes, oldest first; a Pascal takes Volta's."""

    VOLTA = "volta"
    AMPERE = "ampere"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"


@dataclass(frozen=True, slots=True)
class DeviceSheet:
    """One GPU. `single`, `half`, `eight` and `four` are dense peaks in FLOP/s by width of the operands.

    `domain` is the number of GPUs that reach each other over NVLink at `link_bytes_per_s`; `nic_bytes_per_s` is a GPU's
    share of its node's NICs. Widths that the tensor cores lack take the next wider one's peak. `products` are NVIDIA's
    names of it, `power_cap_w` the watts that its board holds it to, where those are fewer than it could take.
    """

    name: str
    generation: Generation
    memory_bytes: int
    memory_bytes_per_s: float
    multiprocessors: int
    single: float
    half: float
    eight: float
    four: float
    link_bytes_per_s: float
    domain: int
    nic_bytes_per_s: float
    products: tuple[str, ...] = ()
    power_cap_w: int = 0

    @property
    def switched(self) -> bool:
        """Whether NVLink goes through a switch in a node of eight, not along the edges of a cube mesh."""
        return self.generation is not Generation.VOLTA

    def peak(self, width: int) -> float:
        """Dense peak for operands of `width` bits: 32, 16, 8 or 4."""
        return {32: self.single, 16: self.half, 8: self.eight, 4: self.four}[width]


_T = 1e12
_SHEETS = (
    DeviceSheet(
        "V100-16", Generation.VOLTA, 16 * GIB, 900e9, 80, 15.7 * _T, 125 * _T, 125 * _T, 125 * _T, 150e9, 8, 1.5625e9,
        ("V100", "V100-SXM2-16GB", "V100-PCIE-16GB", "Tesla V100-SXM2-16GB", "Tesla V100-PCIE-16GB"),
    ),
    DeviceSheet(
        "V100-32", Generation.VOLTA, 32 * GIB, 980e9, 80, 15.7 * _T, 125 * _T, 125 * _T, 125 * _T, 150e9, 16, 6.25e9,
        (
            "V100-SXM2-32GB", "V100-SXM3-32GB", "V100-PCIE-32GB", "Tesla V100-SXM2-32GB", "Tesla V100-SXM3-32GB",
            "Tesla V100-PCIE-32GB",
        ),
    ),
    DeviceSheet(
        "P100", Generation.VOLTA, 16 * GIB, 732e9, 56, 10.6 * _T, 21.2 * _T, 21.2 * _T, 21.2 * _T, 80e9, 8, 1.5625e9,
        ("P100-SXM2-16GB", "P100-PCIE-16GB", "Tesla P100-SXM2-16GB", "Tesla P100-PCIE-16GB"),
    ),
    DeviceSheet(
        "A100-40", Generation.AMPERE, 40 * GIB, 1555e9, 108, 19.5 * _T, 312 * _T, 312 * _T, 312 * _T, 300e9, 8, 25e9,
        ("A100", "A100-SXM4-40GB", "A100-SXM-40GB", "A100-PCIE-40GB", "NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"),
    ),
    DeviceSheet(
        "A100-80", Generation.AMPERE, 80 * GIB, 2039e9, 108, 19.5 * _T, 312 * _T, 312 * _T, 312 * _T, 300e9, 8, 25e9,
        ("A100-SXM4-80GB", "A100-SXM-80GB", "A100-PCIE-80GB", "NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"),
    ),
    DeviceSheet(
        "H100", Generation.HOPPER, 80 * GIB, 3350e9, 132, 67 * _T, 989 * _T, 1979 * _T, 1979 * _T, 450e9, 8, 50e9,
        ("H100-SXM5-80GB", "H100-SXM-80GB", "H100-PCIE-80GB", "NVIDIA H100 80GB HBM3"),
    ),
    # Grand Teton's board holds the H100 to 500 W and carries HBM2e.
    DeviceSheet(
        "H100-96", Generation.HOPPER, 96 * GIB, 2400e9, 132, 67 * _T, 989 * _T, 1979 * _T, 1979 * _T, 450e9, 8, 50e9,
        power_cap_w=500,
    ),
    DeviceSheet(
        "H200", Generation.HOPPER, 141 * GIB, 4800e9, 132, 67 * _T, 989 * _T, 1979 * _T, 1979 * _T, 450e9, 8, 50e9,
        ("H200-SXM-141GB", "NVIDIA H200"),
    ),
    DeviceSheet(
        "B200", Generation.BLACKWELL, 180 * GIB, 7700e9, 148, 75 * _T, 2250 * _T, 4500 * _T, 9000 * _T, 900e9, 8, 50e9,
        ("B200-SXM-180GB", "NVIDIA B200"),
    ),
    DeviceSheet(
        "B300", Generation.BLACKWELL, 268 * GIB, 8000e9, 148, 75 * _T, 2250 * _T, 4500 * _T, 13500 * _T, 900e9, 8,
        100e9, ("NVIDIA B300",),
    ),
    DeviceSheet(
        "GB200", Generation.BLACKWELL, 186 * GIB, 8000e9, 152, 80 * _T, 2450 * _T, 4900 * _T, 9800 * _T, 900e9, 64,
        50e9, ("NVIDIA GB200",),
    ),
    DeviceSheet(
        "GB300", Generation.BLACKWELL, 277 * GIB, 8000e9, 152, 80 * _T, 2450 * _T, 4900 * _T, 14700 * _T, 900e9, 64,
        100e9, ("NVIDIA GB300",),
    ),
)  # fmt: skip
DEVICES = {sheet.name: sheet for sheet in _SHEETS}
_NAMED = {product: sheet for sheet in _SHEETS for product in sheet.products} | DEVICES
FABRICS = ("infiniband", "omnipath", "edr")
"""Networks between nodes: InfiniBand or RoCE at a NIC per GPU, Omni-Path, one EDR port per node."""


def named_sheet(name: str) -> DeviceSheet | None:
    """The sheet of a name, ours or NVIDIA's (`A100-SXM4-80GB`)."""
    return _NAMED.get(name)


def device(name: str) -> DeviceSheet:
    """The sheet of a name.

    Raises:
        InputError: no sheet has it.
    """
    if name not in DEVICES:
        raise InputError("no data sheet of this GPU", got=name, hint=did_you_mean(name, DEVICES))
    return DEVICES[name]
