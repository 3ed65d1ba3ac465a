"""Calls ahead of results: the numbers of one after the other, bounded, overlapping, failing where they are read."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from executor.frontend.calls import Calls, DeferredCall
from executor.frontend.global_tensor import from_numpy, placement, split
from executor.frontend.world import World
from executor.runtime.worker import Worker
from strategy.base.errors import InputError, RunError
from strategy.passes.training import Training
from strategy.sbp.tensor import DType
from tests.executor.worlds import on_ranks
from tests.mpi.shared_state import STAGES, Evaluate, Mlp, Train, features, interleaved
from tests.support.long_parameters import long_but

PATIENCE_S = 20.0
TRAINING = Training(8, lr=0.1, dtype=DType.FLOAT64)


@pytest.mark.parametrize("where", [placement([0, 1]), STAGES], ids=["data", "stages"])
@pytest.mark.parametrize("seed", long_but(range(6), 1, 2))
def test_graphs_that_share_parameters_alternate_ahead_of_results(where: Any, seed: int) -> None:
    at_once = on_ranks(2, lambda world: interleaved(seed, where, ahead=False, buffers=1))[0]
    for found in on_ranks(2, lambda world: interleaved(seed, where, ahead=True, buffers=1 + seed % 3)):
        assert len(found) == len(at_once)
        for one, other in zip(found, at_once, strict=True):
            np.testing.assert_array_equal(one, other)
    assert len({array.tobytes() for array in at_once}) > 6, "steps change what follows"


@contextmanager
def watched(
    monkeypatch: pytest.MonkeyPatch, before: Callable[[int], None], after: Callable[[int], None]
) -> Iterator[None]:
    """Call `before(rank)` and `after(rank)` around every run of a worker."""
    run = Worker.run

    def watching(worker: Worker, *, steps: int) -> None:
        before(worker.rank)
        run(worker, steps=steps)
        after(worker.rank)

    with monkeypatch.context() as patch:
        patch.setattr(Worker, "run", watching)
        yield


def test_two_calls_overlap_on_the_ranks_of_a_pipeline(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last stage ends the first call only when the first stage has begun the second one."""
    begun = [0, 0]
    second_begun = threading.Event()
    waits: list[bool] = []

    def before(rank: int) -> None:
        begun[rank] += 1
        if (rank, begun[rank]) == (0, 2):
            second_begun.set()

    def after(rank: int) -> None:
        if (rank, begun[rank]) == (1, 1):
            waits.append(second_begun.wait(PATIENCE_S))

    def code(world: World) -> tuple[np.ndarray, np.ndarray]:
        graph = Evaluate(Mlp(), placement=STAGES, dtype=DType.FLOAT64, stages={"model.two.*": 1})
        x, _ = features()
        one, two = graph(x), graph(2 * x)
        return one.result().numpy(), two.result().numpy()

    with watched(monkeypatch, before, after):
        results = on_ranks(2, code)
    assert waits == [True]
    for one, two in results:
        assert np.abs(one - two).max() > 1e-3


@pytest.mark.parametrize("buffers", [1, 2, 3])
def test_a_call_returns_at_once_until_the_output_buffer_is_full(monkeypatch: pytest.MonkeyPatch, buffers: int) -> None:
    go, made = threading.Event(), []

    def code(world: World) -> list[DeferredCall]:
        graph = Evaluate(Mlp(), placement=[0], dtype=DType.FLOAT64, output_buffers=buffers)
        x, _ = features()
        for factor in range(1, buffers + 2):
            if factor == buffers + 1:
                assert not any(call.done() for call in made)
                threading.Timer(0.1, go.set).start()
            made.append(graph(factor * x))
        assert made[0].done(), "one more waits for the oldest"
        return made

    with watched(monkeypatch, lambda rank: None if go.wait(PATIENCE_S) else pytest.fail("no go"), lambda rank: None):
        (calls,) = on_ranks(1, code)
    values = [call.result().piece for call in calls]
    assert len({value.tobytes() for value in values}) == buffers + 1, "outputs are not written over"


def test_inputs_may_change_after_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def code(world: World) -> None:
        graph = Evaluate(Mlp(), placement=[0], dtype=DType.FLOAT64)
        x, _ = features()
        call = graph(x)
        x[:] = 0
        go.set()
        found = call.result().numpy()
        np.testing.assert_array_equal(found, graph(features()[0]).result().numpy())

    with watched(monkeypatch, lambda rank: None if go.wait(PATIENCE_S) else pytest.fail("no go"), lambda rank: None):
        on_ranks(1, code)


def test_operations_wait_for_the_calls_before_them() -> None:
    """Line by line after a step: the module sees all of it."""

    def code(world: World) -> None:
        model, where = Mlp(), placement([0, 1])
        train = Train(model, placement=where, training=TRAINING)
        evaluate = Evaluate(model, placement=where, dtype=DType.FLOAT64)
        x, labels = features()
        there = from_numpy(x, placement=where, sbp=split(0))
        for _ in range(5):
            train(x, labels)
            call = train(x, labels)
            eager = model(there)
            assert call.done()
            np.testing.assert_allclose(eager.numpy(), evaluate(x).result().numpy(), atol=1e-12)

    on_ranks(2, code)


def test_a_failure_surfaces_at_the_result_and_names_the_call() -> None:
    graph = Train(Mlp(), placement=[0], training=TRAINING)
    x, labels = features()

    def code(world: World) -> None:
        fine = graph(x, labels)
        wrong = graph(x, labels + 7)
        after = graph(x, labels)
        assert fine.result().shape == ()
        with pytest.raises(RunError, match=r"^call 2 of Train: rank 0 failed in actor 'loss.* at step 2: "):
            wrong.result()
        with pytest.raises(RunError, match=r"^call 3 of Train was not run: call 2 of Train: rank 0 failed"):
            after.result()
        with pytest.raises(RunError, match=r"^call 2 of Train: "):
            graph.state_dict()["model.one.bias"].numpy()

    with pytest.raises(RunError, match="call 2 of Train"):
        on_ranks(1, code)


def test_a_failure_on_one_rank_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def before(rank: int) -> None:
        if rank == 1:
            raise ValueError("no memory")

    def code(world: World) -> None:
        Evaluate(Mlp(), placement=STAGES, dtype=DType.FLOAT64, stages={"model.two.*": 1})(features()[0]).result()

    with (
        watched(monkeypatch, before, lambda rank: None),
        pytest.raises(RunError, match="call 1 of Evaluate: no memory"),
    ):
        on_ranks(2, code)


def test_an_output_buffer_holds_something() -> None:
    with pytest.raises(
        InputError, match=r"a call needs a place for its output \(got 'output_buffers=0', expected >= 1\)"
    ):
        Evaluate(Mlp(), placement=[0], output_buffers=0)


def test_calls_run_in_the_order_of_asking() -> None:
    calls, order = Calls(), []
    made = [calls.begin(f"call {n}", lambda n=n: order.append(n)) for n in range(20)]
    calls.settle()
    assert order == list(range(20))
    assert all(call.done() for call in made)


def test_results_are_read_while_the_next_call_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    go, runs = threading.Event(), []

    def before(rank: int) -> None:
        runs.append(rank)
        if len(runs) == 2:
            assert go.wait(PATIENCE_S)

    def code(world: World) -> None:
        graph = Evaluate(Mlp(), placement=[0], dtype=DType.FLOAT64)
        x, _ = features()
        one, two = graph(x), graph(x)
        halved = (one.result() / 2).numpy()
        assert not two.done()
        go.set()
        np.testing.assert_array_equal(2 * halved, two.result().numpy())

    with watched(monkeypatch, before, lambda rank: None):
        on_ranks(1, code)
