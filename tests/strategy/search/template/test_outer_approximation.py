"""Outer approximations: no layout of the deep model takes less than they say, and they come close."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from strategy.base.budget import UNLIMITED
from strategy.bounds.closed_forms import ClosedForms
from strategy.bounds.crossings import FAR_KIND, NEAR_KIND, Crossings, crossings_of
from strategy.bounds.inequality import Inequality
from strategy.bounds.layer_template import LayerTemplate
from strategy.bounds.linear_step import memory_rows, stage_rows
from strategy.bounds.multipliers import Path
from strategy.bounds.point import AHEAD, HELD, MOVED, SAVED, SIZE, SUMS, time_at
from strategy.bounds.quick_bound import least_work
from strategy.layout.config import PlanConfig, Recompute
from strategy.layout.critical_path import critical_path, length_ns, straight_path
from strategy.layout.makespan import PipelineTimes, makespan_ns
from strategy.layout.objective import Priced
from strategy.layout.schedule import Schedule, schedule_problem
from strategy.layout.step_times import Overlap
from strategy.lowering.lower import lower_priced
from strategy.lowering.memory import memory_nbytes
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.search.candidate.candidate_solve import evaluated, examine
from strategy.search.template.outer_approximation import KnownPaths, OuterApproximation
from strategy.search.template.parts import parts_of
from strategy.search.template.stages import pipelined
from strategy.space.candidate_space import free_rules, space_of
from strategy.space.request import Request
from strategy.space.short_model import expanded, shortened
from tests.support.long_parameters import long_but
from tests.support.small_plans import request
from tests.support.solved_templates import solved_template

GPT = GptConfig(layers=8, width=64, heads=4, sequence=16, vocabulary=96)
TRAINING = Training(global_batch=16, precision=Precision.BF16)
PLENTY = 2**40
CONFIGS = [
    PlanConfig(2, 2, 1, 2, 4, Schedule.ONE_F_ONE_B),
    PlanConfig(1, 2, 2, 2, 8, Schedule.ONE_F_ONE_B),
    PlanConfig(1, 1, 4, 1, 16, Schedule.ZB_H1, recompute=Recompute.SELECTIVE),
    PlanConfig(2, 1, 2, 2, 4, Schedule.INTERLEAVED, virtual_stages=2, zero_stage=3),
    PlanConfig(1, 2, 2, 4, 4, Schedule.ZBV, virtual_stages=2, recompute=Recompute.FULL),
    PlanConfig(1, 4, 1, 4, 4, Schedule.ONE_F_ONE_B),
    PlanConfig(1, 2, 2, 4, 4, Schedule.GPIPE),
    PlanConfig(1, 1, 4, 1, 16, Schedule.ZB_H1),
    PlanConfig(1, 2, 2, 1, 16, Schedule.ZBV, virtual_stages=2),
]


def within(asked: Request, config: PlanConfig) -> OuterApproximation:
    forms = ClosedForms(asked, least_work(asked))
    ways = [(forms.least(config), forms.inequalities(config))]
    overlap, crossings = Overlap.of(asked.cost.cluster), crossings_of(asked.cost.cluster, config)
    return OuterApproximation.of(asked.model.layers, asked.memory_limit_bytes, ways, overlap, crossings)


def cut(asked: Request, config: PlanConfig, found: OuterApproximation) -> int:
    """Add the cut by the prices of the bound; returns what a step takes under the layouts of that template."""
    short = shortened(asked.model)
    assert short is not None
    template = LayerTemplate.of(asked, short, config, UNLIMITED)
    chosen = solved_template(template, config, found.bound(config).weights)
    found.add_cut(chosen.cut.inequality, chosen.cut)
    parts = parts_of(template.space.graph, *template.arranged(chosen.signatures), asked.cost)
    return pipelined(parts, config, asked.model.layers, (0, 0), Overlap.of(asked.cost.cluster)).step_ns


@pytest.mark.parametrize("config", long_but(CONFIGS, 7), ids=str)
def test_no_layout_takes_less(config: PlanConfig) -> None:
    """Against the exact solution of the deep model, which the bounds rise towards from cut to cut."""
    asked = request(4, TRAINING, model=GPT, backend="cuda")
    exact = examine(asked, config, free_rules(config), UNLIMITED, None)
    assert exact.solved is not None
    found, bounds, steps = within(asked, config), [], []
    for _ in range(4):
        bound = found.bound(config)
        assert bound.step_ns is not None
        bounds.append(bound.step_ns)
        steps.append(cut(asked, config, found))
    assert 0 < bounds[0] <= bounds[-1] <= exact.solved.objective_ns
    assert bounds == sorted(bounds)
    # On devices this slow a head takes as long as any product of a layer; where backward passes are split, the bound on
    # the schedule's recurrence is less tight for a stage that is so much longer than the others.
    split = config.schedule in (Schedule.ZB_H1, Schedule.ZBV)
    assert bounds[-1] >= (0.9 if split else 0.98) * min(steps), "the gap that cuts leave"


@pytest.mark.parametrize("config", long_but(CONFIGS, 3, 7), ids=str)
def test_cuts_between_bound_and_mixes_close_the_gap(config: PlanConfig) -> None:
    """No bound is above the best mix of points, one point is what it takes alone, and the two come together."""
    asked = request(4, TRAINING, model=GPT, backend="cuda")
    short = shortened(GPT)
    assert short is not None
    template, found, points = LayerTemplate.of(asked, short, config, UNLIMITED), within(asked, config), []
    weights = found.bound(config).weights
    for _ in range(8):
        chosen = solved_template(template, config, weights)
        found.add_cut(chosen.cut.inequality, chosen.cut)
        points.append(chosen.point)
        bound, mixed = found.bound(config), found.mixed(config, [points])
        assert bound.step_ns is not None
        assert mixed.step_ns is not None
        assert bound.step_ns <= mixed.step_ns * (1 + 1e-4)
        if len(points) == 1:
            assert mixed.step_ns == pytest.approx(found.step_ns(config, chosen.point), rel=1e-3)
        weights = (bound.weights + mixed.weights) / 2
    assert bound.step_ns >= 0.995 * mixed.step_ns


@pytest.mark.parametrize("is_scarce", [False, True])
@pytest.mark.parametrize("config", long_but(CONFIGS, 3, 7), ids=str)
def test_a_cut_that_says_enough_bounds_by_what_was_asked_and_one_that_says_less_does_not(
    config: PlanConfig, is_scarce: bool
) -> None:
    asked = request(4, TRAINING, model=GPT, backend="cuda")
    if is_scarce:
        least = ClosedForms(asked, least_work(asked)).least(config)
        limit = int(1.5 * (memory_rows(config, GPT.layers) @ least).max())
        asked = replace(asked, memory_limit_bytes=limit)
    for more in (1.02, 1.3):
        found = within(asked, config)
        cut(asked, config, found)
        bound = found.bound(config)
        assert bound.step_ns is not None
        step_ns, weights = more * bound.step_ns, np.array(bound.weights)
        enough = found.enough(config, weights, step_ns)
        assert enough is not None
        for part in (0.99, 1.001):
            one = within(asked, config)
            one.add_cut(Inequality(weights, part * enough), 0)
            for (numbers, value), why in zip(found.ways[0].cuts, found.ways[0].known, strict=True):
                one.ways[0].cuts.append((numbers, value))
                one.ways[0].known.append(why)
            surpassed = one.bound(config).step_ns
            assert (surpassed is None or surpassed >= step_ns * (1 - 1e-4)) == (part > 1)


def test_where_layers_may_be_treated_in_two_ways_it_is_not_known_what_is_enough() -> None:
    asked = request(4, TRAINING, model=GPT, backend="cuda")
    forms, config = ClosedForms(asked, least_work(asked)), replace(CONFIGS[0], recompute=Recompute.FULL)
    way = forms.least(config), forms.inequalities(config)
    overlap = Overlap.of(asked.cost.cluster)
    for ways, is_known in (([way], True), ([way, way], False)):
        found = OuterApproximation.of(GPT.layers, PLENTY, ways, overlap, crossings_of(asked.cost.cluster, config))
        bound = found.bound(config)
        assert bound.step_ns is not None
        assert (found.enough(config, bound.weights, 1.1 * bound.step_ns) is not None) is is_known


ZERO = PlanConfig(2, 1, 4, 1, 8, Schedule.INTERLEAVED, virtual_stages=2, zero_stage=3)


def with_a_choice() -> OuterApproximation:
    """What a layer between computes in a forward pass it may exchange behind the step: paths are between the two."""
    asked = request(8, Training(global_batch=16), model=GPT, backend="cuda")
    found, weights = within(asked, ZERO), np.zeros(SIZE)
    weights[[time_at("forward_ns", 1), time_at("after_overlapped_ns", 1)]] = 1.0
    found.add_cut(Inequality(weights, 1e11), 0)
    return found


def test_a_bound_that_ends_by_its_paths_is_raised_by_more_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    expected_ns = with_a_choice().bound(ZERO).step_ns
    monkeypatch.setattr("strategy.search.template.outer_approximation.MOST_PATHS", 1)
    few = with_a_choice()
    bounds_ns = [few.bound(ZERO).step_ns for _ in range(20)]
    assert expected_ns is not None
    assert bounds_ns[0] is not None
    assert bounds_ns[0] < expected_ns
    assert bounds_ns[-1] == pytest.approx(expected_ns, rel=1e-4)


def test_no_further_paths_are_looked_for_than_it_takes() -> None:
    whole_ns, few = with_a_choice().bound(ZERO).step_ns, with_a_choice()
    found_ns = few.bound(ZERO, enough_ns=1.0).step_ns
    assert whole_ns is not None
    assert found_ns is not None
    assert 1 <= found_ns < whole_ns
    assert few.bound(ZERO, enough_ns=whole_ns * 2.0).step_ns == pytest.approx(whole_ns, rel=1e-4)


def test_a_solution_a_little_below_zero_has_a_path() -> None:
    """As far as a solver of linear programs may be off."""
    config = PlanConfig(1, 2, 2, 2, 8, Schedule.ONE_F_ONE_B)
    found = within(request(4, TRAINING, model=GPT, backend="cuda"), config)
    assert found.step_ns(config, np.full(SIZE, -2.0)) < 0


def test_what_mixes_hold_beyond_the_memory_has_its_price() -> None:
    config = PlanConfig(1, 2, 2, 2, 8, Schedule.ONE_F_ONE_B)
    asked = request(4, TRAINING, model=GPT, backend="cuda")
    short, found = shortened(GPT), within(asked, config)
    assert short is not None
    template = LayerTemplate.of(asked, short, config, UNLIMITED)
    point = solved_template(template, config, found.bound(config).weights).point
    held = int(found.held_bytes(config, point))
    plenty, scarce = (replace(found, limit_bytes=limit, programs={}) for limit in (2 * held, held // 2))
    enough, little = plenty.mixed(config, [point]), scarce.mixed(config, [point])
    assert not enough.weights[HELD].any()
    assert little.weights[HELD].any()
    assert (little.step_ns or 0) > (enough.step_ns or 0)


def test_memory_raises_the_bound_until_nothing_fits() -> None:
    config = PlanConfig(1, 2, 2, 2, 8, Schedule.ONE_F_ONE_B)
    plenty = request(4, TRAINING, model=GPT, backend="cuda")
    found, before = within(plenty, config), 0
    for _ in range(3):
        cut(plenty, config, found)
    for limit in (2**20, 2**17, 2**16, 2**15, 2**10):
        scarce = replace(found, limit_bytes=limit, programs={})
        bound = scarce.bound(config)
        if bound.step_ns is None:
            assert limit == 2**10 or bound.weights.sum() == 0
            break
        assert bound.step_ns >= before
        before = bound.step_ns
    assert scarce.bound(config).step_ns is None


@pytest.mark.long
@pytest.mark.parametrize("precision", long_but([Precision.BF16, Precision.FULL], 0))
@pytest.mark.parametrize("config", long_but([*CONFIGS, PlanConfig(2, 2, 1, 8, 1, Schedule.ONE_F_ONE_B)], 3), ids=str)
def test_stages_hold_no_less_than_rows_say(config: PlanConfig, precision: Precision) -> None:
    """The deep model as it is laid out, under the layouts that cost least and under those that hold least."""
    asked = request(4, replace(TRAINING, precision=precision), model=GPT, backend="cuda")
    short = shortened(GPT)
    assert short is not None
    deep = space_of(asked, config, free_rules(config))
    for byte in (0.0, 1e3):
        weights = within(asked, config).bound(config).weights
        weights[HELD] = weights[SUMS] = weights[SAVED] = byte * np.array([1.0, GPT.layers - 2, 1.0])
        found = LayerTemplate.of(asked, short, config, UNLIMITED)
        chosen = solved_template(found, config, weights)
        everywhere = expanded((found.space.graph, chosen.signatures), deep.graph)
        assert everywhere is not None
        laid_out = evaluated(config, deep, everywhere, 0)
        program = lower_priced(Priced(deep.graph, laid_out.layout, asked.pipeline_of(config), asked.cost))
        allocated = memory_nbytes(program)
        for stage in range(config.pp):
            for row in stage_rows(config, GPT.layers, stage):
                counted = float(row @ chosen.point)
                assert 0 < counted <= (math.inf if row[MOVED].any() else laid_out.peaks[stage])
                assert counted <= max(allocated[rank] for rank in deep.stages.placements[stage].devices)


@pytest.mark.parametrize("recompute", long_but([Recompute.NONE, Recompute.FULL], 1))
@pytest.mark.parametrize(
    ("zero_stage", "dp", "pp", "m", "schedule"),
    long_but(
        [
            (3, 4, 1, 1, Schedule.ONE_F_ONE_B),
            (3, 2, 1, 4, Schedule.ONE_F_ONE_B),
            (2, 4, 1, 4, Schedule.ONE_F_ONE_B),
            (3, 2, 2, 4, Schedule.ONE_F_ONE_B),
            (3, 2, 2, 4, Schedule.GPIPE),
            (2, 2, 2, 4, Schedule.ONEFLOW),
        ],
        5,
    ),
)
def test_what_goes_on_beside_is_held(
    zero_stage: int, dp: int, pp: int, m: int, schedule: Schedule, recompute: Recompute
) -> None:
    """By plans as they are laid out, at no price of memory and at one: parameters and gradients of a layer."""
    model = replace(GPT, layers=6 * pp)
    config = PlanConfig(
        dp, 1, pp, 16 // (m * dp), m, schedule, recompute=recompute, zero_stage=zero_stage, zero_min_size=1
    )
    asked = request(dp * pp, TRAINING, model=model, backend="cuda")
    short = shortened(model)
    assert short is not None
    deep, found = space_of(asked, config, free_rules(config)), LayerTemplate.of(asked, short, config, UNLIMITED)
    for byte in (0.0, 1e3):
        weights = within(asked, config).bound(config).weights
        weights[HELD] = weights[SUMS] = weights[SAVED] = byte * np.array([1.0, model.layers - 2, 1.0])
        chosen = solved_template(found, config, weights)
        everywhere = expanded((found.space.graph, chosen.signatures), deep.graph)
        assert everywhere is not None
        laid_out = evaluated(config, deep, everywhere, 0)
        allocated = memory_nbytes(
            lower_priced(Priced(deep.graph, laid_out.layout, asked.pipeline_of(config), asked.cost))
        )
        assert chosen.point[MOVED].sum() > 0
        for stage in dict.fromkeys((0, pp - 1)):
            rows = [row for row in stage_rows(config, model.layers, stage) if row[MOVED].any()]
            assert 1 <= len(rows) <= 4
            most = max(allocated[rank] for rank in deep.stages.placements[stage].devices)
            counted = max(float(row @ chosen.point) for row in rows)
            assert 0.3 * most <= counted <= most


def test_what_forward_passes_alone_read_is_held_as_well() -> None:
    """Parameters in layouts of the forward pass, where all that is held longer has its price: free, and at a price."""
    config = PlanConfig(2, 2, 1, 2, 4, Schedule.ONE_F_ONE_B)
    asked = request(4, TRAINING, model=GPT, backend="cuda")
    short, weights = shortened(GPT), within(asked, config).bound(config).weights
    assert short is not None
    weights[HELD] = 1e3 * np.array([1.0, GPT.layers - 2, 1.0])
    found = LayerTemplate.of(asked, short, config, UNLIMITED)
    free = solved_template(found, config, weights).point
    weights[AHEAD] = weights[HELD]
    counted = solved_template(found, config, weights).point
    assert free[AHEAD].sum() > 0
    assert counted[AHEAD].sum() < free[AHEAD].sum()
    for row in memory_rows(config, GPT.layers):
        assert row[AHEAD].tolist() == [1, GPT.layers - 2, 1]
    (first, *_) = memory_rows(replace(config, num_micro_batches=1, micro_batch=8), GPT.layers)
    assert not first[AHEAD].any(), "of a single micro-batch the forward pass is over when most is held"


@pytest.mark.parametrize("schedule", list(Schedule))
def test_straight_paths_are_not_longer(schedule: Schedule) -> None:
    """Under random times: a path that is found at once is no longer than the longest, and often is that."""
    rng, alike = np.random.default_rng(7), 0
    for pp, m, laps in ((1, 4, 1), (2, 4, 1), (4, 8, 1), (4, 4, 1), (2, 4, 2), (4, 8, 2), (4, 12, 3)):
        if schedule_problem(schedule, pp, laps, m) is not None:
            continue
        for turn in range(8):
            chunks = [rng.integers(1, 100, (pp, laps)) if turn else np.full((pp, laps), 50) for _ in range(3)]
            steps, ways = [rng.integers(0, 40, pp) for _ in range(2)], [rng.integers(0, 9, pp * laps - 1)] * 2
            late = np.random.default_rng(turn).integers(0, 40, pp) * (not schedule.splits_backward)
            beside = [
                np.random.default_rng(turn).integers(0, most, (pp, laps))
                for most in (50, 50, 50, 100, 1 + 10 * (turn % 4))
            ]
            times = PipelineTimes(*chunks, *ways, *steps, late, *beside, steps[1], overlaps=bool(turn % 2))
            straight, longest = (find(schedule, m, times).counts for find in (straight_path, critical_path))
            assert length_ns(straight, times) <= length_ns(longest, times) == makespan_ns(schedule, m, times)
            alike += length_ns(straight, times) == length_ns(longest, times)
    assert alike >= 4


def test_paths_are_known_of_configurations_that_overlap_alike() -> None:
    """Where more links are shared, a path of the same times passes something else."""
    config, known = PlanConfig(2, 2, 2, 1, 4, Schedule.ONE_F_ONE_B), KnownPaths()
    one, other = (Overlap(allowed=True, shared_ticks=ticks) for ticks in (0, 512))
    near, far = (Crossings(None, (kind, kind), (kind, kind)) for kind in (NEAR_KIND, FAR_KIND))
    known.take(config, one, near, [(Path((0,), exact=True), np.ones(2))])
    assert len(known.of(config, one, near)) == 1
    assert not known.of(config, other, near)
    assert not known.of(config, one, far)
