"""Devices and fabrics by their data sheets: what a GPU of a name can do before anything is fitted.

Dense peaks in FLOP/s, bandwidths in bytes/s and per direction. NVIDIA's figures are from its data sheets and
architecture papers, AMD's from the data sheets of the Instinct accelerators and the CDNA 3 and CDNA 4 white papers,
Intel's from the white papers of Gaudi 2 and 3, Google's from the pages of Cloud TPU on v4 to TPU7x. An unknown GPU is a
`DeviceSheet` of its own; it takes the fitted efficiencies of its `generation`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from strategy.base.errors import InputError, did_you_mean

GIB = 2**30


class Generation(StrEnum):
    """Whose fitted efficiencies a device takes, oldest first.

    A Pascal takes Volta's, an Ada Ampere's; what others make takes those of its time, for want of measurements.
    """

    VOLTA = "volta"
    AMPERE = "ampere"
    HOPPER = "hopper"
    BLACKWELL = "blackwell"


class Maker(StrEnum):
    """Who makes a device. Only NVIDIA's have published kernels and runs enough to be fitted by generation."""

    NVIDIA = "nvidia"
    AMD = "amd"
    INTEL = "intel"
    GOOGLE = "google"


class Wiring(StrEnum):
    """How the devices of a domain reach each other."""

    SWITCH = "switch"
    """Any pair at the full rate: NVSwitch, a bridge over all links, or PCIe."""
    MESH = "mesh"
    """By direct links that share the rate: NVLink's cube mesh, Infinity Fabric, Gaudi's Ethernet."""
    TORUS = "torus"
    """By links to the neighbours along two or three axes: a TPU's inter-chip interconnect."""


@dataclass(frozen=True, slots=True)
class DeviceSheet:
    """One GPU. `single`, `half`, `eight` and `four` are dense peaks in FLOP/s by width of the operands.

    `domain` is the number of GPUs that reach each other over NVLink (or what its maker has instead), all links of one
    together at `link_bytes_per_s`; `nic_bytes_per_s` is a GPU's share of its node's NICs. Widths that the tensor cores
    lack take the next wider one's peak. `products` are its maker's names of it, `power` the watts of its board over
    what another one of its generation has for the same peaks: what a device sustains is bound by its power.
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
    power: float = 1.0
    maker: Maker = Maker.NVIDIA
    wiring: Wiring = Wiring.SWITCH

    @property
    def switched(self) -> bool:
        """Whether any pair of a domain has all of a device's links between them."""
        return self.wiring is Wiring.SWITCH

    @property
    def mx_scales(self) -> bool:
        """Whether products of 8 bits scale blocks of 32 by themselves: Blackwell and CDNA 4, of those sold by name."""
        return self.generation is Generation.BLACKWELL and self.maker in (Maker.NVIDIA, Maker.AMD)

    @property
    def nvfp4(self) -> bool:
        """Whether `four` is of NVFP4's blocks of 16; AMD's are those of MXFP4."""
        return self.generation is Generation.BLACKWELL and self.maker is Maker.NVIDIA

    def peak(self, width: int) -> float:
        """Dense peak for operands of `width` bits: 32, 16, 8 or 4."""
        return {32: self.single, 16: self.half, 8: self.eight, 4: self.four}[width]


_T = 1e12
_SHEETS = (
    DeviceSheet(
        "V100-16", Generation.VOLTA, 16 * GIB, 900e9, 80, 15.7 * _T, 125 * _T, 125 * _T, 125 * _T, 150e9, 8, 1.5625e9,
        ("V100", "V100-SXM2-16GB", "V100-PCIE-16GB", "Tesla V100-SXM2-16GB", "Tesla V100-PCIE-16GB"),
        wiring=Wiring.MESH,
    ),
    DeviceSheet(
        "V100-32", Generation.VOLTA, 32 * GIB, 980e9, 80, 15.7 * _T, 125 * _T, 125 * _T, 125 * _T, 150e9, 16, 6.25e9,
        (
            "V100-SXM2-32GB", "V100-SXM3-32GB", "V100-PCIE-32GB", "Tesla V100-SXM2-32GB", "Tesla V100-SXM3-32GB",
            "Tesla V100-PCIE-32GB",
        ),
        wiring=Wiring.MESH,
    ),
    DeviceSheet(
        "P100", Generation.VOLTA, 16 * GIB, 732e9, 56, 10.6 * _T, 21.2 * _T, 21.2 * _T, 21.2 * _T, 80e9, 8, 1.5625e9,
        ("P100-SXM2-16GB", "P100-PCIE-16GB", "Tesla P100-SXM2-16GB", "Tesla P100-PCIE-16GB"),
        wiring=Wiring.MESH,
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
        ("H100-SXM5-80GB", "H100-SXM-80GB", "NVIDIA H100 80GB HBM3"),
    ),
    # Grand Teton's board holds the H100 to 500 W, of 700, and carries HBM2e.
    DeviceSheet(
        "H100-96", Generation.HOPPER, 96 * GIB, 2400e9, 132, 67 * _T, 989 * _T, 1979 * _T, 1979 * _T, 450e9, 8, 50e9,
        power=500 / 700,
    ),
    DeviceSheet(
        "H200", Generation.HOPPER, 141 * GIB, 4800e9, 132, 67 * _T, 989 * _T, 1979 * _T, 1979 * _T, 450e9, 8, 50e9,
        ("H200-SXM-141GB", "NVIDIA H200"),
    ),
    DeviceSheet(
        "B200", Generation.BLACKWELL, 180 * GIB, 7700e9, 148, 75 * _T, 2250 * _T, 4500 * _T, 9000 * _T, 900e9, 8, 50e9,
        ("B200-SXM", "B200-SXM-180GB", "NVIDIA B200"),
    ),
    DeviceSheet(
        "B300", Generation.BLACKWELL, 268 * GIB, 8000e9, 148, 75 * _T, 2250 * _T, 4500 * _T, 13500 * _T, 900e9, 8,
        100e9, ("B300-SXM", "NVIDIA B300"), power=1100 / 1000,
    ),
    DeviceSheet(
        "GB200", Generation.BLACKWELL, 186 * GIB, 8000e9, 152, 80 * _T, 2450 * _T, 4900 * _T, 9800 * _T, 900e9, 64,
        50e9, ("NVIDIA GB200",),
    ),
    DeviceSheet(
        "GB300", Generation.BLACKWELL, 277 * GIB, 8000e9, 152, 80 * _T, 2450 * _T, 4900 * _T, 14700 * _T, 900e9, 64,
        100e9, ("NVIDIA GB300",), power=1400 / 1200,
    ),
    # The A100 for export: two thirds of its NVLink.
    DeviceSheet(
        "A800", Generation.AMPERE, 80 * GIB, 2039e9, 108, 19.5 * _T, 312 * _T, 312 * _T, 312 * _T, 200e9, 8, 25e9,
        ("A800-SXM-80GB", "NVIDIA A800-SXM4-80GB"),
    ),
    # PCIe 4 x16 and no NVLink.
    DeviceSheet(
        "L40S", Generation.AMPERE, 48 * GIB, 864e9, 142, 91.6 * _T, 362 * _T, 733 * _T, 733 * _T, 32e9, 8, 25e9,
        ("NVIDIA L40S",),
    ),
    # A PCIe card of 350 W with fewer processors and HBM2e; bridges join two.
    DeviceSheet(
        "H100-PCIE", Generation.HOPPER, 80 * GIB, 2000e9, 114, 51 * _T, 756 * _T, 1513 * _T, 1513 * _T, 300e9, 2, 25e9,
        ("H100-PCIE-80GB", "NVIDIA H100 PCIe"), power=350 / 700 / (756 / 989),
    ),
    # The H100 for export: four ninths of its NVLink; and with a seventh of its products besides, on faster memory.
    DeviceSheet(
        "H800", Generation.HOPPER, 80 * GIB, 3350e9, 132, 67 * _T, 989 * _T, 1979 * _T, 1979 * _T, 200e9, 8, 50e9,
        ("H800-SXM-80GB", "NVIDIA H800"),
    ),
    DeviceSheet(
        "H20", Generation.HOPPER, 96 * GIB, 4000e9, 78, 44 * _T, 148 * _T, 296 * _T, 296 * _T, 450e9, 8, 50e9,
        ("H20-SXM-96GB", "NVIDIA H20"),
    ),
    # One H100 and one Grace on a board of up to 1,000 W; four boards of a node have six links from each to each other
    # (Fusco et al., 2024, arXiv:2408.11556, section 2).
    DeviceSheet(
        "GH200", Generation.HOPPER, 96 * GIB, 4000e9, 132, 67 * _T, 989 * _T, 1979 * _T, 1979 * _T, 450e9, 4, 25e9,
        ("GH200-96GB", "NVIDIA GH200 480GB"), wiring=Wiring.MESH,
    ),
    # Cards for inference, graphics and games: PCIe 4 x16 (T4: 3), and no NVLink but the A6000's, A40's and A30's
    # bridges; the 3090's, for two, is an extra. Peaks of the data sheets without sparsity, of sums in float32.
    DeviceSheet(
        "L40", Generation.AMPERE, 48 * GIB, 864e9, 142, 90.5 * _T, 181 * _T, 362 * _T, 362 * _T, 32e9, 8, 12.5e9,
        ("NVIDIA L40",),
    ),
    DeviceSheet(
        "L4", Generation.AMPERE, 24 * GIB, 300e9, 58, 30.3 * _T, 121 * _T, 242 * _T, 242 * _T, 32e9, 8, 12.5e9,
        ("NVIDIA L4",),
    ),
    DeviceSheet(
        "A10G", Generation.AMPERE, 24 * GIB, 600e9, 80, 35 * _T, 70 * _T, 70 * _T, 70 * _T, 32e9, 8, 6.25e9,
        ("NVIDIA A10G",),
    ),
    DeviceSheet(
        "A10", Generation.AMPERE, 24 * GIB, 600e9, 72, 31.2 * _T, 125 * _T, 125 * _T, 125 * _T, 32e9, 8, 12.5e9,
        ("NVIDIA A10",),
    ),
    DeviceSheet(
        "A30", Generation.AMPERE, 24 * GIB, 933e9, 56, 10.3 * _T, 165 * _T, 165 * _T, 165 * _T, 100e9, 2, 12.5e9,
        ("NVIDIA A30",),
    ),
    DeviceSheet(
        "A40", Generation.AMPERE, 48 * GIB, 696e9, 84, 37.4 * _T, 149.7 * _T, 149.7 * _T, 149.7 * _T, 56.25e9, 2,
        12.5e9, ("NVIDIA A40",),
    ),
    DeviceSheet(
        "RTX-A6000", Generation.AMPERE, 48 * GIB, 768e9, 84, 38.7 * _T, 154.8 * _T, 154.8 * _T, 154.8 * _T, 56.25e9, 2,
        12.5e9, ("NVIDIA RTX A6000",),
    ),
    DeviceSheet(
        "RTX-3090", Generation.AMPERE, 24 * GIB, 936e9, 82, 35.6 * _T, 71 * _T, 71 * _T, 71 * _T, 32e9, 8, 3.125e9,
        ("NVIDIA GeForce RTX 3090",),
    ),
    DeviceSheet(
        "RTX-4090", Generation.AMPERE, 24 * GIB, 1008e9, 128, 82.6 * _T, 165.2 * _T, 330.3 * _T, 330.3 * _T, 32e9, 8,
        3.125e9, ("NVIDIA GeForce RTX 4090",),
    ),
    DeviceSheet(
        "T4", Generation.VOLTA, 16 * GIB, 320e9, 40, 8.1 * _T, 65 * _T, 65 * _T, 65 * _T, 16e9, 8, 3.125e9,
        ("Tesla T4",),
    ),
    # One of the two dies of a module, which is a device of its own; its links go to the other die and to neighbours.
    DeviceSheet(
        "MI250X", Generation.AMPERE, 64 * GIB, 1638e9, 110, 47.9 * _T, 191.5 * _T, 191.5 * _T, 191.5 * _T, 200e9, 8,
        12.5e9, ("AMD Instinct MI250X",), maker=Maker.AMD, wiring=Wiring.MESH,
    ),
    # A PCIe card of 600 W; bridges join two or four.
    DeviceSheet(
        "H200-NVL", Generation.HOPPER, 141 * GIB, 4800e9, 132, 60 * _T, 835 * _T, 1671 * _T, 1671 * _T, 450e9, 4, 50e9,
        ("H200-NVL-141GB", "NVIDIA H200 NVL"),
    ),
    # Seven links of Infinity Fabric, to each other device of the node: 64 GB/s each, 76.8 from the MI350X on.
    DeviceSheet(
        "MI300X", Generation.HOPPER, 192 * GIB, 5300e9, 304, 163.4 * _T, 1307.4 * _T, 2614.9 * _T, 2614.9 * _T, 448e9,
        8, 50e9, ("AMD Instinct MI300X",), maker=Maker.AMD, wiring=Wiring.MESH,
    ),
    DeviceSheet(
        "MI325X", Generation.HOPPER, 256 * GIB, 6000e9, 304, 163.4 * _T, 1307.4 * _T, 2614.9 * _T, 2614.9 * _T, 448e9,
        8, 50e9, ("AMD Instinct MI325X",), power=1000 / 750, maker=Maker.AMD, wiring=Wiring.MESH,
    ),
    DeviceSheet(
        "MI350X", Generation.BLACKWELL, 288 * GIB, 8000e9, 256, 144.2 * _T, 2306.9 * _T, 4613.7 * _T, 9227.5 * _T,
        537.6e9, 8, 50e9, ("AMD Instinct MI350X",), maker=Maker.AMD, wiring=Wiring.MESH,
    ),
    DeviceSheet(
        "MI355X", Generation.BLACKWELL, 288 * GIB, 8000e9, 256, 157.3 * _T, 2516.6 * _T, 5033.2 * _T, 10066.3 * _T,
        537.6e9, 8, 50e9, ("AMD Instinct MI355X",), power=1400 / 1000 / (2516.6 / 2306.9), maker=Maker.AMD,
        wiring=Wiring.MESH,
    ),
    # 24 ports of 100 Gbit/s, 21 of them to the other seven devices. What Gaudi and TPU make of float32 is not
    # published: here six products of bf16 for one of float32, as XLA does at its highest precision. Processors are
    # the arrays that multiply: none of them cuts a product into tiles for many processors.
    DeviceSheet(
        "Gaudi2", Generation.AMPERE, 96 * GIB, 2450e9, 2, 72 * _T, 432 * _T, 865 * _T, 865 * _T, 262.5e9, 8, 37.5e9,
        ("Intel Gaudi 2",), maker=Maker.INTEL, wiring=Wiring.MESH,
    ),
    DeviceSheet(
        "Gaudi3", Generation.HOPPER, 128 * GIB, 3700e9, 8, 305 * _T, 1835 * _T, 1835 * _T, 1835 * _T, 525e9, 8, 75e9,
        ("Intel Gaudi 3",), maker=Maker.INTEL, wiring=Wiring.MESH,
    ),
    # Links of 100 GB/s and direction, of 50 before v5p: six of a 3D torus, four of a 2D one. NICs of a host by its four
    # or eight chips.
    DeviceSheet(
        "TPU-v4", Generation.AMPERE, 32 * GIB, 1200e9, 8, 45.8 * _T, 275 * _T, 275 * _T, 275 * _T, 300e9, 4096, 6.25e9,
        ("TPU v4",), maker=Maker.GOOGLE, wiring=Wiring.TORUS,
    ),
    DeviceSheet(
        "TPU-v5e", Generation.AMPERE, 16 * GIB, 819e9, 4, 32.8 * _T, 197 * _T, 197 * _T, 197 * _T, 200e9, 256, 3.125e9,
        ("TPU v5e",), maker=Maker.GOOGLE, wiring=Wiring.TORUS,
    ),
    DeviceSheet(
        "TPU-v5p", Generation.AMPERE, 95 * GIB, 2765e9, 8, 76.5 * _T, 459 * _T, 459 * _T, 459 * _T, 600e9, 8960, 6.25e9,
        ("TPU v5p",), maker=Maker.GOOGLE, wiring=Wiring.TORUS,
    ),
    DeviceSheet(
        "TPU-v6e", Generation.HOPPER, 32 * GIB, 1638e9, 2, 153 * _T, 918 * _T, 918 * _T, 918 * _T, 400e9, 256, 12.5e9,
        ("TPU v6e",), maker=Maker.GOOGLE, wiring=Wiring.TORUS,
    ),
    DeviceSheet(
        "TPU-v7x", Generation.BLACKWELL, 192 * GIB, 7380e9, 4, 384.5 * _T, 2307 * _T, 4614 * _T, 4614 * _T, 600e9, 9216,
        12.5e9, ("TPU7x",), maker=Maker.GOOGLE, wiring=Wiring.TORUS,
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
