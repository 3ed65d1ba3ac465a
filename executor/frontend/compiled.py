"""Compiled: the program of a graph under way on one rank; its state rests in registers between calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from numpy.typing import NDArray

from executor.frontend.agreement import agree_on, agree_on_parts, digest_of, sharers_of
from executor.frontend.global_tensor import GlobalTensor
from executor.frontend.traced import TracedGraph, mapped
from executor.frontend.world import World
from executor.runtime.hooks import Hooks
from executor.runtime.initialize import given_piece, initial_piece
from executor.runtime.kernels.numpy import NumpyKernels
from executor.runtime.step_reports import Reports
from executor.runtime.transport.base import lanes_of
from executor.runtime.worker import Worker
from strategy.base.errors import InputError, present
from strategy.cost.cost import CostModel
from strategy.graph.graph import Role
from strategy.graph.ops import REGISTRY
from strategy.layout.layout import Home, Layout, home_of
from strategy.lowering.lower import lower
from strategy.nn.tracer import Tensor
from strategy.program.program import LoadTask, Program
from strategy.program.protocol import admit
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import local_box
from strategy.sbp.tensor import Box


@dataclass(slots=True)
class Compiled:
    """A program of this rank under way: between calls its worker rests, with all state in its registers."""

    world: World
    traced: TracedGraph
    layout: Layout
    cost: CostModel
    worker: Worker | None = None
    inputs: dict[str, NDArray[Any]] = field(default_factory=dict)
    told: dict[str, NDArray[Any]] = field(default_factory=dict)
    reads: Mapping[str, Mapping[int, Box]] = field(default_factory=dict)

    def start(self, held: Mapping[str, GlobalTensor]) -> None:
        """Lower, admit, and make this rank's worker, its state in the memory of `held` where that has it."""
        world, graph = self.world, self.traced.graph
        program = _numbered(world, lower(graph, self.layout, self.traced.pipeline, self.cost))
        admit(program)
        agree_on(world, "run", {"program": digest_of(program)})
        self.reads = _read_boxes(program)
        for number, lane in sorted(lanes_of(program).items()):
            if world.rank in lane.group:
                world.transport.open(number, lane)
        if not any(actor.rank == world.rank for actor in program.actors):
            return
        self.worker = Worker(
            program,
            graph,
            world.rank,
            world.transport,
            NumpyKernels(),
            REGISTRY,
            self._load,
            reports=[name for name in self.traced.step_values.values() if self._is_here(name)],
            hooks=Hooks(on_step=self._listen),
            shared={name: tensor.piece for name, tensor in held.items() if tensor.piece is not None},
            stall_s=world.timeout_s,
            record=False,
        )

    def state(
        self, seed: int, held: Mapping[str, GlobalTensor], given: Mapping[str, NDArray[Any]]
    ) -> dict[str, GlobalTensor]:
        """The variables that nothing held so far, in the memory of their registers, as they are given or start."""
        found = {}
        for value in self.traced.graph.with_role(Role.VARIABLE):
            home = self._home(value.name)
            if home is None or value.name in held:
                continue
            placement = self._placement(value.name, home)
            piece = None
            if self.worker is not None and self.world.rank in placement.devices:
                box = local_box(value.spec.shape, home.layout, placement.mesh, placement.coords(self.world.rank))
                known = given.get(value.name)
                piece = initial_piece(value, box, seed=seed) if known is None else given_piece(value, box, known)
                self.worker.write(value.name, piece)
                piece = self.worker.registers.block(self.worker.registers.index(value.name), 0)
            found[value.name] = GlobalTensor(value.spec, placement, home.layout, piece, self.world, is_state=True)
        return found

    def check(self, held: Mapping[str, GlobalTensor]) -> None:
        """Refuse state that does not lie as the layout has it.

        Raises:
            InputError: names the first such tensor.
        """
        for value in self.traced.graph.with_role(Role.VARIABLE):
            home = self._home(value.name)
            if home is None or value.name not in held:
                continue
            tensor, placement = held[value.name], self._placement(value.name, home)
            if (tensor.spec, tensor.placement.devices, tensor.sbp) != (value.spec, placement.devices, home.layout):
                expected = (
                    f"{value.spec.dtype}{list(value.spec.shape)} {', '.join(map(str, home.layout))} on {placement}"
                )
                hint = "call the planned graph before others that hold the module, or load its state_dict"
                raise InputError(
                    "state lies otherwise", where=value.name, got=str(tensor), expected=expected, hint=hint
                )

    def run(self, wholes: Sequence[NDArray[Any]], step: int) -> Any:
        """One step, as the training step of this number."""
        self.inputs = dict(zip(self.traced.inputs, wholes, strict=True))
        self.told = {}
        if self.worker is not None:
            self.worker.count_from(step)
            self.worker.run(steps=1)
        return mapped(self.traced.outputs, self._output)

    def agree_on_inputs(self, what: str, wholes: Sequence[NDArray[Any]]) -> None:
        """See that ranks that read the same part of an input are given the same.

        Raises:
            RunError: they are not; names input and ranks.
        """
        boxes = {name: self.reads.get(name, {}).get(self.world.rank) for name in self.traced.inputs}
        parts = {
            name: None if box is None else self._pieces(name, whole, box)
            for (name, box), whole in zip(boxes.items(), wholes, strict=True)
        }
        agree_on_parts(self.world, what, parts, {name: sharers_of(found) for name, found in self.reads.items()})

    def _pieces(self, name: str, whole: NDArray[Any], box: Box) -> NDArray[Any]:
        """What this rank reads of an input in a whole step, micro-batch by micro-batch."""
        rows = self.traced.graph.values[name].spec.shape[0] if whole.ndim else 1
        count = self.traced.num_micro_batches
        cut = tuple(slice(begin, end) for begin, end in box)
        return whole[cut] if count == 1 else whole.reshape(count, rows, *whole.shape[1:])[(slice(None), *cut)]

    def _output(self, tensor: Tensor) -> GlobalTensor:
        name = self.traced.step_values[tensor.name]
        home = present(self._home(name), f"the op that computes {name}")
        spec, placement = self.traced.graph.values[name].spec, self._placement(name, home)
        return GlobalTensor(spec, placement, home.layout, self.told.get(name), self.world)

    def _placement(self, name: str, home: Home) -> Placement:
        """The ranks of a value's stage, in the memory that it is in."""
        return replace(self.layout.stages.placements[home.stage], space=self.traced.graph.values[name].space)

    def _home(self, name: str) -> Home | None:
        return home_of(self.traced.graph, self.layout.stages, self.layout.signatures, name)

    def _is_here(self, name: str) -> bool:
        home = self._home(name)
        return home is not None and self.world.rank in self.layout.stages.placements[home.stage].devices

    def _listen(self, step: int, reports: Reports) -> None:
        self.told = dict(reports)

    def _load(self, task: LoadTask, number: int, arrays: Sequence[NDArray[Any]]) -> None:
        for name, box, array in zip(task.inputs, task.boxes, arrays, strict=True):
            whole = self.inputs[name]
            if self.traced.num_micro_batches > 1:
                rows = self.traced.graph.values[name].spec.shape[0]
                first = number % self.traced.num_micro_batches * rows
                whole = whole[first : first + rows]
            array[...] = whole[tuple(slice(begin, end) for begin, end in box)]


def _read_boxes(program: Program) -> dict[str, dict[int, Box]]:
    """Input -> rank -> the part of each micro-batch that the rank loads, as far as it loads any."""
    found: dict[str, dict[int, Box]] = {}
    for actor in program.actors:
        if isinstance(actor.task, LoadTask):
            for name, box in zip(actor.task.inputs, actor.task.boxes, strict=True):
                if name not in actor.task.absent:
                    found.setdefault(name, {})[actor.rank] = box
    return found


def _numbered(world: World, program: Program) -> Program:
    """A program whose rendezvous have numbers that no other one of this world has."""
    numbers = [actor.rendezvous for actor in program.actors if actor.rendezvous is not None]
    first = world.reserve(max(numbers, default=-1) + 1)
    actors = (
        actor if actor.rendezvous is None else replace(actor, rendezvous=actor.rendezvous + first)
        for actor in program.actors
    )
    return replace(program, actors=tuple(actors), ranks=world.size)
