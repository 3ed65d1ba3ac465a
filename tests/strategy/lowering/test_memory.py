"""Planned memory: never less than what credits hold in a simulated run, and named tensor by tensor."""

from __future__ import annotations

import itertools
import random

import pytest

from executor.train import program_of
from simulator.simulate import simulate
from strategy.builder import GraphBuilder
from strategy.convert import Converter, lay_out
from strategy.cost import CostModel
from strategy.graph import Phase, Role, Value
from strategy.layout import Stages
from strategy.lowering.arrangement import Pipeline, arrange
from strategy.lowering.lower import lower
from strategy.lowering.memory import held_nbytes, memory_peak, peak_memory_bytes
from strategy.lowering.schedule import Schedule
from strategy.passes.training import Training
from strategy.placement import Placement
from strategy.sbp import B, NdSbp, Split
from strategy.signature import Signature
from strategy.tensor import Rate, TensorSpec
from tests.random_graphs import every_layout, random_case
from tests.small_plans import cluster, config_of, plan_by_rules, random_plan, request


@pytest.mark.parametrize("first", range(0, 60, 15))
def test_graphs_hold_no_more_than_planned(first: int) -> None:
    compared = 0
    for seed in range(first, first + 15):
        case = random_case(seed, axes=1 + seed % 2, stages=1 + (seed % 5 == 4), most=30)
        phases = [list(Phase).index(op.phase) for op in case.graph.ops]
        if phases != sorted(phases):
            continue
        for priced in itertools.islice(every_layout(case), 4):
            arrangement = arrange(case.graph, priced.layout, case.pipeline)
            planned = peak_memory_bytes(case.graph, case.stages, arrangement)
            found = simulate(lower(case.graph, priced.layout, case.pipeline, case.cost)).peak_memory_bytes
            assert all(f <= p for f, p in zip(found, planned, strict=True)), seed
            compared += 1
    assert compared >= 15


@pytest.mark.parametrize("backend", ["numpy", "cupy"])
@pytest.mark.parametrize("schedule", list(Schedule))
@pytest.mark.parametrize("degrees", [(2, 1, 1), (1, 2, 2), (2, 1, 2), (1, 3, 1)])
def test_plans_hold_no_more_than_planned(backend: str, schedule: str, degrees: tuple[int, int, int]) -> None:
    dp, tp, pp = degrees
    training = Training(global_batch=4 * dp, num_micro_batches=4)
    config = config_of(training, dp=dp, tp=tp, pp=pp, schedule=schedule)
    plan = random_plan(request(dp * tp * pp, training, backend=backend), config, random.Random(0))
    program = program_of(plan)
    found = simulate(program, steps=3).peak_memory_bytes
    assert all(f <= p for f, p in zip(found, plan.claims.peak_memory_bytes, strict=True))
    for rank, planned in enumerate(plan.claims.peak_memory_bytes):
        assert planned <= sum(register.nbytes for register in program.registers if register.rank == rank)


def test_collectives_that_overlap_make_copies_early() -> None:
    """The copy of `v` is there before the large tensors between `v` and its reader are gone."""
    builder = GraphBuilder()
    shapes = {"x": (64, 2), "narrow": (2, 32), "wide": (2, 64)}
    for name, shape in shapes.items():
        builder.declare(Value(name, TensorSpec(shape), Rate.MICRO_BATCH, Role.INPUT))
    builder.add("v", "matmul", ("x", "narrow"))
    builder.add("large", "matmul", ("x", "wide"))
    builder.add("larger", "gelu", ("large",))
    builder.add("sum", "reduce_sum", ("larger",), attrs={"axes": (0, 1), "keepdims": 0})
    builder.add("last", "gelu", ("v",))
    graph = builder.build()
    split, whole = (Split(0),), (B,)
    signatures = {op.name: _all(whole, len(op.inputs)) for op in graph.ops}
    signatures["v"] = Signature((split, whole), (split,))
    stages = Stages((Placement((0, 1), (2,), ("data",)),), dict.fromkeys(signatures, 0))
    cost = CostModel(cluster(2, backend="cupy"), {})
    layout = lay_out(graph, stages, signatures, Converter(cost, stages.placements))
    for overlaps in (False, True):
        pipeline = Pipeline(1, overlaps=overlaps)
        planned = peak_memory_bytes(graph, stages, arrange(graph, layout, pipeline))
        found = simulate(lower(graph, layout, pipeline, cost)).peak_memory_bytes
        assert all(f <= p for f, p in zip(found, planned, strict=True))


def _all(nd_sbp: NdSbp, inputs: int) -> Signature:
    return Signature((nd_sbp,) * inputs, (nd_sbp,))


def test_the_peak_names_its_tensors() -> None:
    training = Training(global_batch=4, num_micro_batches=2)
    plan = plan_by_rules(request(2, training), config_of(training, dp=2), ("data", "tensor"))
    stages = plan.layout.stages
    arrangement = arrange(plan.graph, plan.layout, plan.pipeline)
    for rank in range(2):
        peak = memory_peak(plan.graph, stages, arrangement, rank)
        assert peak.nbytes == plan.claims.peak_memory_bytes[rank]
        assert sum(nbytes for _, nbytes in peak.tensors) == peak.nbytes
        assert [nbytes for _, nbytes in peak.tensors] == sorted((n for _, n in peak.tensors), reverse=True)
        live = [t for t in arrangement.tensors if t.lifetime.begin <= peak.time < t.lifetime.end]
        assert peak.nbytes == sum(held_nbytes(plan.graph, stages, tensor, rank) for tensor in live)


@pytest.mark.parametrize(("schedule", "in_flight"), [("gpipe", [4, 4]), ("1f1b", [2, 1])])
def test_what_backward_needs_is_held_per_micro_batch_in_flight(schedule: str, in_flight: list[int]) -> None:
    training = Training(global_batch=4, num_micro_batches=4)
    plan = plan_by_rules(request(2, training), config_of(training, pp=2, schedule=schedule), ("data", "tensor"))
    arrangement = arrange(plan.graph, plan.layout, plan.pipeline)
    blocks = {tensor.name: tensor.lifetime.blocks for tensor in arrangement.tensors}
    assert [blocks[f"layers.{layer}.mlp.fc1.bias_add"] for layer in range(2)] == in_flight
