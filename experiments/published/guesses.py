"""Guesses: how far predictions move where a row lacks what nearly every measured run says.

What a row leaves blank as those of its kind do (micro-batch, heads, recompute of Megatron-Core's) is in the errors of
held-out runs already. What they all say is taken away here, column by column, from every measured run: nine in ten
predictions move by less than what a guess is said to cost. Sources have the same say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from experiments.published.cells import Unsupported, inputs
from experiments.published.predictions import predict
from experiments.published.rows import Row, candidates
from experiments.published.scores import measured_seconds
from strategy.closed_form.calibration import FittedConstants
from strategy.closed_form.interval import weighted_quantile

_MODEL = ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "arch", "experts", "topk", "moe_ffn",
          "shared_expert_ffn", "moe_layer_freq", "mla", "mtp_layers", "model")  # fmt: skip
TAKEN: Mapping[str, tuple[str, ...]] = {
    "gpu": ("gpu",),
    "framework": ("framework", "framework_version"),
    "dtype": ("dtype", "precision_recipe"),
    "recompute": ("recompute",),
    "seq": ("seq",),
    "num_gpus": ("num_gpus", "dp"),
    "global_batch": ("global_batch", "num_microbatches"),
    "cut": ("tp", "pp", "cp", "dp", "vpp", "zero_stage", "micro_batch"),
    "arch": ("arch",),
    "layers": ("layers", "params_b"),
    "hidden": tuple(name for name in _MODEL if name != "arch"),
    "model": (*_MODEL, "params_b"),
}
"""What a job is said to be guessed of, and the columns that are emptied to see what that costs."""

_OF_A_SOURCE = 40
"""Runs of one source that are looked at: 720 of one say no more, and take most of the time."""


def guess_costs(rows: Sequence[Row], sources: Sequence[str], fitted: FittedConstants) -> dict[str, float]:
    """Name of a guess -> the 90 % quantile of |log(predicted without / predicted with)| over measured runs."""
    timed = _sample(rows, sources)
    whole = {row.cells["row_id"]: one.seconds for (row, _), one in
             zip(timed, predict([row for row, _ in timed], fitted), strict=True)}  # fmt: skip
    costs = {}
    for name, columns in TAKEN.items():
        less = [(found, source) for row, source in timed if (found := _without(row, name, columns)) is not None]
        if not less:
            continue
        sizes = Counter(source for _, source in less)
        moved = [abs(np.log(one.seconds / whole[one.row_id])) for one in predict([row for row, _ in less], fitted)]
        weights = np.array([1 / sizes[source] for _, source in less])
        costs[name] = weighted_quantile(np.array(moved), weights)
    return costs


def _sample(rows: Sequence[Row], sources: Sequence[str]) -> list[tuple[Row, str]]:
    """Timed runs and their sources, of every source as many as are enough, evenly over its file."""
    of_source: dict[str, list[Row]] = {}
    for row, source in zip(rows, sources, strict=True):
        if row.candidates and measured_seconds(row.cells) is not None:
            of_source.setdefault(source, []).append(row)
    return [
        (mine[place], source)
        for source, mine in sorted(of_source.items())
        for place in sorted({number * len(mine) // _OF_A_SOURCE for number in range(_OF_A_SOURCE)})
    ]


def _without(row: Row, name: str, columns: Sequence[str]) -> Row | None:
    """A row with columns emptied, where that makes a guess of one that was none."""
    if name in row.candidates[0].job.guessed:
        return None
    cells = {**row.cells, **{column: "" for column in columns if column in row.cells}}
    try:
        found = candidates(inputs(cells))
    except Unsupported:
        return None
    return Row(row.number, cells, found) if name in found[0].job.guessed else None
