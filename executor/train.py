"""Train: one rank's part of a training run by a plan.

The trainer owns the worker, the state of this rank and its way to and from checkpoints; it knows nothing of files of
results or of the command line.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from numpy.typing import NDArray

from executor.checkpoint import Checkpoint, Reader, TensorPart
from executor.data.feed import BatchesAhead
from executor.data.synthetic import BatchLoader
from executor.data.text import Corpus
from executor.runtime.acts import Load
from executor.runtime.bitwise import summation_order
from executor.runtime.finiteness import NonFinite, is_finite
from executor.runtime.hooks import Hooks
from executor.runtime.initialize import given_piece, initial_piece
from executor.runtime.issuing import AHEAD
from executor.runtime.kernels.base import Kernels
from executor.runtime.transport.base import Transport
from executor.runtime.tree_sums import summation_nbytes
from executor.runtime.worker import Worker
from strategy.base.errors import EnvironmentLacks, InputError, PlanError, present
from strategy.base.units import format_bytes
from strategy.graph.graph import Role, Value, deciding_op
from strategy.graph.ops import REGISTRY
from strategy.layout.layout import Home, home_of
from strategy.lowering.lower import lower
from strategy.lowering.memory import fullest_rank
from strategy.models import Tokens
from strategy.passes.training import REPORT
from strategy.plan.plan import Plan
from strategy.program.feed import BLOCKS
from strategy.program.program import Program
from strategy.sbp.sbp import local_box
from strategy.sbp.tensor import Box, is_empty


@dataclass(frozen=True, slots=True)
class StepReport:
    """What the host learns of one step. `loss` is the mean over the tokens of the global batch.

    A step whose gradients are not all finite changes nothing; it is *skipped*, and the training goes on, if the
    training says so. Loss and norm may then be no numbers.
    """

    step: int
    loss: float
    grad_norm: float
    skipped: bool
    step_time_s: float
    tokens_per_s: float

    @property
    def is_finite(self) -> bool:
        """Whether loss and norm are numbers."""
        return math.isfinite(self.loss) and math.isfinite(self.grad_norm)


def program_of(plan: Plan) -> Program:
    """The program that every rank of a plan runs."""
    return lower(plan.graph, plan.layout, plan.pipeline, plan.cost, tokens_per_step=plan.tokens_per_step)


class Trainer:
    """One rank of a training run.

    Args:
        plan: admitted and verified.
        transport: of this rank, with the lanes of `program`.
        kernels: what runs ops.
        corpus: the text; its training part is read by models of tokens.
        program: `program_of(plan)`, where the caller has it already.
        checkpoint: where to go on from; else the training starts anew.
        weights: parameters to start with, by name; what they lack starts as the graph says.
        on_act: called before each act, with (actor, number).
        on_wait: called when nothing has happened on this rank for a second, with what it waits for.
        stall_s: seconds after which that is a failure.
        record: whether to keep a record per act.
        ahead: acts that the host may be ahead of a device with streams.
        batches_ahead: micro-batches that are read and decoded beside the steps; with none, batches are made as they
            are loaded.
        bitwise: learn the same, to the last bit, as any other plan of equal micro-batches (see `runtime.bitwise`).

    Raises:
        InputError: the checkpoint is of another model, seed or text.
        EnvironmentLacks: the plan multiplies codes of 8 or 4 bits, or adds up in one tree, without a kernel for it.
        PlanError, GraphError: the plan's sums over micro-batches are not in one tree, or do not fit into memory so.
    """

    def __init__(
        self,
        plan: Plan,
        transport: Transport,
        kernels: Kernels,
        corpus: Corpus,
        *,
        program: Program | None = None,
        checkpoint: Checkpoint | None = None,
        weights: Mapping[str, NDArray[Any]] | None = None,
        on_act: Callable[[int, int], None] | None = None,
        on_wait: Callable[[str], None] | None = None,
        stall_s: float = 60.0,
        record: bool = False,
        ahead: int = AHEAD,
        batches_ahead: int = BLOCKS,
        bitwise: bool = False,
    ) -> None:
        self.plan = plan
        self.program = program_of(plan) if program is None else program
        self.corpus = corpus
        self.step = 0
        self.rank = transport.rank
        self.bitwise = bitwise
        if checkpoint is not None:
            _check_meta(checkpoint, checkpoint_meta(plan, corpus, bitwise=bitwise))
            self.step = checkpoint.step
        graph, count = plan.graph, plan.training.num_micro_batches
        sums_in = None
        self.summation_nbytes = (0,) * plan.ranks
        if bitwise:
            if not kernels.host:
                raise EnvironmentLacks("the GPU backend adds up in orders of its own; train with --backend numpy")
            sums_in = summation_order(self.program, plan.graph, plan.layout, plan.config.axes)
            self.summation_nbytes = summation_nbytes(sums_in, self.program, graph)
            _check_memory(plan, self.summation_nbytes)
        shapes = {value.name: value.spec.shape for value in graph.with_role(Role.INPUT)}
        seed = plan.training.seed
        by_rank = sums_in is not None and sums_in.by_rank
        made = BatchLoader(plan.model.batch, shapes, corpus, seed=seed, num_micro_batches=count, by_rank=by_rank)
        load: Load = made
        if batches_ahead:
            load = BatchesAhead(
                self.program, self.rank, made, blocks=batches_ahead, first_step=self.step, wake=transport.wake
            )
        self.reports = self._holds(REPORT)
        self._report: NDArray[Any] | None = None
        self.worker = Worker(
            self.program,
            graph,
            self.rank,
            transport,
            kernels,
            REGISTRY,
            load,
            reports=(REPORT,) if self.reports else (),
            hooks=Hooks(on_act=on_act, on_step=self._on_step, on_wait=on_wait),
            first_step=self.step,
            stall_s=stall_s,
            record=record,
            hold_updates=not plan.training.skips,
            sums_in=sums_in,
            ahead=ahead,
        )
        reader = None if checkpoint is None else Reader(checkpoint)
        for value, box in self._variables():
            if reader is not None:
                piece = reader.load(value.name, box)
            elif weights is not None and value.name in weights:
                piece = given_piece(value, box, weights[value.name])
            else:
                piece = initial_piece(value, box, seed=plan.training.seed)
            self.worker.write(value.name, piece)

    def run(self) -> StepReport | None:
        """One step; the report on ranks that hold it, None elsewhere."""
        start = time.perf_counter()
        self.worker.run(steps=1)
        elapsed = time.perf_counter() - start
        self.step += 1
        if self._report is None:
            return None
        loss_sum, tokens, norm = (float(x) for x in self._report)
        skipped = self.plan.training.skips and not math.isfinite(norm)
        return StepReport(self.step, loss_sum / tokens, norm, skipped, elapsed, self.plan.tokens_per_step / elapsed)

    def is_broken(self, report: StepReport | None) -> bool:
        """Whether this rank knows of numbers in the last step that are not finite, and the training does not skip."""
        if self.plan.training.skips:
            return False
        return self.worker.held_updates or (report is not None and not report.is_finite)

    def state_is_finite(self) -> bool:
        """Whether all that this rank would save is."""
        return all(is_finite(self.worker.read(value.name)) for value, _ in self._variables())

    def find_non_finite(self) -> NonFinite | None:
        """Run the last step again, with the state that it left: the first act of this rank whose output is not finite.

        All ranks call it.
        """
        self.worker.count_from(self.step - 1)
        return self.worker.find_non_finite()

    def owned_pieces(self) -> list[TensorPart]:
        """The parts of the state that this rank writes to a checkpoint: of several replicas, the lowest rank's."""
        pieces = []
        for value, box in self._variables():
            if self.rank == min(rank for rank, other in self._boxes(value).items() if other == box):
                pieces.append(TensorPart(value.name, value.spec.shape, box, self.worker.read(value.name)))
        return pieces

    def _on_step(self, step: int, reports: Mapping[str, NDArray[Any]]) -> None:
        self._report = reports.get(REPORT)

    def _holds(self, name: str) -> bool:
        home = self._home(name)
        return self.rank in self.plan.layout.stages.placements[home.stage].devices

    def _home(self, name: str) -> Home:
        layout = self.plan.layout
        home = home_of(self.plan.graph, layout.stages, layout.signatures, name)
        return present(home, f"the op that computes {name}")

    def _boxes(self, value: Value) -> dict[int, Box]:
        home = self._home(value.name)
        placement = self.plan.layout.stages.placements[home.stage]
        return {
            rank: local_box(value.spec.shape, home.layout, placement.mesh, placement.coords(rank))
            for rank in placement.devices
        }

    def _variables(self) -> list[tuple[Value, Box]]:
        """The variables that this rank holds something of, each with its piece."""
        used = (v for v in self.plan.graph.with_role(Role.VARIABLE) if deciding_op(self.plan.graph, v.name) is not None)
        found = ((value, self._boxes(value)) for value in used)
        return [
            (value, boxes[self.rank]) for value, boxes in found if self.rank in boxes and not is_empty(boxes[self.rank])
        ]


def _check_memory(plan: Plan, summation: Sequence[int]) -> None:
    """Refuse a plan whose sums in one tree do not fit beside its registers.

    Raises:
        PlanError: with what is missing.
    """
    peaks = [sum(both) for both in zip(plan.claims.peak_memory_bytes, summation, strict=True)]
    needed, limit = fullest_rank(plan.cluster, peaks, plan.claims.memory_limit_bytes)
    if needed > limit:
        raise PlanError(
            "sums in one tree do not fit beside the registers",
            where="--bitwise",
            got=f"{format_bytes(needed)} on the fullest rank",
            expected=f"{format_bytes(limit)}, {format_bytes(needed - limit)} less",
            hint="search with more stages or fewer micro-batches per rank, or train without --bitwise",
        )


def checkpoint_meta(plan: Plan, corpus: Corpus, *, bitwise: bool = False) -> dict[str, str | int | float]:
    """What a checkpoint must share with a run that goes on from it (the plan may differ)."""
    training = plan.training
    how = asdict(training)
    apart = ("num_micro_batches", "dtype", "global_batch", "seed", *(() if training.groups else ("groups",)))
    return {
        "model": f"{plan.model}",
        "optimiser": " ".join(f"{key}={value}" for key, value in how.items() if key not in apart),
        "dtype": str(training.dtype),
        "global_batch": training.global_batch,
        "seed": training.seed,
        "data": corpus.digest if reads_text(plan) else "synthetic",
        "sums": "in one tree" if bitwise else "as planned",
    }


def reads_text(plan: Plan) -> bool:
    """Whether the plan's model is trained on tokens of a text."""
    return any(isinstance(source, Tokens) for source in plan.model.batch.values())


def _check_meta(checkpoint: Checkpoint, expected: Mapping[str, str | int | float]) -> None:
    for key, value in expected.items():
        found = checkpoint.meta.get(key, "as planned" if key == "sums" else None)
        if found != value:
            raise InputError(
                "the checkpoint is of another run", where=f"{checkpoint.folder}: {key}", got=found, expected=str(value)
            )


def check_world(plan: Plan, size: int) -> None:
    """Refuse a number of processes that is not the plan's.

    Raises:
        PlanError: with both counts.
    """
    if size != plan.ranks:
        raise PlanError(
            "the plan is for another number of ranks",
            got=f"{size} processes",
            expected=f"{plan.ranks}",
            hint=f"start it with mpiexec -n {plan.ranks}",
        )
