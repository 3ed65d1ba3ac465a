"""All-reduces in the output of nccl-tests (`all_reduce_perf`) and of `all_reduce_bench.py`.

nccl-tests prints `size count type redop root time algbw busbw ...` (bytes, microseconds, GB/s); columns between size
and time may have been removed. all_reduce_bench.py prints `| payload | busbw | algbw |`, where algbw is payload over
time.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from strategy.base.errors import InputError
from strategy.base.units import parse_bytes
from strategy.cost.measurement import LEAST_SAMPLES, Features, Measurement
from strategy.hardware.cluster import Cluster
from strategy.program.program import ActKind

_ROW = re.compile(r"^\s*(\d[\d_,]*)\s+(.+)$", re.MULTILINE)
_BENCH_ROW = re.compile(r"^\|\s*(\d+)([KMGT]iB)\s*\|\s*[\d.]+GBps\s*\|\s*([\d.]+)GBps\s*\|", re.MULTILINE)
_TIME_COLUMN_WHOLE, _TIME_COLUMN_CUT = 4, 0
"""Of the columns after the size: as nccl-tests prints them, and without those between size and time."""
_WHOLE_COLUMNS = 7


@dataclass(frozen=True, slots=True)
class AllReduceTime:
    """One all-reduce: bytes of the buffer of a rank, seconds."""

    nbytes: int
    seconds: float


def read_collective_log(path: Path) -> tuple[AllReduceTime, ...]:
    """The all-reduces of an output.

    Raises:
        InputError: no such file, or no all-reduces in it.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    found = [*_benched(text)] or [*_tested(text)]
    if not found:
        raise InputError("no all-reduces", where=str(path), expected="output of all_reduce_perf or all_reduce_bench.py")
    return tuple(found)


def _benched(text: str) -> list[AllReduceTime]:
    rows = ((parse_bytes(f"{size} {unit}"), float(rate)) for size, unit, rate in _BENCH_ROW.findall(text))
    return [AllReduceTime(nbytes, nbytes / rate / 1e9) for nbytes, rate in rows if rate > 0]


def _tested(text: str) -> list[AllReduceTime]:
    found = []
    for size, rest in _ROW.findall(text):
        columns = rest.split()
        place = _TIME_COLUMN_WHOLE if len(columns) >= _WHOLE_COLUMNS else _TIME_COLUMN_CUT
        try:
            nbytes, microseconds = int(re.sub("[_,]", "", size)), float(columns[place])
        except (ValueError, IndexError):  # another line that begins with a number
            continue
        if nbytes > 0 and microseconds > 0:
            found.append(AllReduceTime(nbytes, microseconds / 1e6))
    return found


def measurements_of(rows: tuple[AllReduceTime, ...], ranks: int, cluster: Cluster, source: str) -> list[Measurement]:
    """The rows as the cost model knows them: by the bytes that a rank sends in a ring.

    Raises:
        InputError: fewer ranks than two, or more than the cluster has.
    """
    if not 2 <= ranks <= cluster.devices:
        expected = f"2 to {cluster.devices}"
        raise InputError("ranks that the cluster does not have", where=source, got=ranks, expected=expected)
    level = "intra" if ranks <= cluster.devices_per_node else "inter"
    return [
        Measurement(
            Features(ActKind.ALL_REDUCE, 0, 2 * row.nbytes * (ranks - 1) // ranks, ranks - 1, level),
            row.seconds,
            LEAST_SAMPLES,
            source,
        )
        for row in rows
    ]
