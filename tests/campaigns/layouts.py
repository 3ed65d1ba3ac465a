"""Random whole graphs in random legal layouts: forward, backward and one SGD step equal one device.

Every tensor is compared, intermediate copies too: the pieces of all ranks put together, with the value that one device
computes. Every eighth case runs under mpiexec, on 2 to 4 ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from executor.op_validation.pieces import Array, join
from executor.runtime.worker import Worker
from strategy.base.errors import SbplanError
from strategy.graph.graph import Role
from strategy.graph.ops import REGISTRY
from strategy.layout.arrangement import Arrangement, Held, arrange
from strategy.layout.layout import home_of
from strategy.lowering.lower import lower
from strategy.program.program import ActKind, LoadTask, Program
from strategy.program.protocol import admit
from strategy.sbp.sbp import Broadcast, NdSbp, Partial, Reduce, Sbp, Split, local_box, local_shape
from strategy.sbp.tensor import DType, Rate
from tests.campaigns.outcome import Outcome
from tests.mpi.launch import run_ranks
from tests.support.reference import run_graph
from tests.support.threads import run_loopback
from tests.support.unaliased import unaliased
from tests.support.whole_graphs import WholeCase, family_of, forward_kinds, random_whole_graph

MPI_EVERY = 8
EXACT = 1e-9
"""Of float64: largest error, relative to the largest element or to 1."""
SINGLE = 1e-4
"""Of float32: largest error of a gradient, relative to the largest gradient of the graph."""


def quotas() -> dict[str, float]:
    """The least share of the cases for every op family, boxing pair and kind of layout."""
    families = {f"family {family}": 200 / 3000 for family in forward_kinds()}
    terms = ("P", "P(max)", "P(min)")
    changes = [
        "S>S",
        "S>B",
        "B>S",
        "transfer",
        *(pair for p in terms for pair in (f"S>{p}", f"B>{p}", f"{p}>S", f"{p}>B")),
    ]
    pairs = {f"boxing {pair}": 100 / 3000 for pair in changes}
    layouts = {"mixed neighbours": 0.3, "2-D mesh": 1 / 3, "uneven": 500 / 3000, "mpiexec": 0.1, "ragged boxed": 0.1}
    return {**families, **pairs, **layouts, "float32": 0.1, "two stages": 0.2, "micro-batches": 0.3, "scaled loss": 0.2}


def run(cases: int, seed: int) -> Outcome:
    """Check `cases` random graphs."""
    outcome = Outcome(quotas())
    under_mpi: dict[int, list[int]] = {}
    for number in range(seed, seed + cases):
        if number % MPI_EVERY == 0:
            under_mpi.setdefault(mpi_ranks(number), []).append(number)
            continue
        case = random_whole_graph(number)
        outcome.add(command(number), check(case), exercised(case))
    for ranks, numbers in sorted(under_mpi.items()):
        found = check_under_mpi(ranks, numbers)
        for number in numbers:
            outcome.add(command(number), found[number], (*exercised(mpi_case(number)), "mpiexec"))
    return outcome


def command(number: int) -> str:
    """What repeats a case."""
    return f"python -m tests.campaigns layouts --cases 1 --seed {number}"


def mpi_ranks(number: int) -> int:
    """Ranks of a case that runs under mpiexec."""
    return 2 + number // MPI_EVERY % 3


def mpi_case(number: int) -> WholeCase:
    """The same, as a graph."""
    return random_whole_graph(number, ranks=mpi_ranks(number))


def check_under_mpi(ranks: int, numbers: Sequence[int]) -> dict[int, list[str]]:
    """Run cases under one mpiexec; gives the problems of each."""
    said = run_ranks(ranks, "tests.mpi.graphs", *map(str, numbers), timeout_s=60.0 + 2.0 * len(numbers))
    found: dict[int, list[str]] = {}
    for line in said.splitlines():
        number, _, problem = line.partition(" ")
        found.setdefault(int(number), []).extend([problem] if problem else [])
    return found


def check(case: WholeCase) -> Iterator[str]:
    """Everything in which a case on threads differs from one device."""
    program = program_of(case)
    yield from local_shapes(case, program)
    try:
        workers = run_loopback(
            program, case.graph, REGISTRY, loader(case), steps=1, prepare=lambda worker: start(case, worker)
        )
    except SbplanError as error:
        yield str(error)
        return
    wanted = on_one_device(case)
    for held, pieces in pieces_of(case, {worker.rank: worker for worker in workers}):
        yield from compare(case, held, pieces, wanted)


def program_of(case: WholeCase) -> Program:
    """The admitted program."""
    program = unaliased(lower(case.graph, case.layout, case.pipeline, case.cost))
    admit(program)
    return program


def arrangement_of(case: WholeCase) -> Arrangement:
    """Its tensors and actions."""
    return arrange(case.graph, case.layout, case.pipeline)


def loader(case: WholeCase):  # noqa: ANN201 - the type of `executor.runtime.acts.Load`, as a closure
    """Fills a rank's pieces of the inputs."""
    batches = case.batches()

    def load(task: LoadTask, number: int, arrays: Sequence[Array]) -> None:
        for name, box, array in zip(task.inputs, task.boxes, arrays, strict=True):
            array[...] = batches[number][name][tuple(slice(begin, end) for begin, end in box)]

    return load


def start(case: WholeCase, worker: Worker) -> None:
    """Fill a rank's pieces of the variables."""
    stages = case.layout.stages
    for name, array in case.variables().items():
        home = home_of(case.graph, stages, case.layout.signatures, name)
        assert home is not None
        placement = stages.placements[home.stage]
        if worker.rank in placement.devices:
            box = local_box(array.shape, home.layout, placement.mesh, placement.coords(worker.rank))
            worker.write(name, array[(*(slice(begin, end) for begin, end in box), ...)].copy())


def on_one_device(case: WholeCase) -> dict[str, Array]:
    """Every value after one step, of the last micro-batch; what variables were before it is called `name@start`."""
    variables = case.variables()
    before = {f"{name}@start": array.copy() for name, array in variables.items()}
    with np.errstate(all="ignore"):
        return {**run_graph(case.graph, case.batches(), variables), **before}


def pieces_of(case: WholeCase, workers: Mapping[int, Worker]) -> Iterator[tuple[Held, list[Array]]]:
    """Every tensor with the last pieces that these ranks hold of it, in the order of their ranks."""
    for held in arrangement_of(case).tensors:
        ranks = [r for r in case.layout.stages.placements[held.stage].devices if r in workers]
        micro = case.graph.values[held.value].rate is Rate.MICRO_BATCH
        acts = case.pipeline.num_micro_batches if micro else 1
        yield held, [w.read(held.name, (acts - 1) % _blocks(w, held.name)) for w in (workers[r] for r in ranks)]


def _blocks(worker: Worker, name: str) -> int:
    return len(worker.registers.blocks(worker.registers.index(name)))


def compare(case: WholeCase, held: Held, pieces: Sequence[Array], wanted: Mapping[str, Array]) -> Iterator[str]:
    """How one tensor differs from one device."""
    copied = case.graph.values[held.value].role is Role.VARIABLE and held.name != held.value
    expected = wanted[f"{held.value}@start" if copied else held.value]
    mesh = case.layout.stages.placements[held.stage].mesh
    where = f"{held.name} as {', '.join(map(str, held.layout))} on mesh {list(mesh)}"
    if case.dtype is DType.FLOAT32:
        if held.name in case.gradients.values():
            found = _joined(pieces, held.layout, mesh, loose=True)
            largest = max(float(np.max(np.abs(wanted[name]))) for name in case.gradients.values())
            error = float(np.max(np.abs(found - expected))) if found.shape == expected.shape else math.inf
            if not error <= SINGLE * largest:
                yield f"{where}: off by {error}, the largest gradient is {largest}"
        return
    found = _joined(pieces, held.layout, mesh)
    if found.shape != expected.shape:
        yield f"{where}: shape {found.shape}, not {expected.shape}"
    elif expected.dtype != found.dtype:
        yield f"{where}: {found.dtype}, not {expected.dtype}"
    elif not np.array_equal(found, expected):
        error = float(np.max(np.abs(found - expected)))
        if not error <= EXACT * max(1.0, float(np.max(np.abs(expected)))):
            yield f"{where}: off by {error}"


def _joined(pieces: Sequence[Array], layout: NdSbp, mesh: tuple[int, ...], *, loose: bool = False) -> Array:
    try:
        return join(pieces, layout, mesh)
    except ValueError:
        if not loose:
            return np.zeros((0,))
    firsts = tuple(Partial(Reduce.MAX) if isinstance(sbp, Broadcast) else sbp for sbp in layout)
    return join(pieces, firsts, mesh)


def local_shapes(case: WholeCase, program: Program) -> Iterator[str]:
    """Ranks hold only their local shards: every register is as large as the layout of its tensor says."""
    held = {(t.name, t.stage): t for t in arrangement_of(case).tensors}
    placements = case.layout.stages.placements
    for register in program.registers:
        stage = next(i for i, placement in enumerate(placements) if register.rank in placement.devices)
        tensor, placement = held[register.name, stage], placements[stage]
        shape = case.graph.values[tensor.value].spec.shape
        local = local_shape(shape, tensor.layout, placement.mesh, placement.coords(register.rank))
        if register.shape != local:
            yield f"{register.name} on rank {register.rank} has shape {register.shape}, not {local}"


def exercised(case: WholeCase) -> Iterator[str]:
    """What a case is good for."""
    for op in case.graph.ops:
        yield f"family {family_of(op.kind)}"
        yield f"kind {op.kind}"
    homes = {}
    for conversion in case.layout.conversions:
        layout = conversion.source.layout
        homes[conversion.copy.value] = layout
        for step in conversion.steps:
            if step.kind is ActKind.TRANSFER:
                yield "boxing transfer"
            else:
                changes = zip(layout, step.target, strict=True)
                yield from (f"boxing {_letter(a)}>{_letter(b)}" for a, b in changes if a != b)
                yield f"collective {step.kind}"
            layout = step.target
    placements = case.layout.stages.placements
    computed = [name for name in homes if name in case.graph.producer]
    yield from ["mixed neighbours"] * bool(computed)
    yield from ["ragged boxed"] * any(case.graph.values[name].spec.ragged is not None for name in homes)
    yield from ["2-D mesh"] * any(sum(size > 1 for size in placement.mesh) > 1 for placement in placements)
    yield from ["two stages"] * (len(placements) > 1)
    yield from ["micro-batches"] * (case.pipeline.num_micro_batches > 1)
    yield from ["scaled loss"] * ("adjust_scale" in (op.kind for op in case.graph.ops))
    yield str(case.dtype)
    yield from ["frozen"] * any(
        value.name not in case.graph.updater and case.graph.consumers[value.name]
        for value in case.graph.with_role(Role.VARIABLE)
    )
    yield from ["uneven"] * any(_is_uneven(case, held) for held in arrangement_of(case).tensors)


def _letter(sbp: Sbp) -> str:
    if isinstance(sbp, Split):
        return "S"
    return "B" if isinstance(sbp, Broadcast) else "P" if sbp.reduce is Reduce.SUM else f"P({sbp.reduce})"


def _is_uneven(case: WholeCase, held: Held) -> bool:
    placement = case.layout.stages.placements[held.stage]
    shape = case.graph.values[held.value].spec.shape
    coords = (placement.coords(rank) for rank in placement.devices)
    return len({local_shape(shape, held.layout, placement.mesh, c) for c in coords}) > 1
