"""Priced configurations: published configurations of trainers whose run was published too, priced without that run.

A configuration and a measured run are of one job if all that both say of it is the same: trainer, model, sequence,
batch, micro-batch, degrees and the width of products. Of Megatron's functional tests, whose rows say less, a run is of
the configuration that lies in the same folder of the same repository. The file is read and priced as `sbplan price`
does it, on the GPUs of the run, by constants fitted without the run's group. Beside that, every run is priced as its
row describes it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path, PurePosixPath
from statistics import mean

from experiments.published.predictions import Prediction
from experiments.published.rows import Row
from experiments.published.scores import measured_seconds
from strategy.base.errors import InputError
from strategy.closed_form.calibration import FittedConstants
from strategy.closed_form.job import Job
from strategy.trainers.priced import PricedMachine, priced
from strategy.trainers.read import read_configuration
from strategy.trainers.trained import TrainedModel, job_of

_ONE = {"megatron-core-tested": "megatron-core"}
"""Framework of runs -> that of which it is a way to run."""


@dataclass(frozen=True, slots=True)
class PricedRun:
    """A measured run, and its price by a fit that has not seen its group, with a 90 % interval.

    `configuration` is the file that was priced, or nothing where the run's row was.
    """

    row_id: str
    framework: str
    gpu: str
    gpus: int
    configuration: str
    measured_s: float
    priced_s: float
    low_s: float
    high_s: float

    @property
    def error(self) -> float:
        """Of the price, as a share of what was measured."""
        return self.priced_s / self.measured_s - 1


@dataclass(frozen=True, slots=True)
class PriceError:
    """Prices of runs of one trainer on one cluster; `configurations` are the files among them."""

    framework: str
    gpu: str
    gpus: int
    runs: int
    configurations: int
    error: float
    bias: float
    covered: float


@dataclass(frozen=True, slots=True)
class ShippedConfiguration:
    """What a configuration says, and the repository and folder that it is from."""

    read: TrainedModel
    origin: tuple[str, str]


def read_shipped() -> dict[str, ShippedConfiguration]:
    """Folder and name -> the configuration, of all that say what is trained."""
    root = Path(str(resources.files("experiments") / "reference" / "trainer_configs"))
    with (root / "index.csv").open(newline="", encoding="utf-8") as file:
        origins = {
            f"{row['trainer']}/{row['name']}": _origin(row["source_repo"], row["path"]) for row in csv.DictReader(file)
        }
    found = {}
    for path in sorted(root.glob("*/*")):
        if path.with_name(f"{path.stem}__args.sh").exists():
            continue  # the arguments name the JSON and are read with it
        name = f"{path.parent.name}/{path.name}"
        try:
            found[name] = ShippedConfiguration(read_configuration(path).trained, origins.get(name, ("", "")))
        except InputError:
            continue
    return found


def _origin(repository: str, path: str) -> tuple[str, str]:
    return repository, str(PurePosixPath(path).parent)


def priced_rows(rows: Sequence[Row], predicted: Sequence[Prediction]) -> Iterator[PricedRun]:
    """Every run that was measured and predicted, as its row describes it."""
    for row, found in zip(rows, predicted, strict=True):
        measured_s = measured_seconds(row.cells)
        if measured_s is not None and found.status == "ok":
            job = row.candidates[0].job
            yield _run(row, job, "", measured_s, (found.seconds, found.low, found.high))


def priced_configurations(
    rows: Sequence[Row], fitted: Sequence[FittedConstants], shipped: Mapping[str, ShippedConfiguration]
) -> Iterator[PricedRun]:
    """Every pair of a configuration and a run of it; `fitted` has for every row the constants without its group."""
    for row, constants in zip(rows, fitted, strict=True):
        measured_s = measured_seconds(row.cells)
        if measured_s is None or row.cells["oom"] == "yes":
            continue
        for name, known in shipped.items():
            job = next((one.job for one in row.candidates if _is_run_of(row, one.job, known)), None)
            if job is None:
                continue
            sheet = replace(job.device, nic_bytes_per_s=job.nic_bytes_per_s)
            machine = PricedMachine(sheet, job.gpus, job.gpus_per_node, job.fabric)
            price = priced(known.read, machine, constants)
            yield _run(row, job, name, measured_s, (price.step_time_s, price.lo_s, price.hi_s))


def _is_run_of(row: Row, job: Job, known: ShippedConfiguration) -> bool:
    if job.framework in _ONE:
        return _origin(row.cells["source"], row.cells["source_path"]) == known.origin
    return is_of(known.read, job)


def is_of(read: TrainedModel, job: Job) -> bool:
    """Whether a job is what a configuration says, on so many GPUs as the job has."""
    if any(getattr(read, name) != getattr(job, name) for name in ("tp", "pp", "cp", "ep", "micro_batch")):
        return False  # nearly all pairs, of which no job need be made
    try:
        own = job_of(read, job.device, job.gpus, job.gpus_per_node, job.fabric)
    except InputError:
        return False
    return _identity(own) == _identity(job)


def _identity(job: Job) -> tuple[object, ...]:
    shape = job.shape
    return (
        _ONE.get(job.framework, job.framework), shape.layers, shape.hidden, shape.heads, shape.ffn, shape.experts,
        shape.expert_ffn, job.seq, job.global_batch, job.micro_batch, job.tp, job.pp, job.cp, job.ep, job.virtual,
        job.bits, job.frozen,
    )  # fmt: skip


def _run(row: Row, job: Job, name: str, measured_s: float, price: tuple[float, float, float]) -> PricedRun:
    framework = _ONE.get(job.framework, job.framework)
    return PricedRun(row.cells["row_id"], framework, job.device.name, job.gpus, name, measured_s, *price)


def by_cluster(runs: Sequence[PricedRun]) -> list[PriceError]:
    """Errors by trainer, GPU and number of GPUs."""
    groups: dict[tuple[str, str, int], list[PricedRun]] = {}
    for run in runs:
        groups.setdefault((run.framework, run.gpu, run.gpus), []).append(run)
    return [
        PriceError(
            *key,
            runs=len({run.row_id for run in mine}),
            configurations=len({run.configuration for run in mine} - {""}),
            error=mean(abs(run.error) for run in mine),
            bias=mean(run.error for run in mine),
            covered=mean(run.low_s <= run.measured_s <= run.high_s for run in mine),
        )
        for key, mine in sorted(groups.items())
    ]


def as_table(errors: Sequence[PriceError], *, of_files: bool) -> str:
    """A line per trainer and cluster, and the mean over them."""
    lines = [f"{'trainer':<22}{'GPUs':>18}{'runs':>7}{'files':>7}{'error':>9}{'bias':>9}{'covered':>9}"]
    for one in errors:
        where, files = f"{one.gpus} {one.gpu}", str(one.configurations) if of_files else ""
        figures = f"{100 * one.error:>7.1f} %{100 * one.bias:>+7.1f} %{100 * one.covered:>7.0f} %"
        lines.append(f"{one.framework:<22}{where:>18}{one.runs:>7}{files:>7}{figures}")
    if errors:
        runs = sum(one.runs for one in errors)
        means = [mean(getattr(one, name) for one in errors) for name in ("error", "bias", "covered")]
        figures = f"{100 * means[0]:>7.1f} %{100 * means[1]:>+7.1f} %{100 * means[2]:>7.0f} %"
        lines.append(f"{'mean over lines':<22}{'':>18}{runs:>7}{'':>7}{figures}")
    return "\n".join(lines)
