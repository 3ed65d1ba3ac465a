"""Prices as work on links: alone an act takes its price, beside another on the same port longer."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.train import program_of
from simulator.conservation import act_alone_ns
from simulator.engine import run
from simulator.simulate import simulate
from strategy.base.units import to_ns
from strategy.comm.boxing import step_between
from strategy.cost.communication import step_features
from strategy.cost.cost import CostModel, op_features, port_rates
from strategy.cost.data_sheet import Coefficients
from strategy.cost.measurement import CostKey, Features
from strategy.graph.builder import GraphBuilder
from strategy.graph.signature import op_signatures
from strategy.hardware.cluster import Host
from strategy.hardware.presets import PRESETS, find_cluster
from strategy.layout.arrangement import Held, Lifetime
from strategy.layout.layout import Stages
from strategy.lowering.lifetime_peak import held_nbytes
from strategy.lowering.memory import aligned
from strategy.models.gpt import GptConfig
from strategy.nn.tracer import Tracer
from strategy.passes.mixed_precision import Precision
from strategy.passes.planned import planned_graph
from strategy.passes.training import Training
from strategy.program.program import ActKind, Actor, Program, Stream
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import Split
from strategy.sbp.tensor import DType, TensorSpec
from tests.support.small_plans import cluster, config_of, plan_by_rules, request

rates = st.floats(0, 1e-6, allow_nan=False)


@given(
    rates,
    rates,
    st.integers(0, 10**10),
    st.integers(1, 8),
    st.sampled_from(["intra", "inter"]),
    st.integers(10**3, 10**12),
)
def test_alone_an_act_takes_its_price(
    fixed_s: float, s_per_byte: float, nbytes: int, hops: int, level: str, bytes_per_s: int
) -> None:
    features = Features("all_reduce", 0, nbytes, hops, level)
    small = cluster(8, per_node=4)
    found = replace(
        small, intra=replace(small.intra, bytes_per_s=bytes_per_s), inter=replace(small.inter, bytes_per_s=bytes_per_s)
    )
    cost = CostModel(found, {features.key: Coefficients(fixed_s, 0.0, s_per_byte)})
    actor = Actor("reduce", 3, ActKind.ALL_REDUCE, work=cost.work(features, 3, [nbytes]))
    program = Program(8, (), (actor,), (Stream(3, "comm", (0,)),), port_rates(found, 8))
    # One byte of the port more or less, and the rounding of both to nanoseconds.
    assert act_alone_ns(program, actor) == pytest.approx(to_ns(cost.seconds(features)), abs=2 + 1e9 / bytes_per_s)


def test_without_gpu_direct_what_leaves_a_node_passes_the_host() -> None:
    """Device to host, network, host to device, piece by piece: the slowest link's time, every link's latency."""
    direct = CostModel(cluster(4, per_node=2), {})
    host = Host(2**40, 1e11, 1e12, direct.cluster.inter.bytes_per_s / 2, 7e-6)
    direct = replace(direct, cluster=replace(direct.cluster, host=host))
    staged = replace(direct, cluster=replace(direct.cluster, gpu_direct=False))
    far, near = (Features("transfer", 0, 10**8, 1, level) for level in ("inter", "intra"))
    assert staged.work(near, 1, [10**8]) == direct.work(near, 1, [10**8])
    nbytes = dict(staged.work(far, 1, [10**8]).demands)
    assert nbytes == {"to_host:1": 10**8, "inter:1": 10**8, "to_device:1": 10**8}
    assert dict(direct.work(far, 1, [10**8]).demands) == {"inter:1": 10**8}
    late_s = 2 * host.link_latency_s
    assert staged.seconds(far) - late_s == pytest.approx(10**8 / host.link_bytes_per_s, rel=1e-3)
    quick = replace(staged, cluster=replace(staged.cluster, host=replace(host, link_bytes_per_s=1e15)))
    assert quick.seconds(far) == pytest.approx(direct.seconds(far) + late_s)


def test_a_flat_collective_between_nodes_uses_the_links_inside_them_too() -> None:
    """It takes its price alone; what shares a node's links with it waits for as much of them as it moves."""
    cost = CostModel(cluster(4, per_node=2), {})
    far, near = (Features("all_reduce", 0, 10**8, 3, level) for level in ("inter", "intra"))
    whole, apart = (cost.work(far, 1, [10**8], passes_inside=inside) for inside in (True, False))
    assert dict(whole.demands) == dict(apart.demands) | {"intra:1": 10**8}
    assert whole.latency_ns == apart.latency_ns
    assert cost.work(near, 1, [10**8], passes_inside=True) == cost.work(near, 1, [10**8])
    beside = Actor("near", 1, ActKind.ALL_REDUCE, work=cost.work(near, 1, [10**8]))
    ends_s = []
    for work in (apart, whole):
        actors = (beside, Actor("far", 1, ActKind.ALL_REDUCE, work=work))
        streams = tuple(Stream(1, actor.name, (index,)) for index, actor in enumerate(actors))
        timeline = simulate(Program(4, (), actors, streams, port_rates(cost.cluster, 4)), steps=1).timeline
        ends_s.append([record.end_ns / 1e9 for record in timeline.records])
    (alone_s, far_s), (shared_s, same_s) = ends_s
    assert far_s == same_s
    assert shared_s == pytest.approx(alone_s + 10**8 / cost.cluster.intra.bytes_per_s, rel=1e-3)


def test_without_gpu_direct_offloading_and_sending_share_the_link_to_the_host() -> None:
    found = cluster(2, per_node=1)
    host = Host(2**40, 1e11, 1e12, found.inter.bytes_per_s, 1e-6)
    far, copy = Features("transfer", 0, 10**8, 1, "inter"), Features("to_host", 0, 10**8)
    ends_s = {}
    for gpu_direct in (True, False):
        cost = CostModel(replace(found, host=host, gpu_direct=gpu_direct), {})
        actors = (
            Actor("send", 0, ActKind.TRANSFER, work=cost.work(far, 0, [10**8])),
            Actor("copy", 0, ActKind.COPY, work=cost.work(copy, 0, ())),
        )
        streams = (Stream(0, "comm", (0,)), Stream(0, "copy", (1,)))
        program = Program(2, (), actors, streams, port_rates(cost.cluster, 2))
        ends_s[gpu_direct] = simulate(program, steps=1).makespan_s
    assert ends_s[False] / ends_s[True] == pytest.approx(2.0, rel=0.01)


@pytest.mark.parametrize("nbytes", [10**8, 10**3])
def test_computation_beside_communication_slows_down_and_alone_it_does_not(nbytes: int) -> None:
    """By a share of all the time of that, whether it moves bytes or waits for the first of them."""
    found = cluster(2, per_node=2)
    slowed = CostModel(replace(found, device=replace(found.device, slowdown=0.2)), {})
    talk, product = Features("all_reduce", 0, nbytes, 1, "intra"), Features("matmul", 10**9, 10**6)
    compute = Actor("compute", 0, ActKind.COMPUTE, work=slowed.work(product, 0, ()))
    moving = Actor("move", 0, ActKind.ALL_REDUCE, work=slowed.work(talk, 0, [nbytes]))
    alone_ns = [to_ns(slowed.seconds(features)) for features in (product, talk)]
    rates = port_rates(slowed.cluster, 2)

    def makespan_ns(*actors: Actor) -> int:
        streams = tuple(Stream(0, actor.name, (index,)) for index, actor in enumerate(actors))
        return round(simulate(Program(2, (), actors, streams, rates), steps=1).makespan_s * 1e9)

    assert [makespan_ns(compute), makespan_ns(moving)] == pytest.approx(alone_ns, abs=3)
    assert alone_ns[0] > 2 * alone_ns[1]
    late_ns = makespan_ns(compute, moving) - alone_ns[0]
    assert late_ns == pytest.approx(0.2 * alone_ns[1], rel=0.01)
    assert makespan_ns(compute) == makespan_ns(replace(compute, work=CostModel(found, {}).work(product, 0, ())))


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_links_inside_of_the_nodes_of_presets_are_the_faster_ones(name: str) -> None:
    several = replace(find_cluster(name), nodes=4)
    assert CostModel(several, {}).is_faster_inside()
    turned = replace(several, intra=several.inter, inter=several.intra)
    assert not CostModel(turned, {}).is_faster_inside()
    assert CostModel(replace(turned, nodes=1), {}).is_faster_inside()  # nothing goes between nodes


@pytest.mark.parametrize("faster", ["intra", "inter"])
def test_wherever_axes_lie_no_collective_takes_more(faster: str) -> None:
    """Where links inside are not the faster ones it is what the fastest takes, else what each takes."""
    rng = random.Random(faster)
    four = replace(find_cluster("dgx-a100"), nodes=4)
    four = replace(four, intra=four.inter, inter=four.intra) if faster == "inter" else four
    slow = {CostKey(ActKind.ALL_TO_ALL, level="intra"): Coefficients(1e-4, 0.0, 1e-9)}
    for cost in (CostModel(four, {}), CostModel(four, slow)):
        anywhere, less = cost.wherever_axes_lie(), 0
        assert (anywhere == cost) is cost.is_faster_inside() is not anywhere.on_any_link
        for _ in range(200):
            kind = rng.choice([kind for kind in ActKind if kind.is_communication])
            inside = rng.random() < 0.5
            hops = rng.randint(1, four.devices_per_node - 1 if inside else four.devices - 1)
            act = Features(kind, 0, rng.randrange(1 << 30), hops, "intra" if inside else "inter")
            assert anywhere.seconds(act) <= cost.seconds(act)
            less += anywhere.seconds(act) < cost.seconds(act)
        assert (less > 20) is anywhere.on_any_link
    assert CostModel(four, {}).wherever_axes_lie(in_order=False).on_any_link
    act = Features("matmul", 10**9, 10**6)
    assert anywhere.seconds(act) == cost.seconds(act)


def test_what_was_measured_says_which_links_are_the_faster_ones() -> None:
    """One kind is enough: a gather inside, measured to be slower than anything between nodes."""
    slow = {CostKey(ActKind.ALL_GATHER, level="intra"): Coefficients(1e-6, 0.0, 1e-6)}
    assert not CostModel(replace(find_cluster("dgx-a100"), nodes=4), slow).is_faster_inside()


def test_what_sends_nothing_waits_the_latency() -> None:
    cost = CostModel(cluster(2), {})
    assert cost.work(Features("transfer", 0, 10**6, 1, "intra"), 1, [0]).demands == ()
    assert cost.work(Features("matmul", 10**6, 10**6), 1, ()).demands == ()


def test_small_acts_take_their_launch_and_small_messages_their_latency() -> None:
    """A floor, then a rate: what a link carries per second grows with the message, up to its bandwidth."""
    cost = CostModel(find_cluster("dgx-a100:2"), {})
    device, link = cost.cluster.device, cost.cluster.inter
    assert cost.seconds(Features("add", 0, 8)) == pytest.approx(device.launch_s, rel=1e-3)
    rates = []
    for nbytes in (8, 10**4, 10**6, 10**8, 10**10):
        features = Features("all_reduce", 0, nbytes, 15, "inter")
        assert cost.seconds(features) > 15 * link.latency_s
        rates.append(nbytes / cost.seconds(features))
    assert rates == sorted(rates)
    assert rates[0] < 1e-4 * link.bytes_per_s
    assert 0.9 * link.bytes_per_s < rates[-1] < link.bytes_per_s


def test_transfers_of_a_stage_share_its_port() -> None:
    """Under 1F1B the middle stage of three sends forward and backward at once: that takes longer than alone."""
    training = Training(global_batch=8, num_micro_batches=8)
    asked = request(3, training, backend="cupy")
    slow = replace(asked.cost.cluster.intra, bytes_per_s=2e5)
    device = replace(asked.cost.cluster.device, flop_per_s=1e12)
    asked = replace(asked, cost=replace(asked.cost, cluster=replace(asked.cost.cluster, intra=slow, device=device)))
    program = program_of(plan_by_rules(asked, config_of(training, pp=3), ()))
    timeline = run(program, 2).timeline
    slower = set()
    for record in timeline.records:
        actor, took_ns = program.actors[record.actor], record.end_ns - record.start_ns
        if actor.kind is ActKind.TRANSFER and actor.work.demands:
            assert took_ns >= act_alone_ns(program, actor)
            if took_ns > act_alone_ns(program, actor) + 1:
                slower.add(actor.rank)
    assert 1 in slower


def routed(imbalance: float) -> GraphBuilder:
    """16 tokens of width 64, two of eight experts each, through one product."""
    tracer = Tracer()
    x = tracer.input("x", TensorSpec((4, 4, 64)))
    chosen = tracer.input("chosen", TensorSpec((4, 4, 2), DType.INT32))
    w = tracer.input("w", TensorSpec((8, 64, 32)))
    rows = x.apply("rows", "dropless_dispatch", chosen, attrs={"experts": 8, "imbalance": imbalance, "room": 0.0})
    rows.apply("up", "grouped_matmul", w, attrs={"transpose": 0})
    return tracer.graph


@pytest.mark.parametrize("imbalance", [1.0, 1.5])
def test_ragged_tensors_are_priced_by_the_rows_expected_and_held_for_the_worst_case(imbalance: float) -> None:
    """On four ranks with two experts each 8 rows are expected, or half as many again; all 32 may come to one rank."""
    graph, ranks, small = routed(imbalance).build(), 4, cluster(4)
    placement = Placement(tuple(range(ranks)), (ranks,), ("expert",))
    rows, up = graph.values["rows"].spec, graph.by_name["up"]
    by_tokens, by_experts = (Split(1),), (Split(0),)
    signature = next(s for s in op_signatures(graph, up, (ranks,)) if s.inputs[0] == by_experts)
    expected = int(8 * imbalance)
    nbytes = 4 * (expected * (64 + 32) + 2 * 64 * 32)
    wanted = Features("grouped_matmul", 2 * expected * 64 * 32, nbytes, product=(expected // 2, 32, 64, 2))
    assert op_features(graph, up, signature, (ranks,)) == wanted
    step = step_between(by_tokens, by_experts)
    assert step is not None
    sent = step_features(small, rows, by_tokens, step, placement)
    assert (sent.kind, sent.nbytes) == ("all_to_all", expected * 3 // 4 * (8 + 4 * 64))
    held = Held("rows", "rows", 0, by_experts, Lifetime(0, 1, 1))
    stages = Stages((placement,), {op.name: 0 for op in graph.ops})
    assert {held_nbytes(graph, stages, held, rank) for rank in range(ranks)} == {aligned(8 + 32 * (8 + 4 * 64))}


def test_products_in_halves_have_a_price_of_their_own() -> None:
    """Half the time by an A100's data sheet; a calibration of float32 says nothing of bfloat16."""
    single, half = Features("matmul", 10**12, 10**6), Features("matmul", 10**12, 10**6, half="bfloat16")
    assert half.key == CostKey("matmul", "bfloat16") != single.key
    cost = CostModel(find_cluster("dgx-a100"), {})
    assert cost.seconds(half) == pytest.approx(cost.seconds(single) / 2, rel=0.01)
    fitted = CostModel(cost.cluster, {CostKey("matmul"): Coefficients(1.0, 0.0, 0.0)})
    assert (fitted.seconds(single), fitted.seconds(half)) == (1.0, cost.seconds(half))


def test_ops_cost_under_all_signatures_at_once_what_they_cost_under_each() -> None:
    """Where a kind was measured, and where the data sheet says what it takes."""
    training = Training(global_batch=8, precision=Precision.BF16)
    graph = planned_graph(request(1, training).model, training, config_of(training))
    measured = {CostKey("add"): Coefficients(1e-6, 0.0, 1e-12)}
    costs, mesh = [], (2, 2)
    for name, coefficients in (("dgx-a100", {}), ("v100-ib100", measured)):
        cost = CostModel(find_cluster(name), coefficients, 1e-7)
        for op in graph.ops:
            signatures = op_signatures(graph, op, mesh)
            each = [cost.seconds(op_features(graph, op, signature, mesh)) for signature in signatures]
            assert cost.all_op_seconds(graph, [(op, signatures)], mesh) == [each], op.name
            costs += each
    assert len(set(costs)) > 20


def test_a_plan_in_halves_is_faster_where_the_data_sheet_says_so() -> None:
    model = GptConfig(layers=2, width=512, heads=8, sequence=128, vocabulary=512)
    times = []
    for precision in (Precision.FULL, Precision.BF16, Precision.FP16):
        training = Training(global_batch=8, precision=precision)
        asked = replace(request(1, training, model=model), cost=CostModel(find_cluster("v100-ib100"), {}))
        times.append(plan_by_rules(asked, config_of(training), ()).claims.objective_s)
    full, bf16, fp16 = times
    assert fp16 < 0.6 * full
    assert bf16 > 0.9 * full, "a V100 has no units for it; what it saves in bytes, casts cost"
