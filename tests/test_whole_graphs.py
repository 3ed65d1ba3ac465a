"""Any graph over the ops, laid out in any legal way, computes what one device computes.

Forty graphs here, thousands by `python -m tests.campaigns layouts --cases 3000`.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

from strategy.graph.ops import REGISTRY
from strategy.lowering.lower import lower
from strategy.program.program import Register
from strategy.sbp.tensor import DType
from tests.campaigns.layouts import (
    MPI_EVERY,
    check,
    check_under_mpi,
    compare,
    exercised,
    loader,
    local_shapes,
    mpi_case,
    mpi_ranks,
    on_one_device,
    pieces_of,
    program_of,
    quotas,
    start,
)
from tests.support.long_parameters import long_but
from tests.support.threads import run_loopback
from tests.support.unaliased import unaliased
from tests.support.whole_graphs import WholeCase, forward_kinds, random_whole_graph

CASES = 40
BATCH = 5
NUMBERS = [number for number in range(CASES) if number % MPI_EVERY]
MPI_NUMBERS = [number for number in range(CASES) if number % MPI_EVERY == 0]


@pytest.mark.parametrize("first", long_but(range(0, len(NUMBERS), BATCH), 0))
def test_ranks_compute_what_one_device_computes(first: int) -> None:
    for number in NUMBERS[first : first + BATCH]:
        assert list(check(random_whole_graph(number))) == [], number


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", long_but([2, 3, 4]))
def test_processes_compute_what_one_device_computes(ranks: int) -> None:
    numbers = [number for number in MPI_NUMBERS if mpi_ranks(number) == ranks]
    found = check_under_mpi(ranks, numbers)
    assert found == {number: [] for number in numbers}


@pytest.mark.long
def test_the_graphs_differ_enough() -> None:
    """Half of each quota of the campaign, and one of each at least."""
    seen: Counter[str] = Counter()
    for number in range(CASES):
        case = mpi_case(number) if number % MPI_EVERY == 0 else random_whole_graph(number)
        seen.update({*exercised(case), *(["mpiexec"] if number % MPI_EVERY == 0 else [])})
    least = {name: max(1, math.floor(0.5 * share * CASES)) for name, share in quotas().items()}
    assert {name: seen[name] for name, count in least.items() if seen[name] < count} == {}


def test_the_generator_knows_every_family() -> None:
    grown = {kind for kinds in forward_kinds().values() for kind in kinds}
    trained = {kind for kind, definition in REGISTRY.items() if definition.gradient is not None}
    assert {kind for kind in trained - grown if "loss" not in kind and "entropy" not in kind} == set()


def test_the_same_seed_gives_the_same_case() -> None:
    one, other = (random_whole_graph(5) for _ in range(2))
    assert (one.graph.ops, one.layout, one.pipeline) == (other.graph.ops, other.layout, other.pipeline)


def wide_case() -> WholeCase:
    """A case of several ranks in double precision."""
    cases = (random_whole_graph(number) for number in range(100))
    return next(case for case in cases if case.ranks >= 3 and case.dtype is DType.FLOAT64)


def test_another_batch_is_noticed() -> None:
    case = wide_case()
    other = replace(case, seed=case.seed + 1)
    workers = run_loopback(
        program_of(case), case.graph, REGISTRY, loader(other), steps=1, prepare=lambda worker: start(case, worker)
    )
    wanted = on_one_device(case)
    pieces = pieces_of(case, {worker.rank: worker for worker in workers})
    assert any(problem for held, parts in pieces for problem in compare(case, held, parts, wanted))


def test_a_register_that_holds_more_than_its_shard_is_noticed() -> None:
    case = wide_case()
    program = unaliased(lower(case.graph, case.layout, case.pipeline, case.cost))
    assert list(local_shapes(case, program)) == []
    first: Register = next(register for register in program.registers if register.shape)
    larger = replace(first, shape=(first.shape[0] + 1, *first.shape[1:]))
    registers = tuple(larger if register is first else register for register in program.registers)
    assert len(list(local_shapes(case, replace(program, registers=registers)))) == 1
