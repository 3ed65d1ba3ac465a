"""Running a suite: every experiment is a run in the store, and what the store holds as done is not done again.

Under mpiexec the ranks share the experiments out (`mpi4py.futures`); rank 0 alone writes to the store, whose folder all
ranks must see. Experiments that start ranks themselves are left for a run without mpiexec.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from executor.supervision.environment import find_rank
from experiments.store.results import VERB, read_results
from experiments.store.store import RunRecord, RunStatus, RunStore
from experiments.suites.experiment import STARTS_RANKS
from experiments.suites.outcomes import Summary, outcome
from experiments.suites.suite import SuiteExperiment
from strategy.base.errors import InternalError, SbplanError

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class SuiteOutcome:
    """How a suite ended: names of experiments that were done now, earlier, that failed (and why), and that are left."""

    done: tuple[str, ...]
    earlier: tuple[str, ...]
    failed: tuple[tuple[str, str], ...]
    left: tuple[str, ...]


def run_suite(suite: Sequence[SuiteExperiment], store: RunStore, progress: Progress) -> SuiteOutcome | None:
    """Do what is not done yet; None on ranks that only helped.

    Raises:
        InputError, RunError: the store cannot be read or written.
    """
    with _workers() as workers:
        if workers is None:
            return None
        return _run(suite, store, progress, workers)


@dataclass(frozen=True)
class _Workers:
    """Where experiments are done: by an executor of so many workers, or, without one, here."""

    executor: Executor | None
    count: int

    def submit(self, job: Callable[[], Summary]) -> Future[Summary]:
        """Start it; here, it is done when this returns."""
        if self.executor is not None:
            return self.executor.submit(job)
        future: Future[Summary] = Future()
        try:
            future.set_result(job())
        except Exception as error:  # noqa: BLE001 - a future hands every error to who asks for its result
            future.set_exception(error)
        return future


@contextmanager
def _workers() -> Iterator[_Workers | None]:
    """The other ranks under mpiexec, or this process; None on the other ranks, when all is done."""
    rank = find_rank()
    if rank is None or rank.size == 1:
        yield _Workers(None, 1)
        return
    from mpi4py import MPI
    from mpi4py.futures import MPICommExecutor

    with MPICommExecutor(MPI.COMM_WORLD, root=0) as found:
        executor = cast("Executor | None", found)  # its stub has the manager itself
        yield None if executor is None else _Workers(executor, rank.size - 1)


def _run(suite: Sequence[SuiteExperiment], store: RunStore, progress: Progress, workers: _Workers) -> SuiteOutcome:
    there = _done_before(store)
    earlier = tuple(one.experiment.name for one in suite if one.inputs in there)
    wanted = [one for one in suite if one.inputs not in there]
    mine = [one for one in wanted if workers.executor is None or not isinstance(one.experiment, STARTS_RANKS)]
    left = tuple(one.experiment.name for one in wanted if one not in mine)
    if earlier:
        progress(f"{len(earlier)} of {len(suite)} experiments are done already")
    done: list[str] = []
    failed: list[tuple[str, str]] = []
    under_way: dict[Future[Summary], tuple[SuiteExperiment, RunRecord]] = {}
    waiting = list(reversed(mine))
    try:
        while waiting or under_way:
            while waiting and len(under_way) < workers.count:
                one = waiting.pop()
                run = store.create(VERB, one.inputs)
                under_way[workers.submit(partial(outcome, one.experiment, run.folder))] = (one, run)
            ended, _ = wait(under_way, return_when=FIRST_COMPLETED)
            for future in ended:
                one, run = under_way[future]
                why = _finish(store, run, future)
                del under_way[future]
                name = one.experiment.name
                done += [] if why else [name]
                failed += [(name, why)] if why else []
                count = f"{len(earlier) + len(done) + len(failed)} of {len(suite)}"
                progress(f"{count}: {one.suite}, {name}{f': {why}' if why else ''} (run {run.id})")
    except BaseException:
        for _, run in under_way.values():
            store.finish(run, RunStatus.INTERRUPTED, {})
        raise
    return SuiteOutcome(tuple(done), earlier, tuple(failed), left)


def _done_before(store: RunStore) -> list[dict[str, Any]]:
    """The inputs of what is done."""
    if not (store.root / "runs.sqlite").exists():
        return []
    return [{"suite": one.suite, "experiment": one.experiment} for one in read_results(store)]


def _finish(store: RunStore, run: RunRecord, future: Future[Summary]) -> str:
    """Close a run; says why it failed, if it did.

    Raises:
        InternalError: a bug ended it.
    """
    try:
        summary = future.result()
    except SbplanError as error:
        if isinstance(error, InternalError):
            raise
        store.finish(run, RunStatus.FAILED, {"error": str(error)})
        return str(error)
    store.finish(run, RunStatus.DONE, summary)
    return ""
