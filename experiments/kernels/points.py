"""Measured kernels: the shipped tables of products, attention, experts and collectives, by device, kind and precision.

Each set has the model that predicts it, so that fitting and judging are the same for all kinds. What a table does not
say but its source's software does (experts without a gate, a kernel of low latency) is looked up by the software's
name.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib import resources
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from strategy.base.errors import InputError
from strategy.hardware.devices import DeviceSheet, named_sheet
from strategy.kernels import attention, expert_load, grouped, links, products
from strategy.kernels.calibration import KernelKind
from strategy.kernels.grouped import ExpertLayer
from strategy.kernels.precision import Floats, KernelPrecision
from strategy.program.program import ActKind

Mask = npt.NDArray[np.bool_]
Rows = Sequence[Mapping[str, str]]

TABLES = ("gemm.csv", "attention.csv", "moe.csv", "collectives.csv")
"""Names of the shipped files that constants are fitted to."""
SKEWS = MappingProxyType({"balanced": 0.0, "power_law_1.01": 1.01, "power_law_1.2": 1.2})
_UNGATED = frozenset({"TRTLLM 1.3.0rc20 moe_torch_flow_nongated"})
_LOW_LATENCY = frozenset({"TRTLLM 1.3.0rc20 moe_torch_flow_min_latency"})
_WHOLE_TOKENS = frozenset({"SGLang 0.5.10 sglang_fused_moe_triton"})
"""Benchmarks in which all choices of a token that reaches the rank are computed there."""
_ALGORITHMS = MappingProxyType({"nccl": KernelKind.RING, "one- or two-shot kernel": KernelKind.DIRECT})
_LEAST_PRODUCT_S = 10e-6
_LEAST_MESSAGE = 2**20
"""Shorter products and smaller messages are mostly launch: they are fitted with less weight and not judged."""


@dataclass(frozen=True, slots=True)
class KernelPoints:
    """Measured points of one kind and precision on one device.

    `model` gives predicted seconds of all of them from the kind's constants; points with the same `cells` are withheld
    together; `judged` are those that count in an error.
    """

    kind: KernelKind
    sheet: DeviceSheet
    precision: KernelPrecision
    seconds: Floats
    model: Callable[[Any], Floats]
    cells: tuple[tuple[float, ...], ...]
    judged: Mask
    sizes: Mapping[str, Floats]
    sources: tuple[str, ...]


def read_points(folder: Path | None = None) -> tuple[KernelPoints, ...]:
    """All shipped sets, by kind, device and precision in the order of their names."""
    root = folder or Path(str(resources.files("experiments") / "reference" / "kernels"))
    software = {row["source_id"]: row["software"] for row in _rows(root / "kernel_sources.csv")}
    found = [
        *_by_device(_rows(root / "gemm.csv"), _products),
        *_by_device(_rows(root / "attention.csv"), _attention),
    ]
    experts = _rows(root / "moe.csv")
    low = [row for row in experts if software[row["source_id"]] in _LOW_LATENCY]
    other = [row for row in experts if software[row["source_id"]] not in _LOW_LATENCY]
    for kind, rows in ((KernelKind.GROUPED, other), (KernelKind.GROUPED_LOW_LATENCY, low)):
        found += _by_device(rows, partial(_grouped, kind=kind, software=software))
    messages = [dict(row, dtype=KernelPrecision.BF16) for row in _rows(root / "collectives.csv")]
    for algorithm, kind in _ALGORITHMS.items():
        mine = [row for row in messages if row["algo"] == algorithm]
        found += _by_device(mine, partial(_links, kind=kind))
    return tuple(found)


@cache
def _rows(path: Path) -> tuple[Mapping[str, str], ...]:
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(MappingProxyType(row) for row in csv.DictReader(file))


def _by_device(
    rows: Rows, read: Callable[[DeviceSheet, KernelPrecision, Rows], KernelPoints]
) -> Iterator[KernelPoints]:
    sets: dict[tuple[str, str], list[Mapping[str, str]]] = {}
    for row in rows:
        sets.setdefault((row["gpu"], row["dtype"]), []).append(row)
    for (gpu, dtype), mine in sorted(sets.items()):
        sheet = named_sheet(gpu)
        if sheet is None:
            raise InputError("no data sheet of this GPU", got=gpu)
        yield read(sheet, KernelPrecision(dtype), mine)


def _columns(rows: Rows, *names: str) -> dict[str, Floats]:
    return {name: np.array([float(row[name]) for row in rows]) for name in names}


def _set(
    kind: KernelKind, sheet: DeviceSheet, precision: KernelPrecision, rows: Rows, sizes: dict[str, Floats],
    model: Callable[[Any], Floats], judged: Mask | None = None, cells: Sequence[str] = (),
) -> KernelPoints:  # fmt: skip
    seconds = np.array([float(row["time_us"]) * 1e-6 for row in rows])
    keys = zip(*(sizes[name].tolist() for name in cells or sizes), strict=True)
    sources = tuple(sorted({row["source_id"] for row in rows}, key=lambda name: (len(name), name)))
    counted = np.ones(len(rows), dtype=bool) if judged is None else judged
    return KernelPoints(kind, sheet, precision, seconds, model, tuple(keys), counted, MappingProxyType(sizes), sources)


def _products(sheet: DeviceSheet, precision: KernelPrecision, rows: Rows) -> KernelPoints:
    sizes = _columns(rows, "m", "n", "k")

    def model(constants: products.ProductConstants) -> Floats:
        return products.seconds(sheet, precision, constants, sizes["m"], sizes["n"], sizes["k"])

    judged = np.array([float(row["time_us"]) * 1e-6 >= _LEAST_PRODUCT_S for row in rows])
    return _set(KernelKind.PRODUCTS, sheet, precision, rows, sizes, model, judged)


def _attention(sheet: DeviceSheet, precision: KernelPrecision, rows: Rows) -> KernelPoints:
    sizes = _columns(rows, "batch", "seq", "heads", "kv_heads", "head_dim")

    dims = tuple(sizes.values())

    def model(constants: attention.AttentionConstants) -> Floats:
        return attention.seconds(sheet, constants, *dims, cached=True)

    return _set(KernelKind.ATTENTION, sheet, precision, rows, sizes, model)


def _grouped(
    sheet: DeviceSheet, precision: KernelPrecision, rows: Rows, kind: KernelKind, software: Mapping[str, str]
) -> KernelPoints:
    sizes = _columns(rows, "tokens", "hidden", "moe_ffn", "topk", "experts", "etp", "ep")
    skew = np.array([SKEWS[row["load"]] for row in rows])
    by = [software[row["source_id"]] for row in rows]
    load = expert_load.busiest_rank(sizes["tokens"], sizes["topk"], sizes["experts"], sizes["ep"], skew)
    whole = sizes["topk"] * np.minimum(sizes["tokens"], load.rows)
    load = expert_load.RankLoad(np.where([one in _WHOLE_TOKENS for one in by], whole, load.rows), load.experts)
    matrices = np.array([2.0 if one in _UNGATED else 3.0 for one in by])
    layer = ExpertLayer(sizes["hidden"], sizes["moe_ffn"], sizes["etp"], matrices)

    def model(constants: grouped.GroupedConstants) -> Floats:
        return grouped.seconds(sheet, precision, constants, layer, load, sizes["tokens"] * sizes["topk"])

    return _set(kind, sheet, precision, rows, sizes, model)


def _links(sheet: DeviceSheet, precision: KernelPrecision, rows: Rows, kind: KernelKind) -> KernelPoints:
    sizes = _columns(rows, "gpus", "size_bytes")
    ranks, nbytes = sizes["gpus"], sizes["size_bytes"]
    kinds = {one: np.array([row["collective"] == one for row in rows]) for one in ActKind if one.is_communication}

    def by_rings(constants: links.RingConstants) -> Floats:
        found = np.zeros(len(rows))
        for one, mine in kinds.items():
            if mine.any():
                found[mine] = links.ring(sheet, constants, one, ranks[mine], nbytes[mine])
        return found

    def by_shots(constants: links.DirectConstants) -> Floats:
        return links.direct(sheet, constants, ranks, nbytes)

    model: Callable[[Any], Floats] = by_rings if kind is KernelKind.RING else by_shots
    return _set(kind, sheet, precision, rows, sizes, model, nbytes >= _LEAST_MESSAGE, ["size_bytes"])
