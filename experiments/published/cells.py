"""Cells: the text of one published run, column by column, and the figures that it holds.

Measured columns, and those that say who measured what and when, are never read; `model` is read as the name of a public
configuration, and only where the row gives no dimensions of its own.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping
from pathlib import Path

from experiments.published.spellings import spelled
from strategy.base.errors import InputError

INPUTS = (
    "framework", "framework_version", "gpu", "gpu_mem_gb", "num_gpus", "gpus_per_node", "inter_link",
    "inter_bw_Gbps_per_node", "model", "params_b", "layers", "hidden", "heads", "kv_heads", "ffn", "seq", "vocab",
    "dtype", "dp", "tp", "pp", "vpp", "ep", "cp", "zero_stage", "fsdp_shard", "micro_batch", "global_batch",
    "num_microbatches", "recompute", "seq_parallel", "schedule", "attention_impl",
)  # fmt: skip
"""Columns that a file must have; a prediction depends on these and on `MORE` alone."""
MORE = (
    "arch", "precision_recipe", "etp", "experts", "topk", "moe_ffn", "shared_expert_ffn", "moe_layer_freq", "mla",
    "mtp_layers", "optimizer", "dist_optimizer", "grad_accum_dtype", "mem_rank",
)  # fmt: skip
"""Columns that a file may have; one that it lacks is blank."""
UNREAD = {
    **dict.fromkeys(
        ("iter_time_s", "iter_time_kind", "samples_per_s", "tokens_per_s_per_gpu", "tflops_per_gpu", "tflops_def",
         "mfu_pct", "iter_time_p10_s", "iter_time_p90_s", "mem_gib_per_gpu", "mem_kind", "mem_allocated_peak_gib",
         "mem_reserved_peak_gib", "oom"),
        "measured: what is predicted",
    ),
    **dict.fromkeys(
        ("row_id", "source", "source_path", "source_commit", "table_or_figure", "source_kind", "date", "quality",
         "inferred_fields", "notes"),
        "says who measured what and when, not what ran",
    ),
    "nodes": "num_gpus over gpus_per_node",
    **dict.fromkeys(("intra_link", "intra_bw_GBps_per_gpu_unidir"), "the data sheet of the device has it"),
}  # fmt: skip
"""Columns of the measured rows that no prediction depends on, and why."""
LARGEST = 2**53
"""No figure of a row is larger: whole numbers are exact, and what is computed from them stays finite."""

Cells = Mapping[str, str]


class Unsupported(Exception):
    """A row with a cell that is no figure where there has to be one."""


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


def inputs(row: Cells) -> dict[str, str]:
    """What is read of a row, however it is spelled."""
    return spelled({name: row[name].strip() for name in INPUTS} | {name: row.get(name, "").strip() for name in MORE})


def figure(cells: Cells, column: str, default: float | None = None) -> float:
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


def count(cells: Cells, column: str, default: int | None = None) -> int:
    """A whole number of at least 1."""
    value = figure(cells, column, None if default is None else float(default))
    if value != int(value):
        raise Unsupported(f"{column}: got {cells[column]!r}, expected a whole number")
    return int(value)
