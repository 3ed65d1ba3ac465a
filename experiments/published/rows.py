"""Rows: one published run per line of a CSV file, read into the jobs that it may have been.

What a row leaves open (micro-batch, interleaving, recompute, heads) is not picked: the row becomes several weighted
jobs and its prediction is their mean. A blank `attention_impl` means unfused attention. Measured columns, and those
that say who measured what and when, are never read.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from experiments.published.models import MODELS, VOCABULARY, plain
from strategy.base.errors import InputError
from strategy.closed_form.job import Job, Shape
from strategy.hardware.devices import DEVICES, DeviceSheet

INPUTS = (
    "framework", "framework_version", "gpu", "gpu_mem_gb", "num_gpus", "gpus_per_node", "inter_link",
    "inter_bw_Gbps_per_node", "model", "params_b", "layers", "hidden", "heads", "kv_heads", "ffn", "seq", "vocab",
    "dtype", "dp", "tp", "pp", "vpp", "ep", "cp", "zero_stage", "fsdp_shard", "micro_batch", "global_batch",
    "num_microbatches", "recompute", "seq_parallel", "schedule", "attention_impl",
)  # fmt: skip
"""The only columns that a prediction depends on."""

PRECISIONS = (  # the first that the dtype starts with
    ("fp32", "single"), ("mxfp8", "mx8"), ("fp8-mx", "mx8"), ("fp8-rowwise", "row8"), ("nvfp4", "four"),
    ("fp8", "eight"), ("amp_fp8", "eight"), ("amp_bf16", "half"), ("amp-fp16", "half"), ("bf16", "half"),
    ("fp16", "half"),
)  # fmt: skip
GPUS = (  # the first that the name starts with, memory in GB where sheets differ by it
    ("V100", "32", "V100-32"), ("V100", "", "V100-16"), ("P100", "", "P100"), ("A100", "40", "A100-40"),
    ("A100", "", "A100-80"), ("H100-96", "", "H100-96"), ("H100", "", "H100"), ("H200", "", "H200"),
    ("GB200", "", "GB200"), ("GB300", "", "GB300"), ("B200", "", "B200"), ("B300", "", "B300"),
)  # fmt: skip
FRAMEWORKS = (  # the first that the name starts with
    ("Megatron-DeepSpeed", "megatron-deepspeed"), ("Megatron-Core", "megatron-core"),
    ("Megatron-Bridge", "megatron-bridge"), ("Megatron", "megatron"), ("DeepSpeed ZeRO", "deepspeed-zero"),
    ("OneFlow W/O", "oneflow-noclip"), ("OneFlow", "oneflow"), ("torchtitan", "torchtitan"),
    ("llm-foundry", "llm-foundry"), ("NGC MXNet", "mxnet-ngc"), ("MXNet", "mxnet"),
    ("NGC TensorFlow 1.x w/XLA", "tensorflow-xla"), ("NGC TensorFlow", "tensorflow"), ("TensorFlow 2", "tensorflow2"),
    ("NGC PyTorch", "pytorch-ngc"), ("PyTorch", "pytorch"), ("PaddlePaddle w/DALI", "paddle-dali"),
    ("PaddlePaddle", "paddle"),
)  # fmt: skip
FABRICS = (("OmniPath", "omnipath"), ("EDR", "edr"))
OMNIPATH_GBPS = 400.0
NEWEST = 2026 + 8 / 12
LARGEST = 2**53
"""No figure of a row is larger: whole numbers are exact, and what is computed from them stays finite."""


class Unsupported(Exception):
    """A row that lacks or garbles what a prediction needs."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """One job that a row may have been, and how likely."""

    job: Job
    weight: float


@dataclass(frozen=True, slots=True)
class Row:
    """A row: its place in the file, its cells, and its candidates, or why it has none."""

    number: int
    cells: Mapping[str, str]
    candidates: tuple[Candidate, ...]
    why_not: str = ""


def read_cells(path: Path) -> list[dict[str, str]]:
    """The lines of a CSV file as one dictionary each.

    Raises:
        InputError: no such file, not UTF-8, no lines, a column missing, a line of the wrong length, or an id twice.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:  # a mark of the byte order is no part of a name
            lines = list(csv.reader(file))
    except FileNotFoundError:
        raise InputError("no such file", where=str(path)) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"not a CSV file: {error}", where=str(path)) from None
    if len(lines) < 2:
        raise InputError("no rows", where=str(path), expected="a line of column names, then rows")
    header = lines[0]
    missing = [name for name in ("row_id", *INPUTS) if name not in header]
    if missing:
        raise InputError("columns are missing", where=f"{path}: row 1", got=header, expected=", ".join(missing))
    cells, seen = [], dict[str, int]()
    for number, line in enumerate(lines[1:], start=2):
        if len(line) != len(header):
            last = header[min(len(line), len(header)) - 1]
            raise InputError(
                "a row of another length",
                where=f"{path}: row {number}, column {last}",
                got=len(line),
                expected=f"{len(header)} cells",
            )
        row = dict(zip(header, line, strict=True))
        if not row["row_id"] or row["row_id"] in seen:
            before = f"one of its own; row {seen.get(row['row_id'])} has this one" if row["row_id"] else "a name"
            raise InputError(
                "rows cannot be told apart",
                where=f"{path}: row {number}, column row_id",
                got=row["row_id"],
                expected=before,
            )
        seen[row["row_id"]] = number
        cells.append(row)
    return cells


def read_rows(path: Path) -> list[Row]:
    """The rows of a file, each with the jobs that it may have been; see `read_cells` for what is raised."""
    rows = []
    for number, cells in enumerate(read_cells(path), start=2):
        try:
            rows.append(Row(number, cells, candidates({name: cells[name].strip() for name in INPUTS})))
        except (Unsupported, InputError) as why:
            rows.append(Row(number, cells, (), str(why)))
    return rows


def figure(cells: Mapping[str, str], column: str, default: float | None = None) -> float:
    """A positive figure of a cell, or the default where the cell is empty."""
    text = cells[column]
    if not text:
        if default is None:
            raise Unsupported(f"{column} is missing")
        return default
    try:
        value = float(text)
    except ValueError:
        raise Unsupported(f"{column}: got {text!r}, expected a number") from None
    if not (math.isfinite(value) and value > 0):
        raise Unsupported(f"{column}: got {text!r}, expected a finite number above zero")
    if value > LARGEST:
        raise Unsupported(f"{column}: got {text!r}, expected at most 2^53")
    return value


def count(cells: Mapping[str, str], column: str, default: int | None = None) -> int:
    """A whole number of at least 1."""
    value = figure(cells, column, None if default is None else float(default))
    if value != int(value):
        raise Unsupported(f"{column}: got {cells[column]!r}, expected a whole number")
    return int(value)


def first(text: str, column: str, table: Sequence[tuple[str, str]]) -> str:
    """The name that a table gives to a text by how it starts."""
    for start, name in table:
        if text.startswith(start):
            return name
    raise Unsupported(f"{column}: {text!r} is not known" if text else f"{column} is missing")


def sheet(cells: Mapping[str, str]) -> DeviceSheet:
    """The data sheet of a row's GPU."""
    memory = cells["gpu_mem_gb"]
    for start, size, name in GPUS:
        if cells["gpu"].startswith(start) and (not size or memory == size):
            return DEVICES[name]
    raise Unsupported(f"gpu: no data sheet of {cells['gpu']!r}" if cells["gpu"] else "gpu is missing")


def age_years(version: str) -> float:
    """Years between a container's release, as in '26.04.01 NeMo Container', and the newest one."""
    year, _, rest = version.partition(" ")[0].partition(".")
    parts = rest.split(".")
    if not (year.isdecimal() and len(year) == 2 and parts[0].isdecimal() and len(parts[0]) <= 2):
        return 0.0
    patch = 0.05 if len(parts) > 1 else 0.0
    return NEWEST - (2000 + int(year) + int(parts[0]) / 12 + patch)


def candidates(cells: Mapping[str, str]) -> tuple[Candidate, ...]:
    """The jobs that a row may have been; weights sum to 1.

    Raises:
        Unsupported: a cell that is needed is missing or is no possible figure.
    """
    base = known(cells)
    shapes = shapes_of(cells, base.tp)
    micro_batches = micro_batches_of(cells, base)
    virtuals = virtuals_of(cells, base, shapes[0].layers)
    recomputes = recomputes_of(cells)
    found = [
        replace(base, shape=shape, micro_batch=micro, virtual=virtual, recompute=recompute)
        for shape, micro, virtual, (recompute, _) in product(shapes, micro_batches, virtuals, recomputes)
    ]
    weights = [w for _, _, _, (_, w) in product(shapes, micro_batches, virtuals, recomputes)]
    return tuple(Candidate(job, weight / sum(weights)) for job, weight in zip(found, weights, strict=True))


def known(cells: Mapping[str, str]) -> Job:
    """The job as far as the row tells it."""
    device = sheet(cells)
    gpus, per_node = count(cells, "num_gpus"), count(cells, "gpus_per_node", 8)
    tp, pp, cp = (count(cells, name, 1) for name in ("tp", "pp", "cp"))
    dp = count(cells, "dp", max(gpus // (tp * pp * cp), 1))
    if dp * tp * pp * cp != gpus:
        raise Unsupported(f"dp {dp} x tp {tp} x pp {pp} x cp {cp} = {dp * tp * pp * cp} is not num_gpus {gpus}")
    fabric = next((name for text, name in FABRICS if text in cells["inter_link"]), "infiniband")
    default = OMNIPATH_GBPS if fabric == "omnipath" else device.nic_bytes_per_s * 8e-9 * per_node
    zero = 0 if cells["zero_stage"] == "0" else count(cells, "zero_stage", 0 if not cells["zero_stage"] else None)
    if cells["fsdp_shard"] not in ("", "0", "1"):
        zero = max(zero, 3) if zero != 2 else 2
    framework = first(cells["framework"], "framework", FRAMEWORKS)
    if framework == "megatron-deepspeed" and not cells["zero_stage"]:
        framework = "megatron-fork"
    return Job(
        shape=Shape(layers=1), device=device, framework=framework,
        precision=first(cells["dtype"], "dtype", PRECISIONS), gpus=gpus, gpus_per_node=per_node,
        nic_bytes_per_s=figure(cells, "inter_bw_Gbps_per_node", default) * 1e9 / 8 / per_node, fabric=fabric,
        seq=count(cells, "seq", 1 if plain(cells["model"]) == "resnet50v15" else None),
        global_batch=count(cells, "global_batch"), micro_batch=1, tp=tp, pp=pp, cp=cp, ep=count(cells, "ep", 1),
        zero=zero, sequence_parallel=cells["seq_parallel"] == "yes",
        flash=cells["attention_impl"].startswith("flash") or cells["framework"].startswith("Megatron-Bridge"),
        wide_gradients=cells["framework"].startswith("Megatron-DeepSpeed") and cells["dtype"].startswith("bf16"),
        release=age_years(cells["framework_version"]),
    )  # fmt: skip


def shapes_of(cells: Mapping[str, str], tp: int) -> list[Shape]:
    """The row's model; one shape per possible number of heads where the row does not say."""
    name = plain(cells["model"])
    if not cells["hidden"]:
        if name not in MODELS:
            raise Unsupported(f"model: no dimensions given and no public configuration known of {cells['model']!r}")
        return [replace(MODELS[name], capped="tokendrop" in cells["model"])]
    hidden = count(cells, "hidden")
    vocab = count(cells, "vocab", VOCABULARY.get(name))
    gated = "llama" in name
    kv_heads = count(cells, "kv_heads", 8) if gated else 0
    layers = count(cells, "layers") if cells["layers"] else layers_of(figure(cells, "params_b"), hidden, vocab)
    heads = [count(cells, "heads")] if cells["heads"] else possible_heads(hidden, tp)
    if not heads:
        raise Unsupported(f"heads is missing, and none of 96 to 256 wide divide hidden {hidden} over tp {tp}")
    share = 0.16 if name.startswith("bert") else 1.0
    return [
        Shape.transformer(layers, hidden, head, count(cells, "ffn", 4 * hidden), vocab, kv_heads=kv_heads, gated=gated,
                          tied=not gated, logit_share=share)
        for head in heads
    ]  # fmt: skip


def layers_of(billions: float, hidden: int, vocab: int) -> int:
    """Layers of a plain transformer of so many parameters."""
    return max(round((billions * 1e9 - vocab * hidden) / (12 * hidden**2)), 1)


def possible_heads(hidden: int, tp: int) -> list[int]:
    """Numbers of heads that divide the model, with heads of 96 to 256; the fewest first."""
    return [hidden // width for width in range(256, 95, -1) if hidden % width == 0 and hidden // width % tp == 0]


def micro_batches_of(cells: Mapping[str, str], base: Job) -> list[int]:
    """The micro-batch, or every power of two that fits the batch and keeps a pipeline busy."""
    if cells["micro_batch"]:
        return [count(cells, "micro_batch")]
    share = base.global_batch // base.dp
    found = [size for size in (1, 2, 4, 8) if share % size == 0 and share // size >= min(2 * base.pp, share)]
    return found or [1]


def virtuals_of(cells: Mapping[str, str], base: Job, layers: int) -> list[int]:
    """Virtual stages per device, or every number that deals out the layers evenly."""
    if cells["vpp"]:
        return [count(cells, "vpp")]
    if "v unknown" not in cells["schedule"]:
        return [1]
    per_stage = layers // base.pp
    return [v for v in (2, 3, 4, 5, 6, 7) if per_stage % v == 0 and v <= per_stage] or [1]


def recomputes_of(cells: Mapping[str, str]) -> list[tuple[str, float]]:
    """What is recomputed, or the usual ways with how usual they are."""
    text = cells["recompute"].partition("(")[0]
    if text in ("none", "selective", "full"):
        return [(text, 1.0)]
    if text:
        raise Unsupported(f"recompute: got {text!r}, expected none, selective or full")
    return [("none", 0.8), ("selective", 0.1), ("full", 0.1)]
