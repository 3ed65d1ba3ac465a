"""Folded programs against whole ones: the ranks that stand for others do the same at the same times."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from functools import cache

import pytest

from simulator.engine import run
from simulator.simulate import simulate
from strategy.base.errors import InputError, PlanError
from strategy.layout.objective import Priced
from strategy.lowering import lower as lowering
from strategy.lowering.lower import lower, lower_priced
from strategy.lowering.memory import memory_nbytes
from strategy.lowering.traffic import sent_bytes_per_step
from strategy.models.gpt import GptConfig
from strategy.models.mixtral import MixtralConfig
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.plan.verify import verify
from strategy.program.program import Program
from strategy.program.timeline import Timeline
from strategy.space.axis_orders import strides_of
from tests.simulator.test_engine import each
from tests.support.long_parameters import long_but
from tests.support.small_plans import config_of, deduced_plan, request

EVEN = GptConfig(layers=4, width=24, heads=12, sequence=8, vocabulary=48)
POWERS = GptConfig(layers=2, width=32, heads=4, sequence=8, vocabulary=64)
UNEVEN = GptConfig(layers=2, width=10, heads=2, sequence=5, vocabulary=17)


@cache
def plan_of(
    dp: int, tp: int, pp: int, *, model: GptConfig = EVEN, backend: str = "cupy", per_node: int | None = None
) -> Plan:
    training = Training(global_batch=8 * dp, num_micro_batches=8)
    asked = request(dp * tp * pp, training, model=model, backend=backend, per_node=per_node)
    return deduced_plan(asked, config_of(training, dp=dp, tp=tp, pp=pp), ("data", "tensor"))


@cache
def ring_plan(dp: int, cp: int, tp: int, pp: int, schedule: str, context: str) -> Plan:
    """Of a step in which ranks share out positions."""
    training = Training(global_batch=2 * dp, num_micro_batches=2)
    model = replace(POWERS, layers=2 * pp if schedule == "interleaved" else pp)
    more = {"zero_stage": 1, "zero_min_size": 1} if dp > 1 else {}
    config = config_of(training, dp=dp, cp=cp, tp=tp, pp=pp, schedule=schedule, context=context, **more)
    asked = request(dp * cp * tp * pp, training, model=model, backend="cupy")
    return deduced_plan(asked, config, ("data", "context", "tensor"))


def programs_of(plan: Plan, monkeypatch: pytest.MonkeyPatch) -> tuple[Program, Program]:
    """Whole and folded."""
    monkeypatch.setattr(lowering, "FOLDED_FROM", 0)
    return lower_priced(plan.priced), lower_priced(plan.priced, folds=True)


def acts(timeline: Timeline, ranks: set[int]) -> dict[tuple[str, int, int], tuple[int, int]]:
    return {
        (timeline.actors[r.actor].name, timeline.actors[r.actor].rank, r.number): (r.start_ns, r.end_ns)
        for r in timeline.records
        if timeline.actors[r.actor].rank in ranks
    }


@pytest.mark.parametrize(
    ("degrees", "per_node", "backend"),
    long_but(
        [
            (degrees, per_node, backend)
            for degrees, per_node in (
                *(((2, 1, 1), None), ((1, 2, 2), None), ((2, 2, 1), None), ((3, 2, 2), None), ((2, 2, 4), None)),
                *(((4, 3, 2), None), ((2, 2, 1), 2), ((3, 2, 2), 2), ((2, 2, 4), 2), ((4, 2, 2), 4)),
            )
            for backend in ("numpy", "cupy")
        ],
        13,
    ),
)
def test_acts_take_place_when_they_do_among_all(
    degrees: tuple[int, int, int], per_node: int | None, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, folded = programs_of(plan_of(*degrees, backend=backend, per_node=per_node), monkeypatch)
    shown = {stream.rank for stream in folded.streams}
    assert len(shown) == degrees[2]
    assert len(folded.alike) == whole.ranks == folded.ranks
    assert acts(run(folded, 2).timeline, shown) == acts(run(whole, 2).timeline, shown)
    held = list(zip(memory_nbytes(folded), memory_nbytes(whole), strict=True))
    assert all(stands >= own for stands, own in held)
    assert all(stands <= 1.03 * own for stands, own in held)  # some messages go to ranks that are not shown
    assert sent_bytes_per_step(folded) == sent_bytes_per_step(whole)


@pytest.mark.parametrize(
    "order", long_but([(["data"],), (["pipeline"],), (["tensor", "pipeline", "data"],), (["data", "pipeline"],)], 2)
)
@pytest.mark.parametrize(("degrees", "per_node"), long_but([((2, 2, 2), 2), ((2, 2, 4), 4), ((4, 2, 2), 4)], 0))
def test_axes_in_other_orders_fold(
    degrees: tuple[int, int, int], per_node: int, order: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    dp, tp, pp = degrees
    training = Training(global_batch=8 * dp, num_micro_batches=8)
    asked = request(dp * tp * pp, training, model=EVEN, backend="cupy", per_node=per_node)
    config = config_of(training, dp=dp, tp=tp, pp=pp)
    plan = deduced_plan(asked, replace(config, strides=strides_of(config, order)), ("data", "tensor"))
    assert plan.config.strides
    assert verify(plan) == []
    whole, folded = programs_of(plan, monkeypatch)
    shown = {stream.rank for stream in folded.streams}
    assert len(shown) < whole.ranks
    found, wanted = (acts(run(program, 2).timeline, shown) for program in (folded, whole))
    assert found.keys() == wanted.keys()
    assert all(found[act] == pytest.approx(wanted[act], rel=1e-8) for act in wanted)  # of two equals another is first
    assert sent_bytes_per_step(folded) == sent_bytes_per_step(whole)
    others = {strides for strides in itertools.permutations(plan.config.strides) if strides != plan.config.strides}
    for strides in others:
        with contextlib.suppress(InputError):  # of those that are no order of the axes
            assert "config.strides" in verify(replace(plan, config=replace(config, strides=strides)))[0]


@pytest.mark.parametrize(
    ("degrees", "schedule", "context"),
    long_but(
        [
            ((2, 4, 1, 2), "1f1b", "ring"),
            ((4, 2, 1, 2), "interleaved", "ring"),
            ((1, 4, 2, 2), "gpipe", "ring"),
            ((2, 4, 1, 2), "1f1b", "all_to_all"),
        ],
        1,
    ),
)
def test_ranks_round_a_ring_fold(
    degrees: tuple[int, int, int, int], schedule: str, context: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where some of a group send more than others: they take as long."""
    monkeypatch.setattr("strategy.lowering.folding.UNEVEN_NBYTES", 0)
    whole, folded = programs_of(ring_plan(*degrees, schedule, context), monkeypatch)
    shown = {stream.rank for stream in folded.streams}
    assert len(shown) == degrees[-1]
    assert acts(run(folded, 1).timeline, shown) == acts(run(whole, 1).timeline, shown)
    assert sent_bytes_per_step(folded) == sent_bytes_per_step(whole)


@pytest.mark.parametrize("axes", long_but([(("data", "tensor"),), (("data", "mixed"),), (("tensor", "data"),)], 1))
def test_ranks_of_experts_fold(axes: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What rows there are is data: all expect equally many."""
    training = Training(global_batch=16, num_micro_batches=4)
    model = MixtralConfig(
        layers=2, width=16, heads=4, key_heads=4, hidden=16, experts=4, choices=2, sequence=8, vocabulary=32
    )
    asked = request(8, training, model=model, backend="cupy")
    whole, folded = programs_of(deduced_plan(asked, config_of(training, dp=2, tp=2, pp=2), axes), monkeypatch)
    shown = {stream.rank for stream in folded.streams}
    assert len(shown) == 2
    assert acts(run(folded, 2).timeline, shown) == acts(run(whole, 2).timeline, shown)
    assert memory_nbytes(folded) == memory_nbytes(whole)
    assert sent_bytes_per_step(folded) == sent_bytes_per_step(whole)


def test_stages_that_nodes_part_in_other_ways_send_what_they_send_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes of six ranks: the first and the last of three stages are inside of one, that between them is cut in two."""
    whole, folded = programs_of(plan_of(1, 4, 3, model=replace(EVEN, layers=3), per_node=6), monkeypatch)
    assert len(folded.alike) == 12
    assert sent_bytes_per_step(folded) == sent_bytes_per_step(whole)


def test_ranks_that_hold_unlike_pieces_are_all_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("strategy.lowering.folding.UNEVEN_NBYTES", 0)
    whole, folded = programs_of(plan_of(2, 2, 2, model=UNEVEN), monkeypatch)
    assert folded.alike == ()
    assert folded == whole


def test_a_straggler_is_seen_in_the_whole_program_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jitter is given by actor: a folded program has but those of the ranks that stand for others."""
    whole, folded = programs_of(plan_of(2, 2, 2), monkeypatch)
    others = {rank for rank in range(whole.ranks) if rank not in folded.alike}
    slow = simulate(whole, jitter=each(lambda actor, _: 10_000 * (whole.actors[actor].rank in others)))
    assert slow.step_time_s > simulate(whole).step_time_s == simulate(folded).step_time_s


def test_figures_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, folded = (simulate(program) for program in programs_of(plan_of(2, 2, 2), monkeypatch))
    for name in ("step_time_s", "bubble_overhead", "idle_share", "exposed_communication_s"):
        assert getattr(folded, name) == pytest.approx(getattr(whole, name), rel=1e-9), name
    assert folded.peak_memory_bytes == whole.peak_memory_bytes
    assert whole.num_tasks > 3 * folded.num_tasks


def test_few_ranks_are_not_folded() -> None:
    plan = plan_of(2, 2, 2)
    parts = plan.graph, plan.layout, plan.pipeline, plan.cost
    assert lower_priced(Priced(*parts), folds=True) == lower(*parts)
    assert lower_priced(Priced(*parts), folds=True) == replace(lower(*parts), alike=())


def test_few_ranks_that_do_much_are_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = plan_of(2, 2, 2)
    whole = lower_priced(plan.priced)
    monkeypatch.setattr(lowering, "MOST_UNFOLDED", len(whole.actors))
    assert lower_priced(plan.priced, folds=True) == whole
    monkeypatch.setattr(lowering, "MOST_UNFOLDED", len(whole.actors) - 1)
    assert lower_priced(plan.priced, folds=True).alike


@pytest.mark.parametrize("name", ["MOST_ACTORS", "MOST_ACTS"])
def test_what_is_too_large_is_refused_before_it_is_lowered(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where its ranks do not fold; the estimate is that of the program, or more where a rank skips a transfer."""
    plan = plan_of(2, 2, 2)
    parts = plan.graph, plan.layout, plan.pipeline, plan.cost
    whole = lower(*parts)
    least = len(whole.actors) if name == "MOST_ACTORS" else sum(actor.acts_per_step for actor in whole.actors)
    monkeypatch.setattr(lowering, name, least)
    assert lower(*parts) == whole
    monkeypatch.setattr(lowering, name, least - 1)
    with pytest.raises(PlanError, match=rf"8 ranks that cannot stand for one another \(got '.*{least}"):
        lower(*parts)
    monkeypatch.setattr(lowering, "FOLDED_FROM", 0)
    assert lower_priced(Priced(*parts), folds=True).alike
