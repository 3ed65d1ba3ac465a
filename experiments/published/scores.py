"""Scores: how near predictions came to measurements, per family and as means over families.

Conventions: a run without a prediction counts as an error of 100 %; predicted order is judged within groups of runs
that differ only in how they were parallelised, on pairs measured apart by more than the noise; regret is what the run
that was predicted fastest lost to the one that was.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from statistics import mean, median

from experiments.published.predictions import Prediction

NOISE = 0.06
"""The same configuration measured twice differs by up to this."""
_SAME = (
    "source", "framework", "framework_version", "date", "model", "gpu", "num_gpus", "layers", "hidden", "heads",
    "ffn", "seq", "vocab", "dtype", "global_batch", "recompute",
)  # fmt: skip
_CUT = ("tp", "pp", "dp", "vpp", "ep", "cp", "zero_stage", "micro_batch")
_SMALLEST_GROUP = 4


@dataclass(frozen=True, slots=True)
class Score:
    """One family's score; shares are fractions, None where there is nothing to judge.

    `width` and `width_p90` are the median and the 90th percentile of hi / lo - 1; `large_memory_error` is of allocated
    peaks of at least 10 GiB.
    """

    rows: int
    predicted: int
    error: float | None
    error_p90: float | None
    bias: float | None
    covered: float | None
    width: float | None
    width_p90: float | None
    tau: float | None
    regret: float | None
    memory_error: float | None
    large_memory_error: float | None
    out_of_memory: int
    out_of_memory_found: int
    false_alarms: int


def family_of(cells: Mapping[str, str]) -> str:
    """The series of measurements that a row belongs to; functional tests and benchmarks by kind of model."""
    parts = cells["row_id"].split("_")
    arch = cells.get("arch", "").split()
    if parts[0] == "golden":
        return f"golden_{_kind_of_test(cells, arch)}"
    if parts[0] == "mlperf":
        return "mlperf_lora" if "LoRA" in arch else "mlperf_pre"
    if parts[0] == "simumax":
        return "simumax_moe" if cells.get("experts") else "simumax_dense"
    return "_".join(parts[:2]) if parts[0].startswith(("vtrain", "dlperf", "sc21", "mlm")) else parts[0]


def _kind_of_test(cells: Mapping[str, str], arch: Sequence[str]) -> str:
    if arch and arch[0] in ("t5", "bert", "hybrid"):
        return arch[0]
    for column, kind in (("mla", "mla"), ("fsdp_shard", "fsdp"), ("experts", "moe")):
        if cells.get(column):
            return kind
    return "7b" if cells["hidden"] == "4096" else "gpt"


def of_second_set(cells: Mapping[str, str]) -> bool:
    """Whether a row is of the second set of sources, which says whose memory was measured."""
    return "mem_rank" in cells


def measured_seconds(cells: Mapping[str, str]) -> float | None:
    """Measured seconds per step, if any.

    None of quality C in the second set, where something that matters is unpublished or a slow host decided; in the
    first set C says that the precision and the heads of a run are those of the text around it.
    """
    if cells.get("quality") == "C" and of_second_set(cells):
        return None
    return positive(cells.get("iter_time_s", ""))


MEMORY = ("mem_allocated_peak_gib", "mem_reserved_peak_gib", "mem_gib_per_gpu")
"""Columns of measured memory, the surest first: allocated, reserved, what a report says."""


_LARGE_GIB = 10.0


def measured_memory(cells: Mapping[str, str]) -> tuple[str, float] | None:
    """The surest memory that a row reports: its column and GiB."""
    found = ((column, positive(cells.get(column, ""))) for column in MEMORY)
    return next(((column, held) for column, held in found if held is not None), None)


def positive(text: str) -> float | None:
    """A finite figure above zero, or None."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and value > 0 else None


def score(cells: Sequence[Mapping[str, str]], predictions: Sequence[Prediction]) -> dict[str, Score]:
    """Scores by family, of measured rows and their predictions in the same order."""
    families: dict[str, list[tuple[Mapping[str, str], Prediction]]] = defaultdict(list)
    for row, prediction in zip(cells, predictions, strict=True):
        if measured_seconds(row) or row["oom"] == "yes" or measured_memory(row):
            families[family_of(row)].append((row, prediction))
    return {name: _family(pairs) for name, pairs in sorted(families.items())}


def macro(scores: Iterable[Score]) -> dict[str, float]:
    """Means over families of every share, of the families that have it."""
    rows = [asdict(item) for item in scores]
    names = (
        "error", "error_p90", "bias", "covered", "width", "width_p90", "tau", "regret", "memory_error",
        "large_memory_error",
    )  # fmt: skip
    return {
        name: mean(row[name] for row in rows if row[name] is not None)
        for name in names
        if any(row[name] is not None for row in rows)
    }


def _family(pairs: Sequence[tuple[Mapping[str, str], Prediction]]) -> Score:
    over = [p.out_of_memory for row, p in pairs if row["oom"] == "yes"]
    ran = [(row, p, measured_seconds(row)) for row, p in pairs if row["oom"] != "yes"]
    timed = [(row, p, seconds) for row, p, seconds in ran if p.status == "ok" and seconds is not None]
    signed = [p.seconds / seconds - 1 for _, p, seconds in timed]
    wanted = sum(seconds is not None for _, _, seconds in ran)
    errors = [abs(error) for error in signed] + [1.0] * (wanted - len(timed))
    widths = [p.high / p.low - 1 for _, p, _ in timed]
    memory = [
        (found, abs(p.memory(found[0]) / found[1] - 1) if p.status == "ok" else 1.0)
        for row, p, _ in ran
        if (found := measured_memory(row)) is not None
    ]
    large_memory = [error for (column, held), error in memory if column == MEMORY[0] and held >= _LARGE_GIB]
    large = [[(seconds, p.seconds) for _, p, seconds in group] for group in _groups(timed)]
    taus = [tau for tau in map(_tau, large) if tau is not None]
    return Score(
        rows=len(pairs),
        predicted=len(timed),
        error=mean(errors) if errors else None,
        error_p90=_p90(errors) if errors else None,
        bias=mean(signed) if signed else None,
        covered=sum(p.low <= seconds <= p.high for _, p, seconds in timed) / wanted if wanted else None,
        width=median(widths) if timed else None,
        width_p90=_p90(widths) if timed else None,
        tau=mean(taus) if taus else None,
        regret=mean(map(_regret, large)) if large else None,
        memory_error=mean(error for _, error in memory) if memory else None,
        large_memory_error=mean(large_memory) if large_memory else None,
        out_of_memory=len(over),
        out_of_memory_found=sum(over),
        false_alarms=sum(p.out_of_memory for _, p, _ in ran),
    )


def _p90(values: Sequence[float]) -> float:
    return sorted(values)[math.ceil(0.9 * len(values)) - 1]


Timed = tuple[Mapping[str, str], Prediction, float]
"""A run that was measured and predicted: its row, the prediction, measured seconds."""


def _groups(timed: Iterable[Timed]) -> list[list[Timed]]:
    """Runs that differ only in how they were parallelised, where there are enough to choose from."""
    groups: dict[tuple[str, ...], list[Timed]] = defaultdict(list)
    for run in timed:
        groups[tuple(run[0][name] for name in _SAME)].append(run)
    return [group for group in groups.values() if len(group) >= _SMALLEST_GROUP]


@dataclass(frozen=True, slots=True)
class Choice:
    """A published search repeated: of `ways` measured ways to cut a job, the one predicted fastest, and the fastest."""

    family: str
    model: str
    gpus: int
    global_batch: int
    ways: int
    chosen: str
    chosen_s: float
    fastest: str
    fastest_s: float

    @property
    def regret(self) -> float:
        """What the chosen way takes more than the fastest, as a share of it."""
        return self.chosen_s / self.fastest_s - 1


def choices(cells: Sequence[Mapping[str, str]], predictions: Sequence[Prediction]) -> list[Choice]:
    """What would have been chosen in every group of runs, of rows and their predictions in the same order."""
    timed = [
        (row, p, seconds)
        for row, p in zip(cells, predictions, strict=True)
        if p.status == "ok" and row["oom"] != "yes" and (seconds := measured_seconds(row)) is not None
    ]
    found = []
    for group in _groups(timed):
        chosen = min(group, key=lambda run: (run[1].seconds, -run[2]))
        fastest = min(group, key=lambda run: run[2])
        row = chosen[0]
        job = (family_of(row), row["model"], int(row["num_gpus"]), int(row["global_batch"]))
        found.append(Choice(*job, len(group), _way(chosen[0]), chosen[2], _way(fastest[0]), fastest[2]))
    return sorted(found, key=lambda c: (c.family, c.model, c.gpus, c.global_batch, c.ways, c.fastest_s))


def _way(row: Mapping[str, str]) -> str:
    """How a run was cut, in the words of its row; what it leaves open is left out."""
    return " ".join(f"{name} {row[name]}" for name in _CUT if row[name])


def _tau(pairs: Sequence[tuple[float, float]]) -> float | None:
    """Kendall's agreement in order; pairs measured within the noise are left out, predicted ties count nothing."""
    agree = total = 0
    for (a, b), (c, d) in combinations(pairs, 2):
        if abs(a - c) > NOISE * min(a, c):
            total += 1
            agree += ((a - c) * (b - d) > 0) - ((a - c) * (b - d) < 0)
    return agree / total if total else None


def _regret(pairs: Sequence[tuple[float, float]]) -> float:
    chosen = min(predicted for _, predicted in pairs)
    return max(seconds for seconds, predicted in pairs if predicted == chosen) / min(pairs)[0] - 1
