"""Fitting: the constants of the closed-form models from the open published measurements.

Microbenchmarks first: collectives from all-reduces of known size, then held. After that the time of steps, and memory.
Every family of runs has nearly the same say, whether it has one row or 720; runs are predicted as the mean over what
they may have been, as `sbplan predict` does.
"""

from __future__ import annotations

import csv
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
import numpy.typing as npt

from experiments.published.predictions import RESERVED, Mixture
from experiments.published.rows import Row, read_rows
from experiments.published.scores import MEMORY, family_of, measured_memory, measured_seconds
from strategy.closed_form import collectives, memory
from strategy.closed_form.calibration import TIME
from strategy.closed_form.collectives import Group
from strategy.closed_form.constants import Constant, Constants
from strategy.closed_form.fit import Fit, fit
from strategy.closed_form.job import Jobs
from strategy.closed_form.price import Pricing
from strategy.closed_form.products import Floats
from strategy.hardware.devices import DEVICES, GIB, DeviceSheet

Mask = npt.NDArray[np.bool_]
_SHARE = 6.0
_MORE = 0.3
"""A family of n rows weighs `_SHARE` x n ** `_MORE` rows: 720 count as 43, one as 6."""
_MIB = 2**20
_REMEMBERED = 256
"""Answers of `RunSeconds`: a step of a fit asks for about 35, and a fit takes a few."""
_VIEWS = 3
_MUCH = 1.1
"""By how much a constant is moved to see which runs it has a say in."""
_COLLECTIVE_GPUS = (
    ("A100-40GB", "A100-40"), ("A100", "A100-80"), ("V100-32GB", "V100-32"), ("V100", "V100-16"), ("B200", "B200"),
)  # fmt: skip


TRAINING = ("published/training_measurements.csv", "published2/training_measurements.csv")
"""Training runs that constants are fitted to: the first set of sources, and the second."""
COLLECTIVES = "published/collective_measurements.csv"


def reference(name: str) -> Path:
    """A file of published measurements that comes with the package."""
    return Path(str(resources.files("experiments") / "reference" / name))


@dataclass(frozen=True, slots=True)
class AllReduces:
    """Measured all-reduces: bytes, seconds, and the groups; `setups` names GPU and number of ranks of each."""

    nbytes: Floats
    seconds: Floats
    group: Group
    setups: tuple[str, ...]


def read_all_reduces(path: Path) -> AllReduces:
    """All-reduces of at least 1 MiB with a measured time, on GPUs that have a data sheet."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = [row for row in csv.DictReader(file) if row["size_bytes"] and row["time_us"]]
    found = [(row, sheet) for row in rows if int(row["size_bytes"]) >= _MIB and (sheet := _sheet(row["gpu"]))]
    ranks = np.array([float(row["gpus"]) for row, _ in found])
    group = Group(
        ranks=ranks,
        local=np.minimum([float(row["gpus_per_node"]) for row, _ in found], ranks),
        link=np.array([sheet.link_bytes_per_s for _, sheet in found]),
        nic=np.array([sheet.nic_bytes_per_s for _, sheet in found]),
        family=np.array([collectives.family_of(sheet) for _, sheet in found], dtype=np.intp),
        switched=np.array([sheet.switched for _, sheet in found]),
        efa=np.array([row["inter_link"].startswith("EFA") for row, _ in found]),
    )
    return AllReduces(
        np.array([float(row["size_bytes"]) for row, _ in found]),
        np.array([float(row["time_us"]) * 1e-6 for row, _ in found]),
        group,
        tuple(f"{row['gpu']} x {row['gpus']}" for row, _ in found),
    )


def _sheet(gpu: str) -> DeviceSheet | None:
    return next((DEVICES[name] for start, name in _COLLECTIVE_GPUS if gpu.startswith(start)), None)


def fit_collectives(measured: AllReduces) -> Fit:
    """Constants of collectives; every setup has the same say, and so have small and large messages within it."""
    weights = 1 / np.sqrt(measured.nbytes)
    for setup in set(measured.setups):
        mine = np.array([setup == other for other in measured.setups])
        weights[mine] *= 40 / weights[mine].sum()
    return fit(
        lambda c: collectives.all_reduce(measured.nbytes, measured.group, c), measured.seconds, weights,
        collectives.CONSTANTS,
    )  # fmt: skip


class RunSeconds:
    """Seconds of all runs by constants, each run the mean over what it may have been.

    The last answers are remembered: fits without some of the runs begin at the same constants, and feel their way from
    there by the same small steps.
    """

    def __init__(self, mixture: Mixture, pricing: Pricing) -> None:
        self.mixture = mixture
        self.pricing = pricing
        self._known: OrderedDict[tuple[float, ...], Floats] = OrderedDict()
        self._touched: Mask | None = None

    def __call__(self, constants: Constants) -> Floats:
        """Seconds of every run; not to be written to."""
        key = tuple(constants[name] for name in sorted(constants))
        if key not in self._known:
            found = self.mixture.mean(self.pricing.seconds(constants))
            found.flags.writeable = False
            self._known[key] = found
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]

    def touched(self, declared: Sequence[Constant]) -> Mask:
        """Which constants (rows) move which runs (columns), seen around their priors and from a few points near."""
        if self._touched is None:
            rng = np.random.default_rng(0)
            widths = np.array([constant.spread for constant in declared])
            priors = np.array([constant.prior for constant in declared])
            shifts = (np.zeros(len(widths)), *(rng.uniform(-2, 2, len(widths)) for _ in range(_VIEWS)))
            self._touched = np.any([self._moved(declared, priors * np.exp(widths * by)) for by in shifts], axis=0)
        return self._touched

    def _moved(self, declared: Sequence[Constant], values: Floats) -> Mask:
        names = [constant.name for constant in declared]
        here = dict(zip(names, values.tolist(), strict=True))
        base = self(here)
        return np.array([self(here | {name: value * _MUCH}) != base for name, value in here.items()])


@dataclass(frozen=True, slots=True)
class Runs:
    """Measured runs that can be predicted, ready to be fitted to; `memory_of` names the column of `memory_gib`."""

    rows: tuple[Row, ...]
    priced: RunSeconds
    seconds: Floats
    memory_gib: Floats
    memory_of: tuple[str, ...]
    families: tuple[str, ...]
    weights: Floats

    @property
    def timed(self) -> Mask:
        """Runs whose time was measured, and of which nothing had to be guessed."""
        known = np.array([not row.candidates[0].job.guessed for row in self.rows])
        return np.asarray(np.isfinite(self.seconds) & known, dtype=bool)

    def family(self, name: str) -> Mask:
        """Runs of a family."""
        return np.array([name == other for other in self.families])


def read_runs(rows: Sequence[Row], links: Constants) -> Runs:
    """The runs among rows that can be predicted; `links` are the constants of collectives."""
    rows = [row for row in rows if row.candidates]
    families = tuple(family_of(row.cells) for row in rows)
    memory = [measured_memory(row.cells) or ("", np.nan) for row in rows]
    known = (not row.candidates[0].job.guessed or measured_seconds(row.cells) is None for row in rows)
    sizes = Counter(name for name, counted in zip(families, known, strict=True) if counted)
    return Runs(
        rows=tuple(rows),
        priced=RunSeconds(Mixture.of(rows), Pricing(jobs_of(rows), links)),
        seconds=np.array([measured_seconds(row.cells) or np.nan for row in rows]),
        memory_gib=np.array([held for _, held in memory]),
        memory_of=tuple(column for column, _ in memory),
        families=families,
        weights=np.array([_SHARE * max(sizes[name], 1) ** (_MORE - 1) for name in families]),
    )


def jobs_of(rows: Sequence[Row]) -> Jobs:
    """All that rows may have been, in the order of their `Mixture`."""
    return Jobs.of([candidate.job for row in rows for candidate in row.candidates])


def measured_rows() -> list[Row]:
    """The rows of both sets of training runs."""
    return [row for name in TRAINING for row in read_rows(reference(name))]


def fit_time(runs: Runs, mask: Mask, start: Constants | None = None, declared: Sequence[Constant] = TIME) -> Fit:
    """Constants of step time from the runs of a mask; a start near the answer saves rounds."""
    mask = mask & runs.timed

    def model(constants: Constants) -> Floats:
        return runs.priced(constants)[mask]

    rounds = 30 if start is None else 15
    touched = runs.priced.touched(declared)[:, mask]
    return fit(model, runs.seconds[mask], runs.weights[mask], declared, start=start, rounds=rounds, touched=touched)


def fit_memory(runs: Runs, mask: Mask) -> Fit:
    """Constants of memory from the runs of a mask that report it; families have equal say."""
    reporting = np.flatnonzero(mask & np.isfinite(runs.memory_gib))
    rows = [runs.rows[run] for run in reporting]
    families = [runs.families[run] for run in reporting]
    mixture, jobs = Mixture.of(rows), jobs_of(rows)
    work = runs.priced.pricing.work.of(np.isin(runs.priced.mixture.owner, reporting))
    reserved = np.array([row.candidates[0].job.framework in RESERVED for row in rows])
    allocated = np.array([runs.memory_of[run] == MEMORY[0] for run in reporting])
    sizes = Counter(families)
    weights = np.array([30 / sizes[name] for name in families])

    def model(constants: Constants) -> Floats:
        held = memory.footprint(jobs, work, constants)
        seen = np.where(reserved, mixture.mean(held.reserved), mixture.mean(held.driver))
        seen = np.where(allocated, mixture.mean(held.allocated), seen)
        return np.asarray(seen / GIB, dtype=float)

    return fit(model, runs.memory_gib[reporting], weights, memory.CONSTANTS)


def open_rows() -> Sequence[str]:
    """Names of the shipped files that constants are fitted to."""
    return (*TRAINING, COLLECTIVES)
