"""Hand-built programs compute what the plain loop computes, whatever the timing; faults are named."""

from __future__ import annotations

import dataclasses
import itertools
import random
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
import pytest

from executor.runtime.hooks import Hooks
from executor.runtime.kernels.base import Kernels, open_kernels
from executor.runtime.kernels.numpy import NumpyKernels
from executor.runtime.step_reports import Reports
from executor.runtime.transport.base import HostArray, PeerError, Transport, lanes_of
from executor.runtime.transport.loopback import SentMessage
from executor.runtime.worker import Worker
from strategy.base.errors import PlanError, RankFault, RunError
from strategy.graph.graph import Graph
from strategy.graph.ops.base import Call
from strategy.program.program import LoadTask, Program
from strategy.program.protocol import admit
from tests.executor.programs import (
    REGISTRY,
    WIDTH,
    batch,
    credits_only,
    data_parallel,
    load,
    pipeline,
    pipeline_reference,
    start_weights,
)
from tests.executor.random_boxing import FAULTS, Fault, on_threads
from tests.mpi.launch import run_ranks
from tests.support.threads import run_loopback

STEPS, MICRO_BATCHES = 3, 4


def shuffled(seed: int) -> Hooks:
    """Random sleeps before acts, to shuffle the timing."""
    rng = random.Random(seed)
    return Hooks(delay=lambda actor, number: rng.choice((0.0, 0.0, 0.0005, 0.002)))


def check_streams(program: Program, workers: Sequence[Worker], steps: int) -> None:
    """Static streams ran their sequence, one act after another, and no act started before it was ready."""
    for worker in workers:
        by_stream = defaultdict(list)
        for actor, stream, number, reads, writes, ready_ns, start_ns, end_ns in worker.records:
            assert ready_ns <= start_ns <= end_ns
            assert len(reads) == len(program.actors[actor].reads)
            assert len(writes) == len(program.actors[actor].writes)
            by_stream[stream].append((actor, number, start_ns, end_ns))
        for stream, rows in by_stream.items():
            found = program.streams[stream]
            assert found.rank == worker.rank
            if not found.dynamic:
                assert [row[0] for row in rows] == list(found.sequence) * steps
            assert all(one[3] <= other[2] for one, other in itertools.pairwise(rows))
        assert len(worker.records) == steps * sum(a.acts_per_step for a in program.actors if a.rank == worker.rank)


@pytest.mark.parametrize("in_flight", [1, 2, MICRO_BATCHES])
@pytest.mark.parametrize("seed", [None, 0, 1])
def test_pipeline_computes_the_plain_loop(in_flight: int, seed: int | None) -> None:
    program, graph = pipeline(MICRO_BATCHES, in_flight=in_flight)
    admit(program)
    losses: list[HostArray] = []

    def hooks(rank: int) -> Hooks:
        delay = None if seed is None else shuffled(seed + rank).delay
        return Hooks(on_step=lambda step, reports: losses.append(reports["loss"]) if rank else None, delay=delay)

    workers = run_loopback(
        program,
        graph,
        REGISTRY,
        load,
        steps=STEPS,
        prepare=start_weights,
        hooks=hooks,
        reports=lambda rank: ["loss"] if rank else [],
    )
    first, second, expected = pipeline_reference(MICRO_BATCHES, STEPS)
    np.testing.assert_array_equal(workers[0].read("first"), first)
    np.testing.assert_array_equal(workers[1].read("second"), second)
    np.testing.assert_array_equal(losses, expected)
    check_streams(program, workers, STEPS)
    moved = STEPS * MICRO_BATCHES * WIDTH * 8
    assert [worker.transport.bytes_sent["send"] for worker in workers] == [moved, moved]


def test_steps_can_be_run_in_parts() -> None:
    program, graph = pipeline(MICRO_BATCHES, in_flight=2)
    first, second, expected = pipeline_reference(MICRO_BATCHES, 5)
    seen: dict[int, HostArray] = {}

    def report(step: int, reports: Reports) -> None:
        if "loss" in reports:
            seen[step] = reports["loss"]

    def play(transport: Transport) -> None:
        names = ["loss"] if transport.rank else []
        kernels, hooks = open_kernels("numpy"), Hooks(on_step=report)
        arguments = (program, graph, transport.rank, transport, kernels, REGISTRY, load)
        worker = Worker(*arguments, reports=names, hooks=hooks)
        start_weights(worker)
        for steps, total in ((1, 1), (0, 1), (4, 5)):
            worker.run(steps=steps)
            assert worker.steps_done == total
        np.testing.assert_array_equal(worker.read(("first", "second")[worker.rank]), (first, second)[worker.rank])

    on_threads(2, play, lanes_of(program))
    np.testing.assert_array_equal([seen[step] for step in range(5)], expected)


@pytest.mark.mpi
def test_mpi_computes_the_same_bits() -> None:
    weights = run_ranks(2, "tests.mpi.pipeline", str(MICRO_BATCHES), str(STEPS))
    first, second, _ = pipeline_reference(MICRO_BATCHES, STEPS)
    assert weights.split() == [first.tobytes().hex(), second.tobytes().hex()]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_data_parallel_weights_stay_equal(ranks: int) -> None:
    program, graph = data_parallel(ranks)
    admit(program)

    workers = run_loopback(
        program,
        graph,
        REGISTRY,
        load,
        steps=4,
        prepare=lambda worker: worker.write("weight", np.ones(WIDTH)),
        hooks=shuffled,
    )
    weight = np.ones(WIDTH)
    for step in range(4):
        gradient = batch(step) * weight
        total = gradient.copy()
        for _ in range(ranks - 1):
            total += gradient
        weight -= 0.125 * total
    for worker in workers:
        np.testing.assert_array_equal(worker.read("weight"), weight)
    check_streams(program, workers, 4)
    assert sum(sum(w.transport.bytes_sent.values()) for w in workers) == 4 * 2 * WIDTH * 8 * (ranks - 1)


def test_rendezvous_without_a_task_still_meet() -> None:
    """No member ends before the last has started."""
    program, graph = credits_only(3, 5)
    workers = run_loopback(program, graph, {}, load, steps=2, hooks=shuffled)
    met = defaultdict(list)
    for worker in workers:
        for actor, _, number, _, _, _, start_ns, end_ns in worker.records:
            if program.actors[actor].name == "meet":
                met[number].append((start_ns, end_ns))
    assert len(met) == 10
    assert all(max(start for start, _ in rows) <= min(end for _, end in rows) for rows in met.values())
    check_streams(program, workers, 2)


def test_on_act_comes_before_every_act() -> None:
    program, graph = credits_only(1, 3)
    seen: list[tuple[int, int]] = []
    hooks = Hooks(on_act=lambda actor, number: seen.append((actor, number)))
    (worker,) = run_loopback(program, graph, {}, load, steps=2, hooks=lambda rank: hooks)
    assert sorted(seen) == sorted((row[0], row[2]) for row in worker.records)


def test_a_failing_op_names_rank_actor_and_step() -> None:
    program, graph = pipeline(MICRO_BATCHES, in_flight=2)
    began = time.monotonic()
    with pytest.raises(RankFault, match="forgot the batch") as caught:
        run_loopback(program, graph, REGISTRY, _forgetful, steps=STEPS, prepare=start_weights)
    assert (caught.value.rank, caught.value.actor, caught.value.step) == (0, "load", 2)
    assert time.monotonic() - began < 2


def _forgetful(task: LoadTask, number: int, arrays: Sequence[HostArray]) -> None:
    if number == MICRO_BATCHES + 2:
        raise ValueError("forgot the batch")
    load(task, number, arrays)


@pytest.mark.parametrize("lost", [0, 3, 11])
def test_a_lost_message_is_named_with_the_actor_that_waits(lost: int) -> None:
    """Of the last message nothing is found in its place: the stall limit finds that out."""
    program, graph = pipeline(MICRO_BATCHES, in_flight=2)
    count = 0

    def lose(message: SentMessage) -> Iterable[SentMessage]:
        nonlocal count
        if message.channel.source == 1:
            count += 1
            if count - 1 == lost:
                return []
        return [message]

    with pytest.raises(RankFault, match=r"(receive|send) gh waits for ") as caught:
        run_loopback(program, graph, REGISTRY, load, steps=3, prepare=start_weights, stall_s=0.3, tamper=lose)
    assert f"message {lost} from rank 1 (rendezvous 2" in str(caught.value)
    assert caught.value.step - lost // MICRO_BATCHES in (1, 2)


@pytest.mark.parametrize("case", range(18))
def test_every_fault_in_a_run_is_named(case: int) -> None:
    """Whatever befalls whichever message of whichever program: a named error, at once or after the stall limit."""
    rng = random.Random(case)
    kind = [kind for kind in FAULTS if kind != "late"][case % 5]
    source = rng.randrange(2)
    if case % 2:
        program, graph = pipeline(MICRO_BATCHES, in_flight=2)
        messages, prepare = STEPS * MICRO_BATCHES, start_weights
    else:
        (program, graph), prepare = data_parallel(2), None
        messages = STEPS * 2
    fault = Fault(kind, rng.randrange(messages), source=source)
    with pytest.raises(RunError, match=r"rank [01]") as caught:
        run_loopback(
            program, graph, REGISTRY, load, steps=STEPS, prepare=prepare, stall_s=0.2, tamper=fault, hooks=shuffled
        )
    assert not isinstance(caught.value, PeerError)
    assert fault.count > fault.at


class StagedKernels(NumpyKernels):
    """NumPy as if it were a device of its own, whose memory transports cannot read."""

    host = False


def test_a_device_of_its_own_is_staged_through_host_memory() -> None:
    for (program, graph), name in ((data_parallel(2), "weight"), (pipeline(2, in_flight=1), "first")):
        host, device = open_kernels("numpy"), StagedKernels()
        found: list[HostArray] = []
        for kernels in ((host, host), (device, device), (host, device)):

            def play(
                transport: Transport,
                program: Program = program,
                graph: Graph = graph,
                kernels: Sequence[Kernels] = kernels,
                name: str = name,
                found: list[HostArray] = found,
            ) -> None:
                worker = Worker(program, graph, transport.rank, transport, kernels[transport.rank], REGISTRY, load)
                if name == "weight":
                    worker.write(name, np.ones(WIDTH))
                else:
                    start_weights(worker)
                worker.run(steps=3)
                if transport.rank == 0:
                    found.append(worker.read(name))

            on_threads(2, play, lanes_of(program))
        for other in found[1:]:
            np.testing.assert_array_equal(other, found[0])
        assert len(found) == 3
        assert not np.array_equal(found[0], np.ones(WIDTH))


def test_writing_another_shape_is_refused() -> None:
    program, graph = data_parallel(1)
    with pytest.raises(PlanError, match=r"weight.*float32\[1\].*float64\[5\]"):
        run_loopback(
            program, graph, REGISTRY, load, steps=1, prepare=lambda worker: worker.write("weight", np.ones(1, "f4"))
        )


def test_stall_in_one_rank_is_named_with_what_it_waits_for() -> None:
    """Rank 1 never comes."""
    program, graph = credits_only(2, 1)

    def play(transport: Transport) -> None:
        if transport.rank == 0:
            arguments = (program, graph, 0, transport, open_kernels("numpy"), REGISTRY, load)
            with pytest.raises(RankFault, match=r"rank 0 .*'meet' at step 1.* from rank 1 \(rendezvous 0") as caught:
                Worker(*arguments, stall_s=0.2).run(steps=1)
            raise caught.value

    with pytest.raises(RankFault):
        on_threads(2, play, lanes_of(program))


def test_op_errors_carry_their_cause() -> None:
    program, graph = data_parallel(2)

    def overflow(call: Call) -> None:
        raise FloatingPointError("inf")

    registry = {**REGISTRY, "descend": dataclasses.replace(REGISTRY["descend"], run=overflow)}
    with pytest.raises(RankFault, match="FloatingPointError: inf") as caught:
        run_loopback(program, graph, registry, load, steps=1)
    assert isinstance(caught.value.__cause__, FloatingPointError)
    assert caught.value.actor.startswith("update")
