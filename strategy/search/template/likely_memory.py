"""Likely memory: what stages hold of a point, by the counts that proposals are made up with.

Bounds count what is held between two chunks for certain. Here what is read and written while a chunk runs counts, too,
as in `chunks_held`: what is thought to fit by these rows is likely to.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from strategy.bounds.pipeline_parts import parts_at
from strategy.bounds.point import ADDED, AHEAD, HELD, SAVED, SIZE, SUMS, WAITING
from strategy.layout.config import PlanConfig
from strategy.search.template.chunks_held import HELD as COUNTED
from strategy.search.template.chunks_held import chunks_held

IntArray = npt.NDArray[np.int64]
WHERE = {
    "saved_bytes": SAVED,
    "waiting_bytes": WAITING,
    "deferred_bytes": ADDED,
    "sum_bytes": SUMS,
    "summed_bytes": SUMS,
    "ahead_bytes": AHEAD,
}
"""Where a point has the bytes that `chunks_held` counts."""


def likely_rows(config: PlanConfig, layers: int) -> IntArray:
    """(rows, SIZE): what the first stage, the last but one and the last hold at one time or another; not to be changed.

    And where layers are not dealt out evenly, the first stage that has the most of them.

    Args:
        config: whose schedule.
        layers: of the model.
    """
    return _known_rows(config.pipeline, layers)


@lru_cache(maxsize=1 << 13)
def _known_rows(config: PlanConfig, layers: int) -> IntArray:
    found: list[IntArray] = []
    parts = parts_at(config, layers)
    most = int(parts.sum((1, 2)).argmax())
    for stage in dict.fromkeys((0, most, max(config.pp - 2, 0), config.pp - 1)):
        where = parts[stage]
        held = chunks_held(config.schedule, config.pp, stage, config.num_micro_batches, config.virtual_stages)
        for moment in held:
            row = np.zeros(SIZE, np.int64)
            row[HELD] = where.sum(0)
            for name, counts in zip(COUNTED, moment, strict=True):
                if name in WHERE:
                    row[WHERE[name]] = np.maximum(row[WHERE[name]], counts @ where)
            found.append(row)
    rows = np.unique(np.array(found), axis=0)
    kept = [not (np.delete(rows, i, 0) >= row).all(1).any() for i, row in enumerate(rows)]
    rows = rows[kept]
    rows.flags.writeable = False
    return rows
