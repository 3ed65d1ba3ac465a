"""What no pass and no message has more of in a step that takes less than a bound: of random pipelines, none has."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np

from strategy.bounds.crossings import FAR_KIND, NEAR_KIND, UNCOUNTED, Crossings, kinds_of_places
from strategy.bounds.inequality import Inequality
from strategy.bounds.linear_step import longest_path, memory_rows
from strategy.bounds.multipliers import (
    MOST_NS,
    PRICE_BITS,
    ROW_BITS,
    Multipliers,
    Path,
    PricedForms,
    _least_of_way,
    _most_ns,
    _most_of_messages_ns,
    proved_ns,
    tempered,
)
from strategy.bounds.pipeline_parts import stage_times
from strategy.bounds.point import MESSAGES, PARTS, PASSES, SIZE, TIMES
from strategy.bounds.tied import TiedMessages
from strategy.layout.config import PlanConfig
from strategy.layout.schedule import Schedule, schedule_problem
from strategy.layout.step_times import TICKS, Overlap, step_ns

CASES = 400


def test_no_pass_takes_more_than_its_step_leaves_it() -> None:
    draw, covered, tight, near = random.Random(3), Counter[str](), Counter[int](), 0
    tied = 0
    while covered.total() < CASES:
        pp, m, layers = draw.choice((1, 2, 3, 4)), draw.choice((1, 2, 3, 4, 8, 12)), draw.randint(3, 24)
        schedule = draw.choice(list(Schedule))
        laps = draw.choice((2, 3, 5)) if schedule is Schedule.INTERLEAVED else schedule.default_laps
        if schedule_problem(schedule, pp, laps, m) is not None or layers < max(PARTS, pp * laps):
            continue
        config = PlanConfig(2, 1, pp, 1, m, schedule, virtual_stages=laps)
        many = draw.choice(PASSES)  # one that outweighs the others in some cases
        times = {
            name: np.array([draw.choice((0, 1, draw.randint(0, 10**6))) * (1000 if name == many else 1) for _ in "abc"])
            for name in PASSES
        }
        overlap = Overlap(allowed=draw.random() < 0.7, slowed_ticks=draw.choice((0, TICKS // 5)))
        onward, back = ([draw.choice((NEAR_KIND, FAR_KIND, UNCOUNTED)) for _ in range(pp)] for _ in range(2))
        crossings = Crossings(None, tuple(onward), tuple(back))
        sizes = (99, draw.choice((99, 10**11)))
        messages = np.array([draw.randint(0, draw.choice(sizes)) for _ in range(MESSAGES.stop - MESSAGES.start)])
        of_pairs = np.array([messages[:2], messages[2:4], [0, 0]])[kinds_of_places(config, crossings)]
        stages = stage_times(config, layers, times, (of_pairs[:, 0], of_pairs[:, 1]), overlap)
        step = step_ns(schedule, m, TiedMessages(*messages[4:].tolist()).beside(stages, config))
        most = _most_ns(config, layers, step, overlap)
        of_messages = _most_of_messages_ns(config, layers, step, overlap, crossings)
        counts = of_messages < MOST_NS
        assert (messages <= of_messages)[counts].all(), (config, layers, times, messages)
        near += (messages > of_messages / 2)[counts].any()
        tied += bool(counts[4:].any())
        taken = np.concatenate([times[name] for name in PASSES])
        assert most.shape == taken.shape == (TIMES.stop,)
        assert (taken <= most).all(), (config, layers, times)
        covered[str(schedule)] += 1
        tight[len(np.flatnonzero(taken > most / 2))] += 1
    assert len(covered) == len(Schedule), covered
    assert min(near, tied) > CASES / 20, (near, tied)
    assert sum(count for often, count in tight.items() if often) > CASES / 10, tight


def test_without_three_layers_nothing_is_known() -> None:
    config = PlanConfig(1, 1, 1, 1, 1, Schedule.ONE_F_ONE_B)
    assert (_most_ns(config, PARTS - 1, 1000, Overlap(allowed=True)) == MOST_NS).all()


def test_what_a_cut_proves_does_not_depend_on_the_unit_of_its_weights() -> None:
    draw = np.random.default_rng(5)
    for smaller in (0, 20, 43, 60):  # a cut asked for with prices near to nothing has weights of 2^-43
        weights = draw.uniform(1.0, 2.0, SIZE)
        cut = Inequality(np.ldexp(weights, -smaller), float(np.ldexp(5e9, -smaller)))
        rates = [int(weight * 2.0 ** (PRICE_BITS + ROW_BITS)) + 1 for weight in weights]
        least = _least_of_way(rates, (np.zeros(SIZE), [(cut, 2.0**smaller)]), np.full(SIZE, float(MOST_NS)))
        assert abs(least / 2 ** (PRICE_BITS + ROW_BITS) - 5e9) < 1e3, smaller


def test_what_a_linear_program_errs_by_is_taken_from_its_prices() -> None:
    """Too much by a millionth, of every coordinate there may be all of a step: Qwen3-30B lost half a per cent so."""
    layers, overlap, config = 24, Overlap(allowed=True), PlanConfig(2, 1, 2, 1, 8, Schedule.ONE_F_ONE_B)
    crossings = Crossings(None, (NEAR_KIND,) * 2, (NEAR_KIND,) * 2)
    times_ns = np.full(MESSAGES.stop, 10**6)
    row = longest_path(config, layers, times_ns, overlap=overlap, crossings=crossings, exact=True)
    bound_ns = int(row[: MESSAGES.stop] @ times_ns) // TICKS
    cut = Inequality(row / TICKS, float(bound_ns))
    nothing = (0.0,) * len(memory_rows(config, layers))

    def lost(price: float, *, tempers: bool) -> float:
        priced = Multipliers(((Path(tuple(times_ns.tolist()), True), 1.0),), nothing, (PricedForms(((0, price),), ()),))
        ways = [(np.zeros(SIZE), [(cut, price)])]
        if tempers:
            priced = tempered(priced, config, layers, ways, overlap, crossings)
            ways = [(np.zeros(SIZE), [(cut, priced.known[0].forms[0][1])])]
        proved = proved_ns(priced, config, layers, 2**40, ways, overlap, crossings, bound_ns)
        return 1 - proved / bound_ns

    assert lost(1.0, tempers=False) < 1e-8
    assert lost(1.0 + 5e-6, tempers=False) > 1e-4
    assert -1e-9 < lost(1.0 + 5e-6, tempers=True) < 2e-5
    assert lost(1.0 + 1e-2, tempers=True) == lost(1.0 + 1e-2, tempers=False), "no error of a program"
