"""ZeRO layouts: which dim is shared out, and which signatures each ZeRO stage leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from strategy.base.errors import InputError
from strategy.graph.graph import Role
from strategy.layout.config import PlanConfig
from strategy.layout.layout import assign_stages, home_of
from strategy.layout.schedule import Schedule
from strategy.passes.planned import planned_graph
from strategy.passes.training import Training
from strategy.passes.updates import Optimizer
from strategy.passes.zero_layouts import owners_of, shared_dim, shared_dims
from strategy.plan.plan import Plan
from strategy.plan.verify import verify
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import B, NdSbp, Owner, P, Sbp, Split
from tests.support.long_parameters import long_but
from tests.support.small_plans import MODEL, config_of, deduced_plan, plan_by_rules, request

MATRIX, VECTOR = "layers.0.mlp.fc1.weight", "layers.0.norm1.bias"


def config(*, dp: int = 4, tp: int = 1, **zero: Any) -> PlanConfig:
    return PlanConfig(dp, tp, 1, 1, 1, Schedule.GPIPE, **zero)


def plan(stage: int, optimizer: Optimizer = Optimizer.ADAMW, *, owner: bool = False) -> Plan:
    training = Training(global_batch=4, num_micro_batches=2, optimizer=optimizer)
    config = config_of(training, dp=2, zero_stage=stage, zero_min_size=9, zero_owner=owner)
    return deduced_plan(request(2, training), config, ("samples split", "tensor"))


@pytest.mark.parametrize(
    ("shape", "tp", "dim"),
    [
        ((64, 48), 1, 0),
        ((48, 64), 1, 1),
        ((66, 64), 1, 1),  # 66 rows do not divide by 4
        ((66, 65), 1, 0),  # nothing divides: the larger, unevenly
        ((3, 1024), 1, 1),
        ((32, 32), 1, 0),
        ((2, 3, 2, 90), 1, 3),
        ((7, 340), 2, 1),
        ((7, 340), 100, None),  # a tensor axis could not cut any dim again
        ((1023,), 1, None),  # small
        ((1024,), 1, 0),
        ((), 1, None),
    ],
)
def test_the_largest_dim_that_divides_best_is_shared_out(shape: tuple[int, ...], tp: int, dim: int | None) -> None:
    assert shared_dim(shape, config(tp=tp)) == dim


@pytest.mark.parametrize(
    ("shape", "tp", "dims"),
    [
        ((64, 48), 1, (0,)),
        ((64, 48), 2, (0, 1)),
        ((48, 64), 2, (1, 0)),
        ((66, 64), 2, (1,)),  # 66 rows do not divide by 4
        ((66, 65), 2, (0, 1)),  # nothing divides
        ((66, 54), 2, (0,)),  # 13 or 14 rows are too unlike
        ((54, 53), 2, (0,)),
        ((7, 340), 100, ()),
        ((512, 512), 2, (0, 1)),
    ],
)
def test_beside_a_tensor_axis_any_dim_that_divides_as_well_will_do(
    shape: tuple[int, ...], tp: int, dims: tuple[int, ...]
) -> None:
    assert shared_dims(shape, config(tp=tp)) == dims


def test_what_a_tensor_axis_splits_is_gathered_in_one_collective() -> None:
    """Shared out in the dim in which that axis splits it, it would lie elsewhere than where it is used, and go on."""
    training = Training(global_batch=4, num_micro_batches=2)
    cut = config_of(training, dp=2, tp=2, zero_stage=3, zero_min_size=9)
    found = plan_by_rules(request(4, training), cut, ("samples split", "tensor"))
    layout = found.layout.signatures
    gathered = [op for op in found.graph.ops if op.kind == "repeat" and op.name.startswith(MATRIX)]
    assert {op.name for op in gathered} == {f"{MATRIX}:forward", f"{MATRIX}:backward"}
    for op in gathered:
        assert layout[op.name].outputs[0] == (Split(0), Split(1))
        for reader in found.graph.consumers[op.name]:
            assert layout[reader.name].inputs[reader.inputs.index(op.name)] == (B, Split(1))
    assert verify(found) == []


def test_only_what_an_update_can_split_is_taken() -> None:
    assert shared_dim((8, 64, 64), config(), among={0}) == 0
    assert shared_dim((3, 64, 64), config(), among={0}) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"zero_stage": 4}, "config: zero_stage: no such stage of ZeRO (got 4, expected 0 to 3)"),
        ({"zero_stage": -1}, "config: zero_stage: no such stage of ZeRO (got -1"),
        ({"zero_stage": 1, "dp": 1}, "config: zero_stage: nobody to share with (got 'zero_stage 1 with dp 1')"),
        ({"tiled": ("*.fc1.matmul",)}, "config: tiled: nothing is cut (got 'tiles 1'); set tiles too"),
        ({"zero_owner": True}, "config: zero_owner: nothing is shared out (got 'zero_stage 0'); set zero_stage too"),
        ({"zero_min_size": 0}, "config: zero_min_size: not possible (got 0"),
        ({"zero_group": 2}, "config: zero_group: nothing is shared out in parts (got 'zero_stage 0"),
        ({"zero_group": 3, "zero_stage": 3}, "config: zero_group: no groups of the data-parallel ranks (got 3"),
        ({"zero_group": 4, "zero_stage": 3}, "expected a divisor of dp between 1 and dp, which is 4; or 0, for all"),
        ({"zero_group": 2, "zero_stage": 3, "ep": 4}, "expected a divisor of dp, a multiple of ep 4, between 1"),
    ],
)
def test_what_is_impossible_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        config(**changes)
    assert message in str(caught.value)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_what_a_stage_shares_out(stage: int) -> None:
    """Stage by stage: state, then gradients, then parameters up to their use; vectors of 8 stay whole."""
    found = plan(stage)

    def home(name: str) -> Sbp:
        at = home_of(found.graph, found.layout.stages, found.layout.signatures, name)
        assert at is not None
        return at.layout[0]

    for suffix in ("", ":m", ":v"):
        assert home(f"{MATRIX}{suffix}") == Split(1)
        assert home(f"{VECTOR}{suffix}") == B
    gradient = next(op for op in found.graph.ops if op.name == f"{MATRIX}:adamw").inputs[0]
    assert found.graph.producer[gradient].kind == "accumulate"
    assert home(gradient) == (P if stage == 1 else Split(1))
    assert [op.name for op in found.graph.ops if op.kind == "repeat" and op.inputs == (MATRIX,)] == (
        [f"{MATRIX}:forward", f"{MATRIX}:backward"] if stage == 3 else []
    )
    for op in found.graph.ops:
        for name, nd_sbp in zip(op.inputs, found.layout.signatures[op.name].inputs, strict=True):
            if name.startswith(MATRIX) and op.name.startswith("layers.0.mlp.fc1") and op.kind != "repeat":
                assert nd_sbp[0] == (B if op.phase != "update" and op.kind != "accumulate" else nd_sbp[0])
    assert verify(found) == []


@pytest.mark.parametrize("optimizer", [Optimizer.SGD, Optimizer.LAMB, Optimizer.MUON])
def test_every_optimiser_can_share_its_state(optimizer: Optimizer) -> None:
    found = plan(2, optimizer)
    shared = {
        name
        for op in found.graph.ops
        for name, nd_sbp in zip(op.updates, found.layout.signatures[op.name].updates, strict=True)
        if isinstance(nd_sbp[0], Split)
    }
    assert {"token", MATRIX} <= shared


def test_another_stage_is_not_what_the_plan_says() -> None:
    found = plan(1)
    claimed = replace(found, config=replace(found.config, zero_stage=2))
    problems = verify(claimed)
    assert problems
    assert all("is not how stage 2 of ZeRO shares out" in problem for problem in problems)
    assert any("layers.0.mlp.fc1.matmul:dw:sum" in problem for problem in problems)


@pytest.mark.parametrize("optimizer", [Optimizer.ADAMW, Optimizer.LAMB, Optimizer.MUON])
def test_an_owner_has_a_tensor_with_all_its_state(optimizer: Optimizer) -> None:
    found = plan(1, optimizer, owner=True)
    homes = {
        value.name: home_of(found.graph, found.layout.stages, found.layout.signatures, value.name)
        for value in found.graph.with_role(Role.VARIABLE)
    }
    for name, home in homes.items():
        assert home is not None
        large = found.graph.values[name].spec.size >= 9
        assert isinstance(home.layout[0], Owner) == large
        parameter = homes[name.split(":")[0]]
        assert parameter is not None
        assert not large or home == parameter
    assert verify(found) == []


def test_owners_are_about_equally_full() -> None:
    """No rank holds more than another by more than the largest tensor with its state, on any pipeline stage."""
    training = Training(global_batch=4)
    config = config_of(training, dp=4, pp=2, zero_stage=1, zero_min_size=9, zero_owner=True)
    graph = planned_graph(MODEL, training, config)
    placements = tuple(Placement(tuple(range(4 * s, 4 * s + 4)), (4, 1), ("data", "tensor")) for s in range(2))
    stage_of = assign_stages(graph, placements).stage_of
    owners = owners_of(graph, config, stage_of)
    held = {stage: [0] * 4 for stage in range(2)}
    for name, op in graph.updater.items():
        owner = owners.get(name.split(":")[0])
        if owner is not None:
            held[stage_of[op.name]][owner.coordinate] += graph.values[name].spec.nbytes
    largest = 3 * max(graph.values[name].spec.nbytes for name in owners)
    assert all(max(found) - min(found) <= largest and min(found) > 0 for found in held.values())
    assert owners_of(graph, config_of(training, dp=4, zero_stage=1), stage_of) == {}


def test_a_tensor_with_another_owner_is_not_what_the_plan_says() -> None:
    found = plan(1, owner=True)
    op = f"{MATRIX}:adamw"
    signature = found.layout.signatures[op]

    def other(nd_sbp: NdSbp) -> NdSbp:
        return tuple(Owner(1 - sbp.coordinate) if isinstance(sbp, Owner) else sbp for sbp in nd_sbp)

    inputs, updates = (tuple(map(other, layouts)) for layouts in (signature.inputs, signature.updates))
    changed = {**found.layout.signatures, op: replace(signature, inputs=inputs, updates=updates)}
    problems = verify(replace(found, layout=replace(found.layout, signatures=changed)))
    assert len(problems) == 1
    assert problems[0].startswith(f"op {op}: ")


@pytest.mark.slow
@pytest.mark.parametrize("stage", long_but([1, 3], 1))
def test_state_is_shared_out_over_positions_too(stage: int) -> None:
    """Ranks of a context axis use the same parameters: each holds a part of their state, as along the data axis."""
    training = Training(global_batch=4, num_micro_batches=2)
    config = config_of(training, dp=2, cp=2, zero_stage=stage, zero_min_size=9)
    found = deduced_plan(request(4, training), config, ("samples split", "positions split", "tensor"))
    (home,) = {found.layout.signatures[f"{MATRIX}:adamw"].updates[at] for at in range(3)}
    assert home[0] == home[1] != B
    assert verify(found) == []
