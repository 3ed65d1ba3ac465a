"""Prices as work on links: alone an act takes its price, beside another on the same port longer."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from executor.train import program_of
from simulator.conservation import act_alone_ns
from simulator.engine import run
from strategy.cluster import find_cluster
from strategy.cost import Coefficients, CostModel, coefficient_key, port_rates
from strategy.measurement import Features
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.program import ActKind, Actor, Program, Stream
from strategy.units import to_ns
from tests.small_plans import cluster, config_of, plan_by_rules, request

rates = st.floats(0, 1e-6, allow_nan=False)


@given(
    rates, rates, st.integers(0, 10**10), st.integers(1, 8), st.sampled_from(["intra", "inter"]), st.floats(1e3, 1e12)
)
def test_alone_an_act_takes_its_price(
    fixed_s: float, s_per_byte: float, nbytes: int, hops: int, level: str, bytes_per_s: float
) -> None:
    features = Features("all_reduce", 0, nbytes, hops, level)
    small = cluster(8, per_node=4)
    found = replace(
        small, intra=replace(small.intra, bytes_per_s=bytes_per_s), inter=replace(small.inter, bytes_per_s=bytes_per_s)
    )
    cost = CostModel(found, {coefficient_key(features): Coefficients(fixed_s, 0.0, s_per_byte)})
    actor = Actor("reduce", 3, ActKind.ALL_REDUCE, work=cost.work(features, 3, [nbytes]))
    program = Program(8, (), (actor,), (Stream(3, "comm", (0,)),), port_rates(found, 8))
    # One byte of the port more or less, and the rounding of both to nanoseconds.
    assert act_alone_ns(program, actor) == pytest.approx(to_ns(cost.seconds(features)), abs=2 + 1e9 / bytes_per_s)


def test_what_sends_nothing_waits_the_latency() -> None:
    cost = CostModel(cluster(2), {})
    assert cost.work(Features("transfer", 0, 10**6, 1, "intra"), 1, [0]).demands == ()
    assert cost.work(Features("matmul", 10**6, 10**6), 1, ()).demands == ()


def test_transfers_of_a_stage_share_its_port() -> None:
    """Under 1F1B the middle stage of three sends forward and backward at once: that takes longer than alone."""
    training = Training(global_batch=8, num_micro_batches=8)
    asked = request(3, training, backend="cupy")
    slow = replace(asked.cost.cluster.intra, bytes_per_s=1e6)
    asked = replace(asked, cost=replace(asked.cost, cluster=replace(asked.cost.cluster, intra=slow)))
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


def test_products_in_halves_have_a_price_of_their_own() -> None:
    """Half the time by an A100's data sheet; a calibration of float32 says nothing of bfloat16."""
    single, half = Features("matmul", 10**12, 10**6), Features("matmul", 10**12, 10**6, half="bfloat16")
    assert coefficient_key(half) == "matmul:bfloat16" != coefficient_key(single)
    cost = CostModel(find_cluster("dgx-a100"), {})
    launch_s, memory_s = cost.cluster.device.launch_s, 10**6 / cost.cluster.device.memory_bytes_per_s
    assert cost.seconds(half) - launch_s - memory_s == pytest.approx((cost.seconds(single) - launch_s - memory_s) / 2)
    fitted = CostModel(cost.cluster, {"matmul": Coefficients(1.0, 0.0, 0.0)})
    assert (fitted.seconds(single), fitted.seconds(half)) == (1.0, cost.seconds(half))


def test_a_plan_in_halves_is_faster_where_the_data_sheet_says_so() -> None:
    model = GptConfig(layers=2, width=512, heads=8, sequence=128, vocabulary=512)
    times = []
    for precision in Precision:
        training = Training(global_batch=8, precision=precision)
        asked = replace(request(1, training, model=model), cost=CostModel(find_cluster("v100-ib100"), {}))
        times.append(plan_by_rules(asked, config_of(training), ()).claims.objective_s)
    full, bf16, fp16 = times
    assert fp16 < 0.6 * full
    assert bf16 > 0.9 * full, "a V100 has no units for it; what it saves in bytes, casts cost"
