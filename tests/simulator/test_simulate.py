"""Pipelines against published bubbles and memory; the definitions of the figures; memory over time."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from experiments.bench import simulator_bench as benchmark
from simulator.memory_timeline import live_peaks_nbytes, memory_timelines, piece_lives
from simulator.pipelines import pipeline
from simulator.simulate import simulate
from strategy.base.errors import DeadlockError
from strategy.lowering.memory import allocated, memory_nbytes
from strategy.program.program import ActKind, Actor, OpTask, Port, Program, Register, Stream, Work
from strategy.program.timeline import Timeline, by_stream, step_time_ns
from strategy.sbp.tensor import DType
from tests.support.random_programs import live_programs

GPIPE = """
F0 F1 F2 F3 F4 F5 F6 F7 .  .  .  .  .  .  B0 B1 B2 B3 B4 B5 B6 B7
.  F0 F1 F2 F3 F4 F5 F6 F7 .  .  .  .  B0 B1 B2 B3 B4 B5 B6 B7 .
.  .  F0 F1 F2 F3 F4 F5 F6 F7 .  .  B0 B1 B2 B3 B4 B5 B6 B7 .  .
.  .  .  F0 F1 F2 F3 F4 F5 F6 F7 B0 B1 B2 B3 B4 B5 B6 B7 .  .  .
"""

ONE_FORWARD_ONE_BACKWARD = """
F0 F1 F2 F3 .  .  .  B0 F4 B1 F5 B2 F6 B3 F7 B4 .  B5 .  B6 .  B7
.  F0 F1 F2 .  .  B0 F3 B1 F4 B2 F5 B3 F6 B4 F7 B5 .  B6 .  B7 .
.  .  F0 F1 .  B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 .  B7 .  .
.  .  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 F7 B7 .  .  .
"""


def table(timeline: Timeline) -> str:
    """What each rank computes in each unit of time."""
    lines = []
    for stream, records in zip(timeline.streams, by_stream(timeline), strict=True):
        if stream.name == "compute":
            cells = [". "] * timeline.makespan_ns
            for record in records:
                cells[record.start_ns] = f"{timeline.actors[record.actor].name[0]}{record.number}"
            lines.append(" ".join(cells).rstrip())
    return "\n".join(lines)


@pytest.mark.parametrize(("schedule", "expected"), [("gpipe", GPIPE), ("1f1b", ONE_FORWARD_ONE_BACKWARD)])
def test_pipeline_tables(schedule: str, expected: str) -> None:
    assert table(simulate(pipeline(4, 8, schedule), steps=1).timeline) == expected.strip()


@pytest.mark.parametrize(("schedule", "in_flight"), [("gpipe", [8, 8, 8, 8]), ("1f1b", [4, 3, 2, 1])])
@pytest.mark.parametrize("backward_ns", [10, 20])
def test_bubble_and_memory_of_pipelines(schedule: str, in_flight: list[int], backward_ns: int) -> None:
    found = simulate(pipeline(4, 8, schedule, forward_ns=10, backward_ns=backward_ns), peak_flop_per_s=1.0)
    assert found.step_time_s == pytest.approx(11 * (10 + backward_ns) * 1e-9, rel=1e-12)
    assert found.idle_share == 3 / 11
    assert found.bubble_overhead == 3 / 8
    assert found.exposed_communication_s == 0
    assert [nbytes // 4 for nbytes in found.peak_memory_bytes] == in_flight
    assert found.tokens_per_s == pytest.approx(8 / found.step_time_s)
    assert found.num_tasks == 2 * (4 * 16 + 3 * 2 * 2 * 8)


@pytest.mark.parametrize(("stages", "micro_batches"), [(1, 1), (2, 3), (4, 4), (6, 20)])
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_bubble_formula(stages: int, micro_batches: int, schedule: str) -> None:
    # Narayanan et al. 2021, section 2.2.1: (p - 1) / m.
    found = simulate(pipeline(stages, micro_batches, schedule, forward_ns=7, backward_ns=13))
    assert found.bubble_overhead == pytest.approx((stages - 1) / micro_batches, abs=1e-12)


@pytest.mark.parametrize(("cap", "idle"), [(1, 3 / 4), (2, 9 / 17), (3, 5 / 13), (4, 3 / 11), (5, 3 / 11)])
def test_idle_share_by_micro_batches_in_flight(cap: int, idle: float) -> None:
    """What buffers between stages are for: 75, 52.9, 38.5 and 27.3 % idle."""
    found = simulate(pipeline(4, 8, "1f1b", cap=cap))
    assert found.idle_share == idle
    assert max(nbytes // 4 for nbytes in found.peak_memory_bytes) == cap


@pytest.mark.parametrize("times", [(1, 1), (1, 2), (1, 3)])
def test_without_accumulation_three_of_four_stages_idle(times: tuple[int, int]) -> None:
    found = simulate(pipeline(4, 1, "1f1b", forward_ns=times[0], backward_ns=times[1]))
    assert found.idle_share == 3 / 4


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (4, 12), (3, 9)])
@pytest.mark.parametrize("laps", [2, 3])
def test_interleaving_divides_the_bubble(stages: int, micro_batches: int, laps: int) -> None:
    # Narayanan et al. 2021, section 2.2.2: (p - 1) / (v m), at 1F1B's memory times 1 + (p - 1) / (p v).
    found = simulate(pipeline(stages, micro_batches, "interleaved", laps=laps, forward_ns=7, backward_ns=13))
    assert found.bubble_overhead == pytest.approx((stages - 1) / (laps * micro_batches), abs=1e-12)
    assert found.peak_memory_bytes[0] // 4 == stages * laps + stages - 1


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (4, 20), (3, 7)])
@pytest.mark.parametrize("times", [(10, 10, 10), (10, 20, 10), (12, 14, 9)])
def test_weight_gradients_fill_the_bubble(stages: int, micro_batches: int, times: tuple[int, int, int]) -> None:
    # Qi et al. 2024, table 2: (p - 1)(F + B - W), B without the gradients of weights, in 1F1B's memory.
    forward, backward, weight = times
    program = pipeline(stages, micro_batches, "zb-h1", forward_ns=forward, backward_ns=backward, weight_ns=weight)
    found = simulate(program)
    ideal = micro_batches * sum(times)
    assert found.step_time_s == pytest.approx((ideal + (stages - 1) * (forward + backward - weight)) * 1e-9, rel=1e-12)
    assert [nbytes // 4 for nbytes in found.peak_memory_bytes] == [stages] * stages


@pytest.mark.parametrize(("stages", "micro_batches"), [(2, 4), (4, 8), (4, 20), (3, 7)])
def test_no_stage_of_zbv_waits_once_it_has_begun(stages: int, micro_batches: int) -> None:
    # Qi et al. 2024, section 6: zero bubble where the three passes take equally long, in 1F1B's memory (two half
    # stages per stage). Of a step with a beginning and an end, the start of the last stage is left.
    found = simulate(pipeline(stages, micro_batches, "zbv", forward_ns=5, backward_ns=5, weight_ns=5), steps=1)
    assert [nbytes // 4 for nbytes in found.peak_memory_bytes] == [2 * stages] * stages
    assert found.timeline.makespan_ns == 5 * (6 * micro_batches + stages - 1)
    for stream, records in zip(found.timeline.streams, by_stream(found.timeline), strict=True):
        if stream.name == "compute":
            assert records[-1].end_ns - records[0].start_ns == 5 * 6 * micro_batches


def test_one_flow_bounds_activations_by_twice_the_stages() -> None:
    """Backward first with ample buffers, where a backward takes twice a forward."""
    for micro_batches, held in ((8, [8, 7, 4, 1]), (16, [9, 7, 4, 1]), (32, [9, 7, 4, 1])):
        found = simulate(pipeline(4, micro_batches, "oneflow", forward_ns=10, backward_ns=20))
        assert [nbytes // 4 for nbytes in found.peak_memory_bytes] == held
        assert found.bubble_overhead == pytest.approx(3 / micro_batches, abs=1e-12)


def collective_after_compute(*, overlapped_ns: int) -> Program:
    """Two ranks compute 100 ns (rank 1: 130), reduce for 50 ns; rank 0 computes another act meanwhile."""
    registers = (*(Register(f"r{rank}", rank, (2,), DType.FLOAT32) for rank in range(2)),)
    actors = [
        *(
            Actor(f"c{rank}", rank, ActKind.COMPUTE, writes=(Port(rank),), work=Work(100 + 30 * rank))
            for rank in range(2)
        ),
        *(
            Actor(f"reduce{rank}", rank, ActKind.ALL_REDUCE, (Port(rank),), rendezvous=0, work=Work(50))
            for rank in range(2)
        ),
        Actor("more", 0, ActKind.COMPUTE, work=Work(overlapped_ns)),
    ]
    streams = (Stream(0, "m", (0, 4)), Stream(1, "m", (1,)), Stream(0, "c", (2,)), Stream(1, "c", (3,)))
    return Program(2, registers, tuple(actors), streams, model_flop_per_step=600, hardware_flop_per_step=800)


@pytest.mark.parametrize(("overlapped_ns", "exposed_ns"), [(0, 50.0), (60, 35.0), (80, 25.0), (200, 25.0)])
def test_exposed_communication_is_not_hidden_and_not_a_wait(overlapped_ns: int, exposed_ns: float) -> None:
    # The reduction runs from 130 to 180. Rank 0 hides what of it falls before 100 + overlapped_ns.
    found = simulate(collective_after_compute(overlapped_ns=overlapped_ns), steps=1)
    assert found.exposed_communication_s == pytest.approx(exposed_ns * 1e-9)


def test_utilisation_counts_all_ranks() -> None:
    found = simulate(collective_after_compute(overlapped_ns=0), steps=1, peak_flop_per_s=1e10)
    assert found.step_time_s == pytest.approx(180e-9)
    assert found.mfu == pytest.approx(600 / (180e-9 * 2 * 1e10))
    assert found.hfu == pytest.approx(800 / (180e-9 * 2 * 1e10))
    assert simulate(collective_after_compute(overlapped_ns=0)).mfu is None


def test_piece_is_live_from_first_write_to_last_return() -> None:
    program = collective_after_compute(overlapped_ns=0)
    timeline = simulate(program, steps=1).timeline
    assert [(life.begin_ns, life.end_ns) for life in piece_lives(program, timeline)] == [(0, 180), (0, 180)]
    first, _ = memory_timelines(program, timeline)
    assert (first.time_ns, first.nbytes, first.peak_nbytes) == ((0, 180), (8, 0), 8)


def test_state_is_always_live() -> None:
    program = collective_after_compute(overlapped_ns=0)
    state = Register("weight", 0, (100,), DType.FLOAT32, initial=1)
    program = replace(program, registers=(*program.registers, state))
    memory = memory_timelines(program, simulate(program, steps=1).timeline)
    assert memory[0].nbytes == (408, 400)
    assert memory[1].nbytes == (8, 0)


def test_what_is_written_in_place_counts_once() -> None:
    """y takes the block of x, whose last reader writes it; the plan allocates what is live."""
    registers = tuple(Register(name, 0, (16,), DType.FLOAT32) for name in ("x", "y"))
    task = OpTask("f", (0,), (1,), ((),), ((),), in_place=(0,))
    actors = (
        Actor("load", 0, ActKind.COMPUTE, writes=(Port(0),), work=Work(10)),
        Actor("f", 0, ActKind.COMPUTE, (Port(0),), (Port(1),), work=Work(10), task=task),
        Actor("end", 0, ActKind.COMPUTE, (Port(1),), work=Work(10)),
    )
    program = Program(1, registers, actors, (Stream(0, "compute", (0, 1, 2)),))
    for found, most in ((program, 128), (allocated(program), 64)):
        (memory,) = memory_timelines(found, simulate(found, steps=1).timeline)
        assert memory.peak_nbytes == most
        assert memory.allocated_nbytes == (64 if found is not program else 0)
        assert sum(nbytes for _, nbytes in memory.tensors) == most


def test_live_blocks_never_exceed_the_blocks() -> None:
    for _, program in live_programs(30):
        timeline = simulate(program, steps=2).timeline
        lives: dict[int, list[tuple[int, int]]] = {}
        for life in piece_lives(program, timeline):
            lives.setdefault(life.register, []).append((life.begin_ns, life.end_ns))
        for index, found in lives.items():
            register = program.registers[index]
            for begin_ns, _ in found:
                at_once = sum(begin <= begin_ns < end for begin, end in found)
                assert at_once <= register.blocks
        for memory in memory_timelines(program, timeline):
            limit = sum(register.nbytes for register in program.registers if register.rank == memory.rank)
            assert 0 <= min(memory.nbytes) <= memory.peak_nbytes <= limit


def test_bounds_hold_and_figures_repeat() -> None:
    for _, program in live_programs(20):
        found = simulate(program, steps=2)
        assert found.busiest_s <= found.makespan_lower_bound_s <= found.makespan_s
        again = simulate(program, steps=2)
        assert (again, again.timeline) == (found, found.timeline)


def merged(intervals: Iterable[tuple[int, int]]) -> set[int]:
    """Every nanosecond that they cover."""
    return {time_ns for begin, end in intervals for time_ns in range(begin, end)}


def test_figures_are_those_of_the_records() -> None:
    """Compute and communication, counted nanosecond by nanosecond."""
    for _, program in live_programs(20):
        found = simulate(program, steps=1)
        compute_ns = exposed_ns = 0
        for rank in found.timeline.shown:
            spans: dict[bool, list[tuple[int, int]]] = {True: [], False: []}
            for record in found.timeline.records:
                actor = program.actors[record.actor]
                if actor.rank == rank and (actor.kind is ActKind.COMPUTE or actor.kind.is_communication):
                    spans[actor.kind is ActKind.COMPUTE].append((record.start_ns, record.end_ns))
            computing = merged(spans[True])
            compute_ns += len(computing)
            exposed_ns += len(merged(spans[False]) - computing)
        ranks = len(found.timeline.shown)
        assert found.compute_s == pytest.approx(compute_ns / ranks / 1e9, rel=1e-12)
        assert found.exposed_communication_s == pytest.approx(exposed_ns / ranks / 1e9, rel=1e-12)
        assert found.step_time_s == step_time_ns(found.timeline) / 1e9


def test_the_step_time_is_that_of_the_records() -> None:
    for _, program in live_programs(20):
        found = simulate(program, steps=3)
        assert found.step_time_s == step_time_ns(found.timeline) / 1e9


def test_two_steps_are_run_unless_they_are_very_large(monkeypatch: pytest.MonkeyPatch) -> None:
    program = pipeline(4, 8, "1f1b")
    acts = sum(actor.acts_per_step for actor in program.actors)
    assert (simulate(program).steps, simulate(program).num_tasks) == (2, 2 * acts)
    monkeypatch.setattr("simulator.simulate.MOST_ACTS", acts)
    assert simulate(program).steps == 2
    monkeypatch.setattr("simulator.simulate.MOST_ACTS", acts - 1)
    one = simulate(program)
    assert (one.steps, one.num_tasks, one.step_time_s) == (1, acts, one.makespan_s)


def test_a_placed_program_holds_what_it_allocates() -> None:
    for _, program in live_programs(20):
        found = simulate(program)
        assert found.peak_memory_bytes == memory_nbytes(program)
        live = live_peaks_nbytes(program, found.timeline)
        assert all(most <= held for most, held in zip(live, found.peak_memory_bytes, strict=True))


@pytest.mark.parametrize("size", [(2, 4, 1), (16, 512, 16)], ids=["small", "large"])
def test_what_hangs_is_named(size: tuple[int, int, int]) -> None:
    stages, micro_batches, ops = size
    program = benchmark.pipeline(stages, micro_batches, ops=ops)
    index = next(i for i, stream in enumerate(program.streams) if stream.name == "compute")
    stream = program.streams[index]
    streams = list(program.streams)
    streams[index] = replace(stream, sequence=stream.sequence[::-1])
    with pytest.raises(DeadlockError, match="waits for"):
        simulate(replace(program, streams=tuple(streams)))
