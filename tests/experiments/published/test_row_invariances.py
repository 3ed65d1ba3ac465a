"""Invariances of rows: open rows, changed at random, and what must follow when one thing more is changed; with quotas.

`test_invariances.py` of the closed form draws jobs; here the columns of a row say what is changed, so that what is read
out of them, filled in and averaged over is under test too.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from experiments.published.cells import MORE, Unsupported, inputs, read_cells
from experiments.published.fitting import TRAINING, reference
from experiments.published.predictions import Prediction, predict
from experiments.published.rows import Row, candidates
from experiments.published.scores import family_of
from strategy.base.errors import InputError
from strategy.closed_form.calibration import shipped
from strategy.closed_form.job import Job, Jobs
from strategy.closed_form.price import Pricing
from tests.support.long_parameters import long_but

Cells = dict[str, str]
Change = Callable[[Cells, Job], Cells | None]
"""A row and its job -> the row with one thing changed, or None where that has no sense."""

DRAWN = {1: 700, 2: 900}
"""Rows by seed."""
OF_A_FAMILY = 90
"""Rows of one family, at most: 720 of one would be most of what is drawn."""
CASES, FAMILIES = 40, 3
"""Pairs, and families that they are from, at least."""
EXACT = 1 + 1e-9
HOST = 0.1
"""The device is the limit where the host adds less than this share of what it computes."""
TOKENS, WIDTH = 2048, 1024
"""Products are large from so many tokens and so much of the model's width on a device on; twice it for 8 bits.

Smaller ones last as long as a launch, and casts move more than they save. Of adapters the tokens alone count: where a
model is narrow, they cost no more than they save.
"""


def drawn(seed: int) -> list[Cells]:
    """Open rows with depth, length, batch and device changed at random."""
    rng = random.Random(seed)
    rows = [dict.fromkeys(MORE, "") | row for name in TRAINING for row in read_cells(reference(name))]
    rng.shuffle(rows)
    taken: Counter[str] = Counter()
    found: list[Cells] = []
    for row in rows:
        family = family_of(row)
        if len(found) == DRAWN[seed] or taken[family] == OF_A_FAMILY:
            continue
        taken[family] += 1
        times = {name: rng.choice((1, 1, 2)) for name in ("layers", "seq", "global_batch")}
        if row["arch"].startswith("hybrid") or row["mtp_layers"]:
            times["layers"] = 1  # its pattern says how many it has
        more = {name: str(int(row[name]) * by) for name, by in times.items() if row[name].isdecimal()}
        gpu = rng.choice((row["gpu"], row["gpu"], "H100", "B200", "GB200"))
        found.append(row | more | {"gpu": gpu, "gpu_mem_gb": row["gpu_mem_gb"] if gpu == row["gpu"] else ""})
    return found


def read(rows: list[Cells]) -> list[Row]:
    found = []
    for number, cells in enumerate(rows):
        try:
            found.append(Row(number, cells | {"row_id": f"{cells['row_id']} {number}"}, candidates(inputs(cells))))
        except (Unsupported, InputError) as why:
            found.append(Row(number, cells, (), str(why)))
    return found


def late(rows: list[Row]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """What the host adds over what the blocks compute, of the first job of each row."""
    constants = shipped().constants
    pricing = Pricing(Jobs.of([row.candidates[0].job for row in rows]), constants)
    causes = pricing.causes(constants)
    return np.asarray(causes.other["host"] / causes.compute["blocks"])


@pytest.fixture(scope="module", params=long_but((1, 2), 0))
def rows(request: pytest.FixtureRequest) -> list[Row]:
    return [row for row in read(drawn(request.param)) if row.candidates]


def pairs(
    rows: list[Row], change: Change, *, device_bound: bool = False
) -> tuple[list[Row], list[Prediction], list[Prediction]]:
    """Rows, their predictions, and those of the changed rows: of all pairs that can be predicted, which are counted."""
    changed = [change(dict(row.cells), row.candidates[0].job) for row in rows]
    both = [(row, cells) for row, cells in zip(rows, changed, strict=True) if cells is not None]
    others = read([cells for _, cells in both])
    kept = [(row, other) for (row, _), other in zip(both, others, strict=True) if other.candidates]
    if device_bound:
        hosts = zip(*(late([pair[side] for pair in kept]) for side in (0, 1)), strict=True)
        kept = [pair for pair, host in zip(kept, hosts, strict=True) if max(host) < HOST]
    before, after = ([pair[side] for pair in kept] for side in (0, 1))
    families = Counter(family_of(row.cells) for row in before)
    print(f"{len(kept)} pairs of {len(rows)} rows: {dict(families)}")
    assert len(kept) >= CASES
    assert len(families) >= FAMILIES
    return before, predict(before, shipped()), predict(after, shipped())


def check(rows: list[Row], ratios: list[float], most: float) -> None:
    worst = int(np.argmax(ratios))
    assert ratios[worst] <= most, {name: cell for name, cell in rows[worst].cells.items() if cell}


def large(job: Job, times: int = 1) -> bool:
    return job.shape.hidden / job.tp >= times * WIDTH and job.micro_batch * job.seq / job.cp >= TOKENS


def adapted(cells: Cells, job: Job) -> Cells | None:
    if job.frozen or job.micro_batch * job.seq / job.cp < TOKENS:
        return None
    return cells | {"arch": f"{cells['arch'] or 'gpt'} LoRA rank 16"}


def eight_bits(recipe: str) -> Change:
    def change(cells: Cells, job: Job) -> Cells | None:
        if job.bits != 16 or job.device.eight <= job.device.half or not large(job, 2):
            return None
        return cells | {"dtype": "fp8", "precision_recipe": recipe}

    return change


def more_experts(times: int) -> Change:
    def change(cells: Cells, _: Job) -> Cells | None:
        return cells | {"experts": str(int(cells["experts"]) * times)} if cells["experts"] else None

    return change


def more_replicas(cells: Cells, job: Job) -> Cells | None:
    """Twice the replicas share the same batch, where each has a sequence at least; the cut is stated."""
    if not cells["num_gpus"] or not cells["global_batch"] or job.global_batch < 2 * job.dp:
        return None
    if not (cells["tp"] or cells["pp"]):
        return None
    return cells | {"num_gpus": str(2 * job.gpus), "dp": str(2 * job.dp)}


@pytest.mark.long
def test_adapters_are_never_slower_than_training_everything(rows: list[Row]) -> None:
    kept, full, less = pairs(rows, adapted, device_bound=True)
    check(kept, [b.seconds / a.seconds for a, b in zip(full, less, strict=True)], EXACT)


@pytest.mark.parametrize("recipe", long_but(["fp8", "mxfp8"], 0))
def test_eight_bits_are_never_slower_than_sixteen(rows: list[Row], recipe: str) -> None:
    kept, half, eight = pairs(rows, eight_bits(recipe), device_bound=True)
    check(kept, [b.seconds / a.seconds for a, b in zip(half, eight, strict=True)], EXACT)


@pytest.mark.parametrize("times", [2, 4])
def test_more_experts_at_equal_active_parameters_are_never_faster(rows: list[Row], times: int) -> None:
    kept, few, many = pairs(rows, more_experts(times))
    check(kept, [a.seconds / b.seconds for a, b in zip(few, many, strict=True)], EXACT)


def test_twice_the_replicas_at_a_fixed_batch_never_hold_more(rows: list[Row]) -> None:
    kept, few, many = pairs(rows, more_replicas)
    check(kept, [b.allocated_gib / a.allocated_gib for a, b in zip(few, many, strict=True)], EXACT)


@pytest.mark.long
def test_more_work_is_never_faster(rows: list[Row]) -> None:
    """Twice the layers, or twice the positions."""

    def twice(name: str) -> Change:
        def change(cells: Cells, _: Job) -> Cells | None:
            fixed = name == "layers" and (cells["arch"].startswith("hybrid") or cells["mtp_layers"])
            return cells | {name: str(2 * int(cells[name]))} if cells[name].isdecimal() and not fixed else None

        return change

    for name in ("layers", "seq"):
        kept, less, more = pairs(rows, twice(name))
        check(kept, [a.seconds / b.seconds for a, b in zip(less, more, strict=True)], EXACT)
