"""Buckets of gradients: what is in them, what they change, and what they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from executor.train import program_of
from simulator.simulate import simulate
from strategy.layout.arrangement import Action
from strategy.lowering.exchange_buckets import bucketable_bytes, in_buckets
from strategy.lowering.memory import memory_nbytes
from strategy.lowering.traffic import sent_bytes_per_step
from strategy.models.gpt import GptConfig
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.program.program import ActKind, Program, neighbours
from strategy.program.protocol import admit
from tests.support.long_parameters import long_but
from tests.support.small_plans import config_of, corpus, deduced_plan, reclaimed, request, train

MODEL = GptConfig(layers=3, width=8, heads=2, sequence=4, vocabulary=16)
ALL = 1 << 30


def plan_of(*, zero: int = 0, count: int = 1, overlaps: bool = False, tp: int = 1, nodes: bool = False) -> Plan:
    """Of two data-parallel ranks, whose gradients are exchanged one by one."""
    training = Training(global_batch=4 * count, num_micro_batches=count)
    config = config_of(training, dp=2, tp=tp, zero_stage=zero, zero_min_size=8)
    per_node = tp if nodes else 2 * tp
    asked = request(2 * tp, training, model=MODEL, per_node=per_node, overlaps=overlaps)
    return deduced_plan(asked, config, ("data", "tensor"))


def with_buckets(plan: Plan, nbytes: int, streams: int = 1) -> Plan:
    """The same layout, with another exchange, and the claims that follow."""
    return reclaimed(replace(plan, config=replace(plan.config, bucket_bytes=nbytes, exchange_streams=streams)))


def exchanges(plan: Plan) -> list[Action]:
    """Those of gradients, in order."""
    actions = in_buckets(plan.priced).arrangement.actions
    return [action for action in actions if action.members or action.kind in (ActKind.ALL_REDUCE, "reduce_scatter")]


def collectives(program: Program, rank: int = 0) -> int:
    return sum(actor.rank == rank and actor.kind.is_communication for actor in program.actors)


def test_all_gradients_of_a_pass_go_at_once_in_the_order_made() -> None:
    plain, fused = plan_of(), with_buckets(plan_of(), ALL)
    assert (collectives(program_of(plain)), collectives(program_of(fused))) == (83, 5)
    made = [op.name for op in plain.graph.ops for _ in op.outputs]
    tensors, producer = plain.priced.arrangement.tensors, plain.graph.producer
    for bucket in exchanges(fused):
        order = [made.index(producer[tensors[tensor].value].name) for tensor in bucket.reads]
        assert order == sorted(order)
    assert sorted(len(bucket.members) for bucket in exchanges(fused)) == [0, 2, 2, 39, 39]


def test_a_bucket_holds_so_many_bytes_and_what_is_larger_goes_alone() -> None:
    plan = plan_of()
    sizes = dict(zip([one.name for one in exchanges(plan)], bucketable_bytes(plan.priced), strict=True))
    assert len(sizes) == 83
    for most in (1, 100, 300, 1000):
        found = exchanges(with_buckets(plan, most))
        for one in found:
            held = [sizes[member.name] for member in one.members or (one,)]
            assert sum(held) <= most or len(held) == 1
        names = [member.name for one in found for member in one.members or (one,)]
        assert sorted(names) == sorted(sizes)
    assert len(exchanges(with_buckets(plan, 1))) == len(exchanges(plan))


@pytest.mark.parametrize(
    ("count", "overlaps", "zero"),
    long_but(
        [(*one, zero) for one in ((1, False), (2, False), (1, True), (2, True)) for zero in (0, 2, 3)],
        5,
    ),
)
def test_no_bit_of_a_training_changes(zero: int, count: int, overlaps: bool) -> None:
    plain = plan_of(zero=zero, count=count, overlaps=overlaps)
    text = corpus(MODEL.vocabulary)
    wanted = train(plain, text, steps=2)
    for nbytes, streams in ((300, 3), (ALL, 1)):
        plan = with_buckets(plain, nbytes, streams)
        assert any(action.members for action in exchanges(plan))
        found = train(plan, text, steps=2)
        assert [one.loss for one in found.reports] == [one.loss for one in wanted.reports]
        assert sum(found.sent_bytes) == sum(wanted.sent_bytes)
        assert found.sent_bytes == tuple(2 * sent for sent in plan.claims.sent_bytes_per_step)
        for mine, other in zip(found.trainers, wanted.trainers, strict=True):
            for variable in ("token", "layers.0.attn.qkv.weight", "layers.2.norm1.bias"):
                assert (mine.worker.read(variable) == other.worker.read(variable)).all()
        held = [trainer.worker.registers.nbytes for trainer in found.trainers]
        assert held == list(plan.claims.peak_memory_bytes)


@pytest.mark.long
def test_on_two_levels_too() -> None:
    plain = plan_of(tp=2, nodes=True, overlaps=True)
    text = corpus(MODEL.vocabulary)
    losses = {train(with_buckets(plain, nbytes), text, steps=2).reports[-1].loss for nbytes in (0, 300, ALL)}
    assert len(losses) == 1


def test_members_lie_next_to_each_other_and_nothing_else_lies_there() -> None:
    program = program_of(with_buckets(plan_of(), ALL))
    rows = [row for actor in program.actors for row in neighbours(actor)]
    assert len(rows) == 2 * (3 * 2 + 1)  # of two ranks' all-reduces, before and after, and of a reduce-scatter, after
    for row in rows:
        at = program.registers[row[0]].offsets[0]
        assert at % 64 == 0
        for register in (program.registers[index] for index in row):
            assert register.offsets == (at,)
            at += register.block_nbytes


def test_several_streams_take_turns() -> None:
    program = program_of(with_buckets(plan_of(overlaps=True), 300, 3))
    streams = {stream.name: len(stream.sequence) for stream in program.streams if stream.rank == 0}
    sent = [streams[name] for name in ("intra data", "intra data 1", "intra data 2")]
    assert sum(sent) == collectives(program)
    assert max(sent) - min(sent) <= 1
    admit(program)


def test_buckets_are_done_as_they_are_simulated() -> None:
    """By stream, the same acts in the same order."""
    plan = with_buckets(plan_of(overlaps=True), 300, 2)
    program = program_of(plan)
    done = train(plan, corpus(MODEL.vocabulary), steps=2, record=True)
    told = simulate(program, steps=2).timeline.records
    for number, stream in enumerate(program.streams):
        if not stream.dynamic:
            records = done.trainers[stream.rank].worker.records
            executed = [(one[0], one[2]) for one in sorted(records, key=lambda one: one[6]) if one[1] == number]
            seen = sorted((one for one in told if one.stream == number), key=lambda one: (one.start_ns, one.end_ns))
            assert executed == [(one.actor, one.number) for one in seen]


def test_buckets_save_latency_and_no_bytes() -> None:
    plain = plan_of()
    fused = with_buckets(plain, ALL)
    saved_s = simulate(program_of(plain)).step_time_s - simulate(program_of(fused)).step_time_s
    latency_s = plain.cluster.intra.latency_s
    assert saved_s > 30 * latency_s
    assert sum(sent_bytes_per_step(program_of(fused))) == sum(sent_bytes_per_step(program_of(plain)))
    assert fused.claims.peak_memory_bytes == memory_nbytes(program_of(fused))
