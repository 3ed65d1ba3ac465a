"""Candidates: every division of the devices, none that the pins exclude, and a bound that holds."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest

from strategy.base.errors import InputError
from strategy.cost.cost import CostModel
from strategy.layout.config import Offload, Recompute
from strategy.layout.schedule import Schedule
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.search.candidate.candidate_solve import solve_candidate
from strategy.space.candidate_space import free_rules
from strategy.space.candidates import (
    CHEAPEST_FIRST,
    candidates_of,
    context_degrees,
    divisions,
    listed,
    recomputable,
    space_log10,
)
from strategy.space.deduce import Deduction
from strategy.space.request import Pins, Request
from tests.support.long_parameters import long_but
from tests.support.small_plans import MODEL, request
from tests.support.tiny_models import TinyConfig

PIPELINES = (Schedule.ONE_F_ONE_B, Schedule.ZB_H1, Schedule.GPIPE)


@pytest.fixture(scope="module")
def asked() -> Request:
    return request(2, Training(global_batch=4))


def test_candidates_use_all_devices(asked: Request) -> None:
    for config in candidates_of(asked):
        assert config.dp * config.tp * config.pp == 2
        assert config.micro_batch * config.num_micro_batches * config.dp == 4


@pytest.mark.parametrize(
    ("sequence", "degrees"), [(2**13, (1,)), (2**15, (1,)), (2**16, (1, 2, 4, 8)), (2**17, (1, 2, 4, 8, 16))]
)
def test_long_sequences_are_shared_out(sequence: int, degrees: tuple[int, ...]) -> None:
    asked = request(32, Training(global_batch=4))
    assert context_degrees(replace(asked, model=replace(MODEL, sequence=sequence))) == degrees


def test_pins_leave_what_satisfies_them(asked: Request) -> None:
    pinned = replace(asked, pins=Pins(tp=2, micro_batch=1))
    wanted = [config for config in candidates_of(asked) if (config.tp, config.micro_batch) == (2, 1)]
    assert list(candidates_of(pinned)) == wanted
    assert len(wanted) == len(Recompute) * len(Offload)
    assert 0 < space_log10(pinned) < space_log10(asked)
    assert space_log10(replace(asked, pins=Pins(dp=3))) == 0


def test_schedules_recomputing_and_stage_3_are_listed(asked: Request) -> None:
    """Two stages of two layers have no second lap; what saves least comes first, and schedules beside each other."""
    groups = list(listed(asked))
    for group in groups:
        schedules = {(config.schedule, config.virtual_stages) for config in group}
        assert schedules == {(schedule, 1) for schedule in (PIPELINES if group[0].pp == 2 else PIPELINES[:1])}
        assert {replace(config, schedule=Schedule.ONE_F_ONE_B) for config in group} == {group[0]}
    firsts = [group[0] for group in groups if group[0].micro_batch == 1]
    saving = [(one.recompute, one.zero_stage) for one in firsts if one.offload is Offload.NONE]
    kinds = (Recompute.NONE, *CHEAPEST_FIRST)
    assert saving == [*itertools.product(kinds, (0, 3)), *itertools.product(kinds * 2, (0,))][-len(saving) :]
    assert [one.offload for one in firsts] == [*Offload] * len(saving)
    assert [config for group in divisions(asked) for config in group] == list(candidates_of(asked))
    pinned = replace(asked, pins=Pins(schedule=Schedule.GPIPE, zero_stage=0, recompute=Recompute.NONE))
    assert [len(group) for group in divisions(pinned)] == [len(Offload)] * 8
    deduced = replace(asked, deduction=Deduction.MATCH_ALL)
    assert {(config.recompute, config.zero_stage) for config in candidates_of(deduced)} == {(Recompute.NONE, 0)}


def test_laps_are_of_equal_runs_of_layers() -> None:
    """Of eight layers on two stages in two or four runs each, not in three; what is pinned to stages has one lap."""
    asked = request(2, Training(global_batch=4), model=replace(MODEL, layers=8))
    pins = Pins(pp=2, num_micro_batches=2, recompute=Recompute.NONE, offload=Offload.NONE)
    found = [(config.schedule, config.virtual_stages) for config in candidates_of(replace(asked, pins=pins))]
    several = [(Schedule.INTERLEAVED, 2), (Schedule.INTERLEAVED, 4), (Schedule.ZBV, 2)]
    assert sorted(found) == sorted([*((schedule, 1) for schedule in PIPELINES), *several])
    fixed = replace(asked, pins=replace(pins, stages={"layers.3.*": 1}))
    assert [(config.schedule, config.virtual_stages) for config in candidates_of(fixed)] == [(s, 1) for s in PIPELINES]


def test_what_a_model_drops_depends_on_how_it_is_trained() -> None:
    """Without an activation function there is nothing memory-bound to compute again but casts to half precision."""
    model = TinyConfig(2, 8, "", False)
    kinds = [recomputable(model, Training(global_batch=1, precision=each)) for each in (Precision.FULL, Precision.BF16)]
    assert set(kinds[0]) < set(kinds[1])


def test_a_pinned_stage_needs_ranks_to_share_with(asked: Request) -> None:
    found = list(candidates_of(replace(asked, pins=Pins(zero_stage=2, zero_min_size=7))))
    assert {(c.dp, c.zero_stage, c.zero_min_size) for c in found} == {(2, 2, 7)}
    assert list(candidates_of(replace(asked, pins=Pins(dp=1, zero_stage=1)))) == []
    assert all(c.zero_owner for c in candidates_of(replace(asked, pins=Pins(zero_stage=2, zero_owner=True))))
    with pytest.raises(InputError, match=r"zero_owner: nothing is shared out.*pin zero_stage"):
        list(candidates_of(replace(asked, pins=Pins(zero_owner=True))))
    plain = [config for config in candidates_of(asked) if not config.zero_stage]
    assert list(candidates_of(replace(asked, pins=Pins(zero_stage=0)))) == plain


def test_groups_are_those_of_a_node_or_as_pinned(asked: Request) -> None:
    training, free = Training(global_batch=16), Pins()

    def found(per_node: int, pins: Pins = free, room: float = 1.0) -> set[tuple[int, int, int, int]]:
        """`room` in a device's memory for all parameters and gradients."""
        pins = replace(pins, pp=1, num_micro_batches=2, recompute=Recompute.NONE, offload=Offload.NONE)
        some = request(8, training, per_node=per_node)
        device = replace(some.cost.cluster.device, memory_bytes=int(room * 4 * some.model.parameters))
        cost = CostModel(replace(some.cost.cluster, device=device), {})
        listed = candidates_of(replace(some, pins=pins, cost=cost))
        return {(one.dp, one.tp, one.zero_stage, one.zero_group) for one in listed if one.zero_group}

    assert found(8) == set()
    assert found(4) == {(8, 1, 3, 4), (4, 2, 3, 2)}
    assert (found(4, room=1.5), found(4, room=2.5)) == ({(8, 1, 3, 4)}, set())
    assert found(4, Pins(zero_stage=3), room=2.5) == found(4)
    assert found(4, Pins(zero_stage=2)) == {(8, 1, 2, 4), (4, 2, 2, 2)}
    assert found(4, Pins(order=("data", "tensor"))) == found(4, Pins(zero_stage=0)) == set()
    pinned = {(8, 1, stage, 2) for stage in (1, 2, 3)} | {(4, 2, stage, 2) for stage in (1, 2, 3)}
    assert found(8, Pins(zero_group=2)) == pinned
    all_share = {one.dp for one in candidates_of(replace(asked, pins=Pins(zero_group=2)))}
    assert all_share == {2}, "a group of all of them"


@pytest.mark.parametrize("tp", long_but([1, 2]))
def test_what_saves_memory_costs_no_less_than_what_does_not(asked: Request, tp: int) -> None:
    """The bound of a candidate that saves nothing holds for those that do, which is why they may be left out."""
    plenty = replace(asked, pins=Pins(tp=tp, pp=1, num_micro_batches=2, zero_min_size=9))
    for first, *others in divisions(plenty):
        free = solve_candidate(plenty, first, rules=free_rules(first))
        assert free is not None
        assert others
        for again in others:
            if again.offload is not Offload.NONE and again.recompute is not Recompute.NONE:
                continue
            saving = solve_candidate(plenty, again, rules=free_rules(again))
            assert saving is not None
            assert free.bound_ns <= saving.objective_ns
