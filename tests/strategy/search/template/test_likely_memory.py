"""Likely memory: no less than what proposals are counted to hold of the same bytes, and not much more."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np

from strategy.bounds.pipeline_parts import parts_at
from strategy.bounds.point import ADDED, AHEAD, HELD, PARTS, SAVED, SIZE, SUMS, WAITING
from strategy.layout.config import PlanConfig
from strategy.layout.layout import layer_runs
from strategy.layout.schedule import Schedule, schedule_problem
from strategy.search.template.likely_memory import likely_rows
from strategy.search.template.parts import LayerPart
from strategy.search.template.stages import peak_bytes

CASES = 300
OF = {
    "behind_bytes": HELD,
    "ahead_bytes": AHEAD,
    "sum_bytes": SUMS,
    "saved_bytes": SAVED,
    "waiting_bytes": WAITING,
    "deferred_bytes": ADDED,
}


def test_what_is_likely_is_what_proposals_hold() -> None:
    draw, covered, alike, uneven = random.Random(5), Counter[str](), 0, 0
    while covered.total() < CASES:
        pp, m, layers = draw.choice((1, 2, 4, 8)), draw.choice((1, 2, 4, 8, 16)), draw.randint(3, 40)
        schedule = draw.choice(list(Schedule))
        laps = draw.choice((2, 3, 4)) if schedule is Schedule.INTERLEAVED else schedule.default_laps
        if schedule_problem(schedule, pp, laps, m) is not None or layers < max(PARTS, pp * laps):
            continue
        runs = layer_runs(layers, schedule, pp, laps)
        if pp * laps > 2 and draw.random() < 0.5:  # fewer at the first place
            runs = (1, runs[1] + runs[0] - 1, *runs[2:])
        config = PlanConfig(2, 1, pp, 1, m, schedule, virtual_stages=laps, runs=runs)
        parts = [LayerPart(**{name: draw.choice((0, draw.randint(0, 10**9))) for name in OF}) for _ in range(PARTS)]
        point = np.zeros(SIZE)
        for name, where in OF.items():
            point[where] = [getattr(part, name) for part in parts]
        where = parts_at(config, layers)
        stages = dict.fromkeys((0, int(where.sum((1, 2)).argmax()), max(pp - 2, 0), pp - 1))
        held = max(peak_bytes(parts, config, stage, where[stage]) for stage in stages)
        likely = float((likely_rows(config, layers) @ point).max())
        assert held <= likely * (1 + 1e-9), (config, layers)
        alike += likely <= 1.05 * held
        covered[str(schedule)] += 1
        uneven += where.sum((1, 2)).argmax() > 0
    assert len(covered) == len(Schedule), covered
    assert uneven > 0.2 * CASES, uneven
    assert alike > 0.8 * CASES, alike
