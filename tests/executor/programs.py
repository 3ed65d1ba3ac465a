"""Small programs written by hand, with the ops they need and what they must compute."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from executor.runtime.transport.base import HostArray
from executor.runtime.worker import Worker
from strategy.graph.graph import Attrs, Graph, Op, Value
from strategy.graph.ops.base import AxisSignature, Call, OpDef, Specs
from strategy.lowering.memory import allocated
from strategy.program.program import (
    ActKind,
    Actor,
    BoxingTask,
    LoadTask,
    Message,
    OpTask,
    Port,
    Program,
    Register,
    Stream,
    Task,
    TransferTask,
)
from strategy.sbp.tensor import Box, DType, Shape, TensorSpec

WIDTH = 5
BOX: Box = ((0, WIDTH),)
RATE = 0.125


def define(kind: str, run: Callable[[Call], None]) -> OpDef:
    """An op of which only the meaning matters here."""

    def infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
        return tuple(inputs[:1])

    def flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
        return inputs[0].size

    def signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
        return []

    return OpDef(kind, infer, flop, signatures, run)


def _multiply(call: Call) -> None:
    np.multiply(call.inputs[0], call.inputs[1], out=call.outputs[0])


def _copy(call: Call) -> None:
    np.copyto(call.outputs[0], call.inputs[0])


def _accumulate_product(call: Call) -> None:
    product = call.inputs[0] * call.inputs[1]
    if call.first_of_piece:
        np.copyto(call.outputs[0], product)
    else:
        np.add(call.outputs[0], product, out=call.outputs[0])


def _accumulate(call: Call) -> None:
    if call.first_of_piece:
        np.copyto(call.outputs[0], call.inputs[0])
    else:
        np.add(call.outputs[0], call.inputs[0], out=call.outputs[0])


def _descend(call: Call) -> None:
    np.subtract(call.updates[0], RATE * call.inputs[0], out=call.updates[0])


REGISTRY = {
    definition.kind: definition
    for definition in (
        define("multiply", _multiply),
        define("copy", _copy),
        define("accumulate_product", _accumulate_product),
        define("accumulate", _accumulate),
        define("descend", _descend),
    )
}


@dataclass(slots=True)
class Builder:
    """Collects a program and the graph that its op tasks name. Registers and actors are referred to by name."""

    ranks: int
    registers: list[Register] = field(default_factory=list)
    actors: list[Actor] = field(default_factory=list)
    streams: list[Stream] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)

    def register(self, name: str, rank: int, *, blocks: int = 1, initial: int = 0, shape: Shape = (WIDTH,)) -> None:
        """A float64 register."""
        self.registers.append(Register(name, rank, shape, DType.FLOAT64, blocks, initial))

    def actor(
        self,
        name: str,
        rank: int,
        kind: ActKind,
        reads: Sequence[tuple[str, int]],
        writes: Sequence[tuple[str, int]],
        acts: int,
        task: Task | None = None,
        rendezvous: int | None = None,
        priority: int = 0,
    ) -> None:
        """An actor whose ports are (register name, acts per piece)."""
        index = {(r.name, r.rank): i for i, r in enumerate(self.registers)}
        ports = [tuple(Port(index[name, rank], share) for name, share in side) for side in (reads, writes)]
        self.actors.append(Actor(name, rank, kind, ports[0], ports[1], acts, rendezvous, priority, task=task))

    def compute(
        self,
        name: str,
        rank: int,
        kind: str,
        reads: Sequence[tuple[str, int]],
        writes: Sequence[tuple[str, int]],
        acts: int,
    ) -> None:
        """An actor that runs an op of its own; a `descend` updates what it writes."""
        inputs, written = tuple(n for n, _ in reads), tuple(n for n, _ in writes)
        updates = written if kind == "descend" else ()
        self.ops.append(Op(name, kind, inputs, () if updates else written, updates))
        ports = tuple(range(len(reads) + len(writes)))
        boxes = (BOX,) * len(reads), (BOX,) * len(writes)
        task = OpTask(name, ports[: len(reads)], ports[len(reads) :], *boxes)
        self.actor(name, rank, ActKind.COMPUTE, reads, writes, acts, task)

    def stream(self, rank: int, name: str, sequence: Sequence[str], *, dynamic: bool = False) -> None:
        """A stream of the actors so named on `rank`."""
        index = {(a.name, a.rank): i for i, a in enumerate(self.actors)}
        self.streams.append(Stream(rank, name, tuple(index[actor, rank] for actor in sequence), dynamic))

    def build(self) -> tuple[Program, Graph]:
        """The program and its graph."""
        program = allocated(Program(self.ranks, tuple(self.registers), tuple(self.actors), tuple(self.streams)))
        names = dict.fromkeys(name for op in self.ops for name in (*op.inputs, *op.outputs, *op.updates))
        values = {name: Value(name, TensorSpec((WIDTH,), DType.FLOAT64)) for name in names}
        return program, Graph(values, tuple(self.ops))


def batch(number: int, box: Box = BOX) -> HostArray:
    """What the loader gives as the `number`-th micro-batch."""
    ((begin, end),) = box
    values: HostArray = np.sin(np.arange(begin, end) + 10.0 * number)
    return values


def load(task: LoadTask, number: int, arrays: Sequence[HostArray]) -> None:
    """The loader's function."""
    for array, box in zip(arrays, task.boxes, strict=True):
        array[:] = batch(number, box)


def pipeline(micro_batches: int, *, in_flight: int) -> tuple[Program, Graph]:
    """Two stages: h = x * first; loss = h * second; both weights descend along the gradient of a step's batch.

    `in_flight` is how many micro-batches the first stage holds: 1F1B's cap, or all of them.
    """
    m = micro_batches
    b = Builder(2)
    for name in ("x", "h", "gh"):
        b.register(name, 0, blocks=in_flight)
    for name in ("h", "gh"):
        b.register(name, 1, blocks=2)
    b.register("loss", 1)
    for rank, name in ((0, "first"), (1, "second")):
        b.register(name, rank, initial=1)
        b.register(f"g_{name}", rank)

    def transfer(source: int, target: int) -> TransferTask:
        return TransferTask((Message(source, target, BOX),), {source: BOX}, {target: BOX})

    b.actor("load", 0, ActKind.LOAD, [], [("x", 1)], m, LoadTask(("x",), (BOX,)))
    b.compute("forward0", 0, "multiply", [("x", 1), ("first", m)], [("h", 1)], m)
    b.actor("send h", 0, ActKind.TRANSFER, [("h", 1)], [], m, transfer(0, 1), 1)
    b.actor("receive gh", 0, ActKind.TRANSFER, [], [("gh", 1)], m, transfer(1, 0), 2)
    b.compute("backward0", 0, "accumulate_product", [("x", 1), ("gh", 1)], [("g_first", m)], m)
    b.compute("update0", 0, "descend", [("g_first", 1)], [("first", 1)], 1)
    b.actor("receive h", 1, ActKind.TRANSFER, [], [("h", 1)], m, transfer(0, 1), 1)
    b.compute("loss1", 1, "accumulate_product", [("h", 1), ("second", m)], [("loss", m)], m)
    b.compute("backward1", 1, "copy", [("second", m)], [("gh", 1)], m)
    b.compute("weight1", 1, "accumulate", [("h", 1)], [("g_second", m)], m)
    b.actor("send gh", 1, ActKind.TRANSFER, [("gh", 1)], [], m, transfer(1, 0), 2)
    b.compute("update1", 1, "descend", [("g_second", 1)], [("second", 1)], 1)

    steady = ["backward0", "forward0"] * (m - in_flight)
    b.stream(0, "loader", ["load"], dynamic=True)
    b.stream(0, "compute", ["forward0"] * in_flight + steady + ["backward0"] * in_flight + ["update0"])
    b.stream(0, "out", ["send h"] * m)
    b.stream(0, "in", ["receive gh"] * m)
    b.stream(1, "compute", ["loss1", "backward1", "weight1"] * m + ["update1"])
    b.stream(1, "in", ["receive h"] * m)
    b.stream(1, "out", ["send gh"] * m)
    return b.build()


def start_weights(worker: Worker) -> None:
    """The pipeline's weights before the first step."""
    name = ("first", "second")[worker.rank]
    worker.write(name, np.linspace(0.5, 1.5, WIDTH) * (1 + worker.rank))


def pipeline_reference(micro_batches: int, steps: int) -> tuple[HostArray, HostArray, list[HostArray]]:
    """Both weights after `steps`, and the loss of every step, by the plain loop and in the program's order."""
    first, second = np.linspace(0.5, 1.5, WIDTH), np.linspace(0.5, 1.5, WIDTH) * 2
    losses = []
    for step in range(steps):
        batches = [batch(step * micro_batches + number) for number in range(micro_batches)]
        hidden = [x * first for x in batches]
        losses.append(_in_order([h * second for h in hidden]))
        first_gradient, second_gradient = _in_order([x * second for x in batches]), _in_order(hidden)
        first, second = first - RATE * first_gradient, second - RATE * second_gradient
    return first, second, losses


def _in_order(terms: Sequence[HostArray]) -> HostArray:
    total = terms[0].copy()
    for term in terms[1:]:
        total += term
    return total


def data_parallel(ranks: int) -> tuple[Program, Graph]:
    """Every rank multiplies its batch with its copy of a weight; gradients are all-reduced, weights descend."""
    b = Builder(ranks)
    boxing = BoxingTask(tuple(range(ranks)), (BOX,) * ranks, (BOX,) * ranks)
    for rank in range(ranks):
        b.register("weight", rank, initial=1)
        for name in ("x", "term", "gradient"):
            b.register(name, rank, blocks=2)
        b.actor("load", rank, ActKind.LOAD, [], [("x", 1)], 1, LoadTask(("x",), (BOX,)))
        b.compute(f"product{rank}", rank, "multiply", [("x", 1), ("weight", 1)], [("term", 1)], 1)
        b.actor("reduce", rank, ActKind.ALL_REDUCE, [("term", 1)], [("gradient", 1)], 1, boxing, 7)
        b.compute(f"update{rank}", rank, "descend", [("gradient", 1)], [("weight", 1)], 1)
        b.stream(rank, "loader", ["load"], dynamic=True)
        b.stream(rank, "compute", [f"product{rank}", f"update{rank}"])
        b.stream(rank, "communication", ["reduce"])
    return b.build()


def credits_only(ranks: int, acts: int) -> tuple[Program, Graph]:
    """No data at all: on every rank a producer, a rendezvous of all ranks, and a consumer."""
    b = Builder(ranks)
    for rank in range(ranks):
        b.register("made", rank, blocks=2)
        b.register("met", rank, blocks=1)
        b.actor("make", rank, ActKind.COMPUTE, [], [("made", 1)], acts)
        b.actor("meet", rank, ActKind.ALL_REDUCE, [("made", 1)], [("met", 1)], acts, rendezvous=0)
        b.actor("use", rank, ActKind.COMPUTE, [("met", 1)], [], acts)
        b.stream(rank, "make", ["make"] * acts)
        b.stream(rank, "meet", ["meet"] * acts)
        b.stream(rank, "use", ["use"] * acts)
    return b.build()
