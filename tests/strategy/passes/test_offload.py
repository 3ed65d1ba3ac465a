"""Offload: the same training in less of the device's memory; what leaves comes back in time, and not before."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from executor.train import program_of
from simulator.simulate import simulate
from strategy.base.budget import Budget
from strategy.base.errors import InputError
from strategy.graph.graph import Graph, Phase, Role
from strategy.graph.weight_gradients import weight_gradients
from strategy.layout.config import Offload, Recompute
from strategy.models import Model
from strategy.models.mlp import MlpConfig
from strategy.passes.offload import offload_activations, offload_optimizer
from strategy.passes.recompute import recompute
from strategy.passes.training import Training, training_graph
from strategy.passes.updates import Optimizer
from strategy.plan.plan import Plan
from strategy.plan.verify import verify
from strategy.program.program import ActKind
from strategy.sbp.placement import Space
from strategy.sbp.tensor import DType, Rate
from strategy.search.search import search
from strategy.space.request import Pins
from tests.strategy.passes.test_recompute import after_two_steps
from tests.support.long_parameters import long_but
from tests.support.megatron import MegatronConfig
from tests.support.small_plans import (
    MODEL,
    config_of,
    corpus,
    deduced_plan,
    exchange_left_alone,
    request,
    simulated,
    train,
)

MEGATRON = MegatronConfig(layers=2, width=8, heads=2, sequence=4, vocabulary=16, dropout=0.25)


@cache
def graph_of(model: Model = MODEL, optimizer: Optimizer = Optimizer.ADAMW) -> Graph:
    return training_graph(model, Training(4, 2, dtype=DType.FLOAT64, max_norm=0.5, lr=0.01, optimizer=optimizer))


def assert_alike(graph: Graph, kept: Graph) -> None:
    wanted, found = after_two_steps(kept), after_two_steps(graph)
    assert list(wanted) == list(found)
    for name in wanted:
        assert np.array_equal(found[name], wanted[name]), name


@pytest.mark.parametrize("kind", list(Recompute))
def test_activations_wait_on_the_host_and_nothing_else_changes(kind: Recompute) -> None:
    kept = graph_of(MEGATRON)
    graph = offload_activations(recompute(kept, kind))
    assert_alike(graph, kept)
    for op in graph.ops:
        if op.phase is Phase.BACKWARD and op.layer is not None:
            for name in op.inputs:
                producer = graph.producer.get(name)
                assert producer is None or producer.phase is not Phase.FORWARD or op.kind == "to_device", (op, name)
    moved = [name for name, value in graph.values.items() if value.space is Space.HOST]
    assert {graph.producer[name].kind for name in moved} == {"to_host"}
    assert not any(op.kind == "copy" for op in graph.ops)  # what comes from the host needs no fence


def test_the_gradient_of_a_weight_is_put_off_whatever_comes_back() -> None:
    """Nothing that comes from the host waits for it."""
    kept = graph_of()
    apart, travels = (weight_gradients(graph) for graph in (kept, offload_activations(kept)))
    assert apart <= travels
    assert {name for name in travels - apart if not name.endswith(":to_device")} == set()


def test_with_full_recompute_the_inputs_of_layers_travel_alone() -> None:
    graph = offload_activations(recompute(graph_of(), Recompute.FULL))
    assert [op.inputs[0] for op in graph.ops if op.kind == "to_host"] == ["embed_position", "layers.0.residual2"]


def test_a_copy_leaves_after_the_last_reader_and_comes_back_ahead_of_the_layers_backward_pass() -> None:
    graph = offload_activations(graph_of(), ("*.gelu",))
    order = {op.name: index for index, op in enumerate(graph.ops)}
    for layer in range(2):
        name = f"layers.{layer}.mlp.gelu"
        assert order[f"{name}:to_host"] == order[f"layers.{layer}.mlp.fc2.matmul"] + 1
        first = next(op for op in graph.ops if op.phase is Phase.BACKWARD and op.layer == layer)
        assert first.name == f"{name}:to_device"
        (waits,) = first.after
        assert graph.producer[waits].layer != layer
        assert graph.values[waits].rate is Rate.MICRO_BATCH
        assert any(reader.kind != "accumulate" for reader in graph.consumers[waits]), "a schedule may put it off"
    assert sum(op.kind in ("to_host", "to_device") for op in graph.ops) == 4


@pytest.mark.parametrize("optimizer", list(Optimizer))
def test_two_copies_per_parameter_and_all_state_on_the_host(optimizer: Optimizer) -> None:
    kept = graph_of(optimizer=optimizer)
    graph = offload_optimizer(kept)
    assert_alike(graph, kept)
    assert all(value.space is Space.HOST for value in graph.with_role(Role.VARIABLE))
    elements: Counter[str] = Counter()
    for op in graph.ops:
        if op.kind in ("to_host", "to_device"):
            elements[op.kind] += graph.values[op.inputs[0]].spec.size
        if op.updates:
            assert graph.on_host(op)
    parameters = sum(value.spec.size for value in kept.with_role(Role.VARIABLE) if ":" not in value.name)
    assert elements["to_device"] == parameters
    scalars = 2 * (graph.num_layers + 1 + (optimizer is Optimizer.MUON))  # factor and rate, once for every layer
    assert parameters <= elements["to_host"] <= parameters + scalars


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (("*.geluu",), "matches no activation that waits.*geluu"),
        (("embed",), "matches no activation"),
        (("logits:dx",), "no"),
    ],
)
def test_patterns_that_match_nothing_are_refused(patterns: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        offload_activations(graph_of(), patterns)


def laid_out(offload: Offload, *, backend: str = "numpy", **degrees: int) -> Plan:
    training = Training(4, 2, dtype=DType.FLOAT64)
    asked = request(degrees.get("pp", 1) * 2, training, model=MEGATRON, backend=backend)
    return deduced_plan(asked, config_of(training, tp=2, offload=offload, **degrees), ("data", "tensor"))


@pytest.mark.slow
@pytest.mark.parametrize("degrees", long_but([{}, {"pp": 2}], 0), ids=["tensor", "pipeline"])
def test_memory_moves_to_the_host_and_losses_do_not_change(degrees: dict[str, int]) -> None:
    plans = {kind: laid_out(kind, **degrees) for kind in Offload}
    assert [problem for plan in plans.values() for problem in verify(plan)] == []
    peaks = {kind: plan.claims.peak_memory_bytes[0] for kind, plan in plans.items()}
    assert peaks[Offload.ALL] < min(peaks[Offload.ACTIVATIONS], peaks[Offload.OPTIMIZER])
    assert max(peaks[Offload.ACTIVATIONS], peaks[Offload.OPTIMIZER]) < peaks[Offload.NONE]
    assert max(plans[Offload.NONE].claims.peak_host_memory_bytes) == 0
    wanted: list[float] = []
    for plan in plans.values():
        trained = train(plan, corpus(16), steps=2)
        losses = [report.loss for report in trained.reports]
        assert losses == pytest.approx(wanted or losses, rel=1e-12)
        wanted = losses
        held = tuple(trainer.worker.registers.host_nbytes for trainer in trained.trainers)
        assert held == plan.claims.peak_host_memory_bytes


def test_the_host_holds_what_waits() -> None:
    """Parameter and both moments of every rank's pieces are state on the host; gradients and scalars come and go."""
    plan = laid_out(Offload.OPTIMIZER)
    program = program_of(plan)
    state = [r for r in program.registers if r.initial]
    assert {register.space for register in state} == {Space.HOST}
    nbytes = sum(register.nbytes for register in state if register.rank == 0)
    assert nbytes <= plan.claims.peak_host_memory_bytes[0] <= 2 * nbytes


@pytest.mark.parametrize("pp", [1, 2])
def test_copies_run_beside_computation_and_none_comes_back_early(pp: int) -> None:
    plan = laid_out(Offload.ACTIVATIONS, backend="cupy", pp=pp)
    program = program_of(plan)
    streams = {stream.name for stream in program.streams}
    assert {"d2h", "h2d"} <= streams
    timeline = simulate(program, steps=1).timeline
    graph, stage_of = plan.graph, plan.layout.stages.stage_of
    ends: dict[tuple[str, int, int], int] = {}
    beside = 0
    busy = [(r.start_ns, r.end_ns) for r in timeline.records if timeline.actors[r.actor].kind is ActKind.COMPUTE]
    for record in timeline.records:
        label = timeline.actors[record.actor]
        ends[label.name, label.rank, record.number] = record.end_ns
    for record in timeline.records:
        label = timeline.actors[record.actor]
        if label.kind is not ActKind.COPY:
            continue
        beside += any(begin < record.end_ns and record.start_ns < end for begin, end in busy)
        op = graph.by_name[label.name]
        for name in op.after:
            waited = graph.producer[name]
            if stage_of[waited.name] == stage_of[op.name]:
                assert record.start_ns >= ends[waited.name, label.rank, record.number]
    assert beside


@pytest.mark.slow
@exchange_left_alone()
def test_what_nothing_else_makes_fit_is_offloaded() -> None:
    training = Training(4, dtype=DType.FLOAT64)
    asked = replace(request(1, training, model=MlpConfig(2, 8, 64, 4)), pins=Pins(micro_batch=4))
    roomy = search(asked, simulate=simulated, budget=Budget.of(60)).plan
    assert roomy.config.offload is Offload.NONE
    limit = roomy.claims.peak_memory_bytes[0] // 2  # less than parameters and moments
    found = search(replace(asked, memory_limit_bytes=limit), simulate=simulated, budget=Budget.of(60))
    assert found.plan.config.offload in (Offload.OPTIMIZER, Offload.ALL)
    assert found.plan.claims.peak_memory_bytes[0] <= limit
    assert verify(found.plan) == []


def test_a_cluster_without_a_host_is_told() -> None:
    training = Training(4)
    asked = request(1, training)
    cost = replace(asked.cost, cluster=replace(asked.cost.cluster, host=None))
    asked = replace(asked, cost=cost, pins=Pins(offload=Offload.OPTIMIZER))
    with pytest.raises(InputError, match=r"no host to offload to.*\[host\]"):
        search(asked, simulate=simulated, budget=Budget.of(30))


def test_a_host_that_is_too_small_is_noticed() -> None:
    plan = laid_out(Offload.ALL)
    assert plan.cluster.host is not None
    small = replace(plan.cluster, host=replace(plan.cluster.host, memory_bytes=100))
    problems = verify(replace(plan, cluster=small, cost=replace(plan.cost, cluster=small)))
    assert any("host memory" in problem for problem in problems)
