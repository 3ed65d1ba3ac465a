"""Devices and fabrics by their data sheets: what a GPU of a name can do before anything is fitted.

Dense peaks in FLOP/s, bandwidths in bytes/s and per direction, from NVIDIA's data sheets and architecture papers. An
unknown GPU is a `DeviceSheet` of its own; it takes the fitted efficiencies of its `generation`.
"""

from __future__ import annotations

from dataclasses import dataclass

from strategy.base.errors import InputError, did_you_mean

GIB = 2**30


@dataclass(frozen=True, slots=True)
class DeviceSheet:
    """One GPU. `single`, `half`, `eight` and `four` are dense peaks in FLOP/s by width of the operands.

    `domain` is the number of GPUs that reach each other over NVLink at `link_bytes_per_s`; `nic_bytes_per_s` is a GPU's
    share of its node's NICs. Widths that the tensor cores lack take the next wider one's peak.
    """

    name: str
    generation: str
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

    def peak(self, width: int) -> float:
        """Dense peak for operands of `width` bits: 32, 16, 8 or 4."""
        return {32: self.single, 16: self.half, 8: self.eight, 4: self.four}[width]


_T = 1e12
_SHEETS = (
    DeviceSheet("V100-16", "volta", 16 * GIB, 900e9, 80, 15.7 * _T, 125 * _T, 125 * _T, 125 * _T, 150e9, 8, 1.5625e9),
    DeviceSheet("V100-32", "volta", 32 * GIB, 980e9, 80, 15.7 * _T, 125 * _T, 125 * _T, 125 * _T, 150e9, 16, 6.25e9),
    DeviceSheet("P100", "volta", 16 * GIB, 732e9, 56, 10.6 * _T, 21.2 * _T, 21.2 * _T, 21.2 * _T, 80e9, 8, 1.5625e9),
    DeviceSheet("A100-40", "ampere", 40 * GIB, 1555e9, 108, 19.5 * _T, 312 * _T, 312 * _T, 312 * _T, 300e9, 8, 25e9),
    DeviceSheet("A100-80", "ampere", 80 * GIB, 2039e9, 108, 19.5 * _T, 312 * _T, 312 * _T, 312 * _T, 300e9, 8, 25e9),
    DeviceSheet("H100", "hopper", 80 * GIB, 3350e9, 132, 67 * _T, 989 * _T, 1979 * _T, 1979 * _T, 450e9, 8, 50e9),
    # Grand Teton's board holds the H100 to 500 W and carries HBM2e.
    DeviceSheet("H100-96", "hopper500", 96 * GIB, 2400e9, 132, 67 * _T, 989 * _T, 1979 * _T, 1979 * _T, 450e9, 8, 50e9),
    DeviceSheet("H200", "hopper", 141 * GIB, 4800e9, 132, 67 * _T, 989 * _T, 1979 * _T, 1979 * _T, 450e9, 8, 50e9),
    DeviceSheet("B200", "blackwell", 180 * GIB, 7700e9, 148, 75 * _T, 2250 * _T, 4500 * _T, 9000 * _T, 900e9, 8, 50e9),
    DeviceSheet(
        "B300", "blackwell", 268 * GIB, 8000e9, 148, 75 * _T, 2250 * _T, 4500 * _T, 13500 * _T, 900e9, 8, 100e9
    ),
    DeviceSheet(
        "GB200", "blackwell", 186 * GIB, 8000e9, 152, 80 * _T, 2450 * _T, 4900 * _T, 9800 * _T, 900e9, 64, 50e9
    ),
    DeviceSheet(
        "GB300", "blackwell", 277 * GIB, 8000e9, 152, 80 * _T, 2450 * _T, 4900 * _T, 14700 * _T, 900e9, 64, 100e9
    ),
)
DEVICES = {sheet.name: sheet for sheet in _SHEETS}
FABRICS = ("infiniband", "omnipath", "edr")
"""Networks between nodes: InfiniBand or RoCE at a NIC per GPU, Omni-Path, one EDR port per node."""


def named_sheet(name: str) -> DeviceSheet | None:
    """The sheet of the GPU that a name is, or begins with the model of (`A100-SXM4-80GB`)."""
    if name in DEVICES:
        return DEVICES[name]
    model = name.split("-")[0]
    return next((sheet for sheet in _SHEETS if sheet.name.split("-")[0] == model), None)


def device(name: str) -> DeviceSheet:
    """The sheet of a name.

    Raises:
        InputError: no sheet has it.
    """
    if name not in DEVICES:
        raise InputError("no data sheet of this GPU", got=name, hint=did_you_mean(name, DEVICES))
    return DEVICES[name]
