"""A plan changes nothing: random plans of small models against the graph on one device, which no pass has touched.

In float64, losses of all steps and every variable agree within 1e-9; the state of the optimiser is among them, and with
it the gradients, of which it is made. In float32, the state after the first step, which then holds the gradients alone,
agrees within 1e-4 of its largest figure, and under SGD so do all variables in the end: other rules divide by the
gradient's size, and blow rounding up where there is none. Halves are left out: they round where a plan cuts.

Most plans train on threads, every 32nd under mpiexec, on 3 or 4 ranks.
"""

from __future__ import annotations

import math
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from executor.data.synthetic import BatchLoader
from executor.data.text import Corpus
from executor.runtime.initialize import initial_piece
from executor.train import Trainer
from strategy.base.errors import SbplanError
from strategy.graph.graph import Role
from strategy.layout.layout import home_of
from strategy.layout.schedule import Schedule
from strategy.passes.training import REPORT, training_graph
from strategy.passes.updates import Optimizer
from strategy.plan.plan import Plan, write_plan
from strategy.plan.verify import verify
from strategy.program.program import LoadTask, Program, Register
from strategy.program.protocol import admit
from strategy.sbp.sbp import local_box, local_shape
from strategy.sbp.tensor import DType
from tests.campaigns.outcome import Outcome
from tests.mpi.launch import run_ranks
from tests.support.plan_features import features_of
from tests.support.random_plans import PlanCase, random_plan_case
from tests.support.reference import Array, run_graph
from tests.support.routed import dense_bytes, moves_by_all_to_alls, routed_bytes
from tests.support.small_plans import Trained, corpus, lowered, train

LEAST = 0.05
QUOTAS = {
    "pipeline": 0.3,
    **{f"schedule {schedule}": LEAST for schedule in Schedule},
    **{f"zero {stage}": LEAST for stage in (1, 2, 3)},
    "owner": LEAST,
    "offload of activations": LEAST,
    "offload of optimizer": LEAST,
    "recompute full": LEAST,
    "recompute selective": LEAST,
    "recompute memory-bound": LEAST,
    "recompute by name": LEAST,
    "layers that keep all": LEAST,
    "accumulation": 0.3,
    "tied embedding": LEAST,
    "uneven": LEAST,
    "tiles": LEAST,
    "buckets": LEAST,
    "several streams": 0.02,
    "3 combined": 0.2,
    "mpiexec": 0.02,
    "data": 0.3,
    "tensor": 0.1,
    "context": 0.03,
    "random layout": 0.3,
    "deduced": 0.1,
    "rules": 0.02,
    "free": 0.01,
    "float32": 0.1,
    "mlp": 0.1,
    "frozen": 0.1,
    "skips": LEAST,
    **{str(optimizer): 0.08 for optimizer in Optimizer},
}
STEPS = 3
MPI_EVERY = 32
EXACT = 1e-9
"""Of float64: largest error, relative to the largest element or to 1."""
SINGLE = 1e-4
"""Of float32: largest error, relative to the largest element of all tensors of the kind."""


@dataclass(frozen=True)
class Ran:
    """What a rank has to say after its training: the pieces of variables in the end and after the first step."""

    rank: int
    variables: dict[str, Array]
    first: dict[str, Array]
    losses: list[float]
    sent_bytes: int
    held_bytes: tuple[int, int]


def run(cases: int, seed: int) -> Outcome:
    """Check `cases` random plans."""
    outcome = Outcome(QUOTAS)
    under_mpi: dict[int, list[int]] = {}
    for number in range(seed, seed + cases):
        if number % MPI_EVERY == 0:
            under_mpi.setdefault(mpi_ranks(number), []).append(number)
            continue
        case = random_plan_case(number)
        outcome.add(command(number), check_or_say(case), exercised(case))
    for ranks, numbers in sorted(under_mpi.items()):
        made = {number: mpi_case(number) for number in numbers}
        found = check_under_mpi(ranks, {number: case.plan for number, case in made.items()})
        for number, case in made.items():
            outcome.add(command(number), found[number], (*exercised(case), "mpiexec"))
    return outcome


def command(number: int) -> str:
    """What repeats a case."""
    return f"python -m tests.campaigns transparency --cases 1 --seed {number}"


def exercised(case: PlanCase) -> Iterator[str]:
    """What a plan is good for."""
    yield case.made
    yield from features_of(case.plan)


def mpi_ranks(number: int) -> int:
    """Ranks of a case that runs under mpiexec."""
    return 3 + number // MPI_EVERY % 2


def mpi_case(number: int) -> PlanCase:
    """The plan of a case that runs under mpiexec."""
    return random_plan_case(number, ranks=(mpi_ranks(number),))


def check_under_mpi(ranks: int, plans: Mapping[int, Plan], *, steps: int = STEPS) -> dict[int, list[str]]:
    """Run numbered plans, from files, under one mpiexec; where ranks do not end, it is a problem of all."""
    with tempfile.TemporaryDirectory() as folder:
        files = [Path(folder, f"{number}.json") for number in plans]
        for plan, file in zip(plans.values(), files, strict=True):
            write_plan(plan, file)
        try:
            arguments = (str(steps), *map(str, files))
            said = run_ranks(ranks, "tests.mpi.transparency", *arguments, timeout_s=120.0 + 60.0 * len(files))
        except (AssertionError, subprocess.TimeoutExpired) as error:
            return {number: [f"mpiexec: {' '.join(str(error).split())}"] for number in plans}
    found: dict[int, list[str]] = {}
    for line in said.splitlines():
        number, _, problem = line.partition(" ")
        found.setdefault(int(number), []).extend([problem] if problem else [])
    return found


def check_or_say(case: PlanCase) -> Iterator[str]:
    """As `check`; that a plan does not train is a problem, too."""
    try:
        yield from check(case.plan, case.program)
    except SbplanError as error:
        yield f"{type(error).__name__}: {error}"


def check(plan: Plan, program: Program | None = None, *, steps: int = STEPS) -> Iterator[str]:
    """Everything in which the training of a plan differs from one device, or from what the plan says.

    `program` is what the plan is lowered to, where the caller has it already.
    """
    program = lowered(plan) if program is None else program
    first: dict[int, dict[str, Array]] = {}

    def after_step(trainer: Trainer) -> None:
        if trainer.step == 1:
            first[trainer.rank] = pieces_of(trainer)

    trained = train(plan, text_of(plan), steps=steps, program=program, after_step=after_step)
    losses = [report.loss for report in trained.reports]
    ranks = [ran(trainer, losses, first[trainer.rank]) for trainer in trained.trainers]
    yield from compare(plan, program, ranks, steps=steps)


def ran(trainer: Trainer, losses: Sequence[float], first: dict[str, Array]) -> Ran:
    """What one rank says; `losses` are those of all steps."""
    registers, sent = trainer.worker.registers, sum(trainer.worker.transport.bytes_sent.values())
    return Ran(trainer.rank, pieces_of(trainer), first, list(losses), sent, (registers.nbytes, registers.host_nbytes))


def pieces_of(trainer: Trainer) -> dict[str, Array]:
    """The pieces of variables that a rank holds now."""
    return {name: trainer.worker.read(name) for name, _ in _pieces(trainer.plan, trainer.rank)}


def compare(plan: Plan, program: Program, ranks: Sequence[Ran], *, steps: int = STEPS) -> Iterator[str]:
    """In what the training of all ranks differs from one device, or from what the plan says."""
    if plan.training.micro_batch % plan.config.dp == 0:
        yield from verify(plan, program)
    else:
        admit(program)
    sent = steps * np.array(dense_bytes(program))
    known = moves_by_all_to_alls(program)

    def count(values: Mapping[str, Array]) -> None:
        sent[...] += routed_bytes(program, values) if known else 0

    wanted, losses = on_one_device(plan, steps=steps, seen=count)
    yield from values_off(plan, ranks, wanted, losses)
    yield from _shapes(plan, program.registers)
    claimed = tuple(steps * nbytes for nbytes in plan.claims.sent_bytes_per_step)
    ragged = any(register.ragged is not None for register in program.registers)
    expected, given = tuple(sent.tolist()) if ragged else claimed, tuple(found.sent_bytes for found in ranks)
    if known and given != expected:
        yield f"bytes sent: {given}, expected {expected}, claimed {claimed}"
    for found in ranks:
        planned = plan.claims.peak_memory_bytes[found.rank], plan.claims.peak_host_memory_bytes[found.rank]
        if planned != found.held_bytes:
            yield f"rank {found.rank} holds {found.held_bytes} bytes of registers, planned are {planned}"


def differences(plan: Plan, trained: Trained, *, steps: int) -> Iterator[str]:
    """In what losses and variables differ from those on one device."""
    wanted, losses = on_one_device(plan, steps=steps)
    ranks = [ran(trainer, [report.loss for report in trained.reports], {}) for trainer in trained.trainers]
    yield from values_off(plan, ranks, wanted, losses)


def on_one_device(
    plan: Plan, *, steps: int, seen: Callable[[Mapping[str, Array]], None] = lambda values: None
) -> tuple[dict[str, Array], list[float]]:
    """Variables after some steps on one device, and the mean loss of every step; no pass of the plan is in it.

    `seen` is shown all values after each micro-batch.
    """
    graph, training = training_graph(plan.model, plan.training), plan.training
    variables = {
        value.name: initial_piece(value, tuple((0, size) for size in value.spec.shape), seed=training.seed)
        for value in graph.with_role(Role.VARIABLE)
    }
    losses = []
    for step in range(steps):
        values = run_graph(graph, batches(plan, step), variables, step=step, seen=seen)
        losses.append(float(values[REPORT][0] / values[REPORT][1]))
    return variables, losses


def batches(plan: Plan, step: int) -> list[dict[str, Array]]:
    """The inputs of one step, a mapping per micro-batch."""
    specs = {value.name: value.spec for value in plan.graph.with_role(Role.INPUT)}
    shapes, count = {name: spec.shape for name, spec in specs.items()}, plan.training.num_micro_batches
    load = BatchLoader(plan.model.batch, shapes, text_of(plan), seed=plan.training.seed, num_micro_batches=count)
    found = []
    for number in range(count):
        arrays = {name: np.empty(spec.shape, spec.dtype) for name, spec in specs.items()}
        boxes = tuple(tuple((0, size) for size in spec.shape) for spec in specs.values())
        load(LoadTask(tuple(specs), boxes), step * count + number, list(arrays.values()))
        found.append(arrays)
    return found


def text_of(plan: Plan) -> Corpus:
    """Random text of the model's vocabulary, where it reads any."""
    return corpus(getattr(plan.model, "vocabulary", 2))


def values_off(plan: Plan, ranks: Sequence[Ran], wanted: dict[str, Array], losses: list[float]) -> Iterator[str]:
    """Losses of every step, and what the dtype allows to be compared of the variables, piece by piece."""
    exact = plan.training.dtype is DType.FLOAT64
    reports = [found.losses for found in ranks if found.losses]
    if not reports:
        yield "no rank reports a loss"
    for found in reports:
        for step, (loss, one) in enumerate(zip(found, losses, strict=True), 1):
            if not abs(loss - one) <= (EXACT if exact else SINGLE) * abs(one):
                yield f"loss of step {step}: {loss}, on one device {one}"
    if exact:
        bounds = {name: EXACT * max(1.0, float(np.max(np.abs(array)))) for name, array in wanted.items()}
        yield from _pieces_off(plan, ranks, [found.variables for found in ranks], wanted, bounds)
        return
    if any(found.first for found in ranks):
        state, _ = on_one_device(plan, steps=1)
        gradients = {name: array for name, array in state.items() if ":" in name}
        yield from _pieces_off(plan, ranks, [found.first for found in ranks], gradients, _of_largest(gradients))
    if plan.training.optimizer is Optimizer.SGD:
        for kind in (False, True):
            alike = {name: array for name, array in wanted.items() if (":" in name) is kind}
            yield from _pieces_off(plan, ranks, [found.variables for found in ranks], alike, _of_largest(alike))


def _of_largest(arrays: Mapping[str, Array]) -> dict[str, float]:
    """The bounds of float32, of tensors of one kind: by the part of the name behind the parameter's."""
    largest: dict[str, float] = {}
    for name, array in arrays.items():
        kind = name.rpartition(":")[2] if ":" in name else ""
        largest[kind] = max(largest.get(kind, 0.0), float(np.max(np.abs(array), initial=0.0)))
    return {name: SINGLE * largest[name.rpartition(":")[2] if ":" in name else ""] for name in arrays}


def _pieces_off(
    plan: Plan,
    ranks: Sequence[Ran],
    held: Sequence[Mapping[str, Array]],
    wanted: Mapping[str, Array],
    bounds: Mapping[str, float],
) -> Iterator[str]:
    """The pieces of `wanted` that a rank holds otherwise."""
    for found, pieces in zip(ranks, held, strict=True):
        for name, index in _pieces(plan, found.rank):
            if name in wanted:
                reference = wanted[name][index]
                fits = pieces[name].shape == reference.shape
                error = float(np.max(np.abs(pieces[name] - reference), initial=0.0)) if fits else math.inf
                if not error <= bounds[name]:
                    yield f"{name} on rank {found.rank}: off by {error}"


def _pieces(plan: Plan, rank: int) -> Iterator[tuple[str, tuple[slice, ...]]]:
    """(name, index of the piece) of each variable that a rank holds, by the signature that decides it."""
    graph, layout = plan.graph, plan.layout
    for value in graph.with_role(Role.VARIABLE):
        home = home_of(graph, layout.stages, layout.signatures, value.name)
        assert home is not None
        placement = layout.stages.placements[home.stage]
        if rank in placement.devices:
            box = local_box(value.spec.shape, home.layout, placement.mesh, placement.coords(rank))
            yield value.name, tuple(slice(begin, end) for begin, end in box)


def _shapes(plan: Plan, registers: tuple[Register, ...]) -> Iterator[str]:
    """Whether every register is as large as the layout of its tensor says."""
    held = {(t.name, t.stage): t for t in plan.priced.arrangement.tensors}
    placements = plan.layout.stages.placements
    for register in registers:
        stage = next(i for i, placement in enumerate(placements) if register.rank in placement.devices)
        tensor, placement = held[register.name, stage], placements[stage]
        spec = plan.graph.values[tensor.value].spec
        wanted = local_shape(spec.shape, tensor.layout, placement.mesh, placement.coords(register.rank))
        if (register.shape, register.dtype) != (wanted, spec.dtype):
            found = f"{register.dtype}{register.shape}"
            yield f"{register.name} on rank {register.rank} is {found}, not {spec.dtype}{wanted}"
