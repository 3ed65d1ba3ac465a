"""Feeds: credits alone say how far readers and decoders are ahead, and the slowest of the chain sets the pace."""

from __future__ import annotations

import pytest

from simulator.simulate import simulate
from strategy.program.builder import ProgramBuilder
from strategy.program.feed import fed, feed_of
from strategy.program.program import ActKind, Program
from strategy.program.protocol import admit


def trained(compute_ns: int, *, micro_batches: int = 2, ranks: int = 1) -> Program:
    """Every rank loads micro-batches and computes on them."""
    builder = ProgramBuilder()
    for rank in range(ranks):
        batch = builder.register("batch", rank, blocks=2)
        load = builder.act("load batch", rank, 0, writes=[batch], acts=micro_batches, kind=ActKind.LOAD)
        compute = builder.act("compute", rank, compute_ns, reads=[batch], acts=micro_batches)
        builder.stream(rank, "load", [load], dynamic=True)
        builder.stream(rank, "compute", [compute] * micro_batches)
    return builder.freeze(ranks, num_micro_batches=micro_batches)


@pytest.mark.parametrize(
    ("read_ns", "decode_ns", "step_ns"),
    [(0, 0, 2_000), (350, 0, 2_000), (350, 350, 2_000), (1_000, 1_000, 2_000), (1_500, 200, 3_000), (0, 4_000, 8_000)],
)
def test_the_slowest_of_the_chain_sets_the_pace(read_ns: int, decode_ns: int, step_ns: int) -> None:
    """Two loaders at 35 % of the compute take no time at all: they run ahead across steps."""
    program = fed(trained(1_000), read_ns=read_ns, decode_ns=decode_ns)
    admit(program)
    assert simulate(program).step_time_s == pytest.approx(step_ns * 1e-9)


@pytest.mark.parametrize(("blocks", "read"), [(1, 4), (2, 6), (3, 8)])
def test_a_feed_is_ahead_by_its_blocks(blocks: int, read: int) -> None:
    """While the first is computed on, in one of two blocks: so many are read that all registers are full."""
    program = fed(trained(1_000, micro_batches=12), blocks=blocks, read_ns=1, decode_ns=1)
    timeline = simulate(program).timeline
    reader = next(index for index, actor in enumerate(program.actors) if actor.name == "read load batch")
    starts = [record.start_ns for record in timeline.records if record.actor == reader]
    assert sum(start < 900 for start in starts) == read


def test_the_feed_of_a_rank_is_a_program_of_its_own() -> None:
    program = feed_of(trained(1_000, ranks=3), 1, blocks=4)
    assert {actor.rank for actor in program.actors} == {1}
    assert [actor.name for actor in program.actors] == ["load batch", "read load batch", "decode load batch"]
    assert {register.blocks for register in program.registers} == {4}
    assert [stream.name for stream in program.streams] == ["load", "read load batch", "decode load batch"]
    admit(program)


def test_a_rank_that_loads_nothing_has_no_feed() -> None:
    builder = ProgramBuilder()
    builder.stream(0, "compute", [builder.act("compute", 0, 1)])
    assert feed_of(builder.freeze(1), 0).actors == ()
