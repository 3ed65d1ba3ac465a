"""Constants of kernels by device: those fitted to microbenchmarks, and those of a device that has none.

A device with points of a kind and precision has constants of its own. Another takes the geometric mean over the
devices of its generation, or of the nearest generation that has any, which is the later of two equally near: shares of
its own sheet, seconds as they are, and as many bytes from the cache per FLOP: a processor loads what it can multiply.
Single precision, which nobody measured, has the shares of bf16. Of devices of
other makers than NVIDIA nothing was measured: how their processors load, fill and slow down is not taken to be like
NVIDIA's, so that they have its shares alone, and its launches.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cache
from importlib import resources
from pathlib import Path
from types import MappingProxyType

from strategy.base.errors import InputError
from strategy.base.files import read_json, write_atomic
from strategy.hardware.devices import DEVICES, DeviceSheet, Generation, Maker
from strategy.kernels.attention import AttentionConstants
from strategy.kernels.grouped import GroupedConstants
from strategy.kernels.links import DirectConstants, RingConstants
from strategy.kernels.precision import KernelPrecision
from strategy.kernels.products import ProductConstants

FORMAT = 1
MOST = 6
"""Constants of one device, kind and precision."""
_SHIPPED = "fitted.json"
KernelConstants = ProductConstants | AttentionConstants | GroupedConstants | RingConstants | DirectConstants


class KernelKind(StrEnum):
    """What is priced by one form; grouped products have two kernels, collectives two algorithms."""

    PRODUCTS = "products"
    ATTENTION = "fused attention"
    GROUPED = "grouped"
    GROUPED_LOW_LATENCY = "grouped, low latency"
    RING = "ring"
    DIRECT = "direct"


CLASSES: Mapping[KernelKind, type[KernelConstants]] = MappingProxyType({
    KernelKind.PRODUCTS: ProductConstants,
    KernelKind.ATTENTION: AttentionConstants,
    KernelKind.GROUPED: GroupedConstants,
    KernelKind.GROUPED_LOW_LATENCY: GroupedConstants,
    KernelKind.RING: RingConstants,
    KernelKind.DIRECT: DirectConstants,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class FittedKernel:
    """Constants of one kind and precision on one device, by name: value, and 90 % interval.

    `points` is how many they were fitted to, `sources` where these are from, `ranges` the least and most of each size.
    """

    kind: KernelKind
    device: str
    precision: KernelPrecision
    values: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    points: int
    sources: tuple[str, ...]
    ranges: Mapping[str, tuple[float, float]]

    @property
    def constants(self) -> KernelConstants:
        """The constants as the kind's own; those that were not fitted keep their defaults."""
        return CLASSES[self.kind](**self.values)


@dataclass(frozen=True, slots=True)
class KernelCalibration:
    """What is fitted, in the order of the file."""

    fitted: tuple[FittedKernel, ...]

    def without(self, device: str) -> KernelCalibration:
        """The calibration that a device without points would have."""
        return KernelCalibration(tuple(one for one in self.fitted if one.device != device))

    def nearest(self, kind: KernelKind, precision: KernelPrecision, sheet: DeviceSheet) -> tuple[FittedKernel, ...]:
        """What a device's constants come from: its own, its generation's, or the nearest generation's.

        Raises:
            InputError: nothing is fitted of this kind and precision.
        """
        if precision is KernelPrecision.SINGLE:
            precision = KernelPrecision.BF16
        alike = [one for one in self.fitted if one.kind is kind and one.precision is precision]
        if not alike:
            raise InputError(f"no constants of {kind} in {precision}", expected="points of some device")
        own = tuple(one for one in alike if one.device == sheet.name)
        if own:
            return own
        order = tuple(Generation)
        ranks = [order.index(DEVICES[one.device].generation) for one in alike]
        mine = order.index(sheet.generation)
        best = min(ranks, key=lambda rank: (abs(rank - mine), -rank))
        return tuple(one for one, rank in zip(alike, ranks, strict=True) if rank == best)

    def constants(self, kind: KernelKind, precision: KernelPrecision, sheet: DeviceSheet) -> KernelConstants:
        """Constants of a kind and precision on a device; `nearest` says where they are from."""
        found = self.nearest(kind, precision, sheet)
        names = found[0].values
        means = {name: math.exp(sum(math.log(one.values[name]) for one in found) / len(found)) for name in names}
        constants = found[0].constants if len(found) == 1 else CLASSES[kind](**means)
        if found[0].device != sheet.name and isinstance(constants, ProductConstants):
            each = [_peak_of_one(DEVICES[one.device], precision) for one in found]
            more = _peak_of_one(sheet, precision) / math.exp(sum(map(math.log, each)) / len(each))
            constants = replace(constants, cache_bytes_per_s=constants.cache_bytes_per_s * more)
        return constants if sheet.maker is Maker.NVIDIA else _of_another_maker(constants)


def _peak_of_one(sheet: DeviceSheet, precision: KernelPrecision) -> float:
    """FLOP/s of one multiprocessor."""
    return sheet.peak(precision.multiplied_bits) / sheet.multiprocessors


def _of_another_maker(constants: KernelConstants) -> KernelConstants:
    """Shares and launches alone: its processors are other than those that were measured."""
    if isinstance(constants, ProductConstants):
        launch_s = constants.launch_s + constants.fill_s
        return replace(constants, launch_s=launch_s, fill_s=0.0, cache_bytes_per_s=math.inf, slowdown=0.0)
    if isinstance(constants, AttentionConstants):
        return replace(constants, exponentials_per_s=math.inf)
    return constants


@cache
def shipped() -> KernelCalibration:
    """The constants that come with the package; read once."""
    with resources.as_file(resources.files("strategy.kernels") / _SHIPPED) as path:
        return read_kernels(path)


def read_kernels(path: Path) -> KernelCalibration:
    """Fitted constants from their file.

    Raises:
        InputError: no such file, another format, or an entry that cannot be.
    """
    document = read_json(path)
    if not isinstance(document, dict) or document.get("format") != FORMAT or "kernels" not in document:
        raise InputError("not fitted constants of kernels", where=str(path), expected=f"format {FORMAT}")
    found = []
    for number, entry in enumerate(document["kernels"]):
        where = f"{path}: kernels[{number}]"
        try:
            kernel = _kernel(entry)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(f"not fitted constants: {error}", where=where) from None
        declared = {field.name for field in fields(CLASSES[kernel.kind])}
        if not (kernel.values.keys() <= declared and len(kernel.values) <= MOST):
            raise InputError("other constants than the kind has", where=where, got=sorted(kernel.values))
        if not all(0 < value < math.inf for value in kernel.values.values()):
            raise InputError("not possible constants", where=where, got=dict(kernel.values), expected="above 0")
        found.append(kernel)
    return KernelCalibration(tuple(found))


def _kernel(entry: dict[str, dict[str, dict[str, float]]]) -> FittedKernel:
    values = {name: float(one["value"]) for name, one in entry["constants"].items()}
    intervals = {name: (float(one["low"]), float(one["high"])) for name, one in entry["constants"].items()}
    ranges = {name: (float(low), float(high)) for name, (low, high) in entry["ranges"].items()}
    device = str(entry["device"])
    if device not in DEVICES:
        raise ValueError(f"no data sheet of {device!r}")
    return FittedKernel(
        KernelKind(str(entry["kind"])),
        device,
        KernelPrecision(str(entry["precision"])),
        MappingProxyType(values),
        MappingProxyType(intervals),
        int(str(entry["points"])),
        tuple(str(one) for one in entry["sources"]),
        MappingProxyType(ranges),
    )


def write_kernels(path: Path, kernels: Sequence[FittedKernel], provenance: Mapping[str, object]) -> None:
    """Write fitted constants; the same constants give the same bytes."""
    entries = [
        {
            "kind": one.kind,
            "device": one.device,
            "precision": one.precision,
            "points": one.points,
            "sources": list(one.sources),
            "ranges": {name: list(ends) for name, ends in one.ranges.items()},
            "constants": {
                name: {
                    "value": _digits(value),
                    "low": _digits(one.intervals[name][0]),
                    "high": _digits(one.intervals[name][1]),
                }
                for name, value in one.values.items()
            },
        }
        for one in kernels
    ]
    document = {"format": FORMAT, "provenance": dict(provenance), "kernels": entries}
    write_atomic(path, json.dumps(document, indent=1) + "\n")


def _digits(value: float) -> float:
    return float(f"{value:.5g}")
