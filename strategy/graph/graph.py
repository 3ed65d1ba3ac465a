"""Graph: the logical program of one training step, written as if for one "super device".

An op reads values and writes new ones; a value is written once. Two exceptions keep the notation honest: a
*variable* (parameter or optimiser moment) is a value without producer that lives across steps, and an op may
*update* variables in place. Every value has a rate: a micro-batch value appears once per micro-batch, a step
value once per step. The order of `ops` is a topological order and is the canonical order of execution.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property, lru_cache

from strategy.base.errors import GraphError
from strategy.sbp.placement import MOVES, Space
from strategy.sbp.tensor import Rate, TensorSpec

Attr = int | float | str | tuple[int, ...] | tuple[float, ...]
Attrs = Mapping[str, Attr]
Path = tuple[str | int, ...]
"""Attributes of modules, from the outermost; members of `Layers` are numbers."""


class Role(StrEnum):
    """Where a value comes from."""

    INPUT = "input"
    VARIABLE = "variable"
    COMPUTED = "computed"


class Phase(StrEnum):
    """Which part of a training step an op belongs to.

    Gradients of weights are part of the backward phase unless a pass sets them apart.
    """

    FORWARD = "forward"
    BACKWARD = "backward"
    WEIGHT = "weight"
    UPDATE = "update"


@dataclass(frozen=True, slots=True)
class Value:
    """A logical tensor of the graph."""

    name: str
    spec: TensorSpec
    rate: Rate = Rate.MICRO_BATCH
    role: Role = Role.COMPUTED
    init: str = ""
    """How a variable starts: `"zeros"`, `"ones"`, `"constant(figure)"` or `"normal(std)"`."""
    space: Space = Space.DEVICE
    """The memory that it is in, on every rank of its placement."""
    parameter: str = ""
    """Of a variable that is the state of another, an optimiser's moment say: that other."""
    path: Path = ()
    """Of a module's parameter: the attributes that lead to it."""

    @property
    def layer(self) -> int | None:
        """Of a module's parameter: the repeated layer that it belongs to."""
        return layer_of(self.path)

    @property
    def template(self) -> str:
        """Of a module's parameter: what it is called in every repeated layer."""
        return template_of(self.path)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation. `updates` are variables that it rewrites in place, once per step."""

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    updates: tuple[str, ...] = ()
    attrs: Attrs = field(default_factory=dict)
    phase: Phase = Phase.FORWARD
    layer: int | None = None
    """Index of the repeated layer that the op belongs to; None outside of layers."""
    repeats: str = ""
    """The forward op whose work it does again: its FLOPs are the hardware's, not the model's."""
    after: tuple[str, ...] = ()
    """Values that must be there before it acts, if they are on its stage; it does not look at them."""
    origin: str = ""
    """Provenance: the op of the model that it was made for (its gradient, its clone, a cast of what it writes, a sum of
    that, ...). Empty for the ops of the model, and for what belongs to none."""
    parameter: str = ""
    """Provenance: the variable that it was made for (its update, a cast, a repeat, a tile of it, ...)."""
    template: str = ""
    """What it is called in every repeated layer: `layers.*.mlp.fc1`. Empty where that is its name."""
    labels: tuple[str, ...] = ()
    """Of its outputs, the first left out."""
    lone_layer: str = ""
    """Outside of repeated layers: the layer unlike these that it belongs to, DeepSeek-V3's first dense one, say."""

    @property
    def root(self) -> str:
        """The op of the model that it belongs to, which may be itself."""
        return self.origin or self.name

    @property
    def any_layer(self) -> int | str | None:
        """The layer that it belongs to, repeated or not; None outside of all."""
        return (self.lone_layer or None) if self.layer is None else self.layer


@dataclass(frozen=True, slots=True)
class Lineage:
    """What a new op is called, and its provenance (see `Op`)."""

    name: str
    template: str = ""
    origin: str = ""
    parameter: str = ""
    lone_layer: str = ""

    def op(
        self,
        kind: str,
        inputs: Sequence[str],
        phase: Phase,
        layer: int | None,
        *,
        attrs: Attrs | None = None,
        after: tuple[str, ...] = (),
    ) -> Op:
        """An op of this lineage that writes one value, called like it."""
        return Op(
            self.name,
            kind,
            tuple(inputs),
            (self.name,),
            attrs=attrs or {},
            phase=phase,
            layer=layer,
            after=after,
            origin=self.origin,
            parameter=self.parameter,
            template=self.template,
            lone_layer=self.lone_layer,
        )


def lineage_of(op: Op) -> Lineage:
    """That of an op that is there."""
    return Lineage(op.name, op.template, op.origin, op.parameter, op.lone_layer)


def of_op(op: Op, label: str, layer: int | None) -> Lineage:
    """The lineage of an op of a layer that is made for another, or for the same op of the model or variable as that."""
    template = op.template if op.template and op.layer == layer else op.name
    origin = "" if op.parameter else op.root
    return Lineage(f"{op.name}:{label}", f"{template}:{label}", origin, op.parameter, op.lone_layer)


def of_value(value: Value, producer: Op | None, label: str, layer: int | None) -> Lineage:
    """The lineage of an op of a layer that is made for a value, by whatever wrote that."""
    name = f"{value.name}:{label}"
    if producer is None:
        parameter = (value.parameter or value.name) if value.role is Role.VARIABLE else ""
        template = value.template if value.template and value.layer == layer else value.name
        return Lineage(name, f"{template}:{label}", "", parameter)
    template = value.name
    if producer.template and producer.layer == layer:
        template = ".".join((producer.template, *producer.labels[: producer.outputs.index(value.name)][-1:]))
    origin = "" if producer.parameter else producer.root
    return Lineage(name, f"{template}:{label}", origin, producer.parameter, producer.lone_layer)


@lru_cache(maxsize=1 << 14)
def layer_of(path: Path) -> int | None:
    """The repeated layer at the end of a path, the innermost one."""
    return next((part for part in reversed(path) if isinstance(part, int)), None)


@lru_cache(maxsize=1 << 14)
def template_of(path: Path) -> str:
    """A path as text, with a star in place of the innermost repeated layer."""
    inner = max((at for at, part in enumerate(path) if isinstance(part, int)), default=None)
    return ".".join("*" if at == inner else str(part) for at, part in enumerate(path))


@dataclass(frozen=True)
class Graph:
    """Values and ops, in canonical order. Validate with `check_graph` once, on construction by the tracer."""

    values: Mapping[str, Value]
    ops: tuple[Op, ...]
    loss: str = ""

    @cached_property
    def producer(self) -> Mapping[str, Op]:
        """Value name -> the op that writes it (inputs and variables have none)."""
        return {name: op for op in self.ops for name in op.outputs}

    @cached_property
    def consumers(self) -> Mapping[str, tuple[Op, ...]]:
        """Value name -> the ops that read it, in canonical order, each once."""
        found: dict[str, list[Op]] = {name: [] for name in self.values}
        for op in self.ops:
            for name in dict.fromkeys(op.inputs):
                found[name].append(op)
        return {name: tuple(ops) for name, ops in found.items()}

    @cached_property
    def followers(self) -> Mapping[str, tuple[Op, ...]]:
        """Value name -> the ops that wait for it without reading it."""
        found: dict[str, tuple[Op, ...]] = {}
        for op in self.ops:
            found.update((name, (*found.get(name, ()), op)) for name in op.after)
        return found

    def on_host(self, op: Op) -> bool:
        """Whether the host computes an op: what it writes stays in the host's memory, and so was what it reads."""
        return any(self.values[name].space is Space.HOST for name in (*op.inputs, *op.updates)) and all(
            self.values[name].space is Space.HOST for name in (*op.outputs, *op.updates)
        )

    @cached_property
    def updater(self) -> Mapping[str, Op]:
        """Variable name -> the op that updates it."""
        return {name: op for op in self.ops for name in op.updates}

    @cached_property
    def by_name(self) -> Mapping[str, Op]:
        """Op name -> op."""
        return {op.name: op for op in self.ops}

    def derived(self, name: str, label: str, layer: int | None) -> Lineage:
        """The lineage of an op of a layer that is made for a value."""
        return of_value(self.values[name], self.producer.get(name), label, layer)

    def parameter_of(self, name: str) -> str:
        """The variable that a value is, is the state of, or was made for; empty where there is none."""
        value, producer = self.values[name], self.producer.get(name)
        if value.role is Role.VARIABLE:
            return value.parameter or name
        return "" if producer is None else producer.parameter

    def template_of(self, op: Op) -> str:
        """What ops that are tied over the layers have in common; what computes an op again has it of that."""
        known = self.by_name[op.repeats] if op.repeats else op
        return known.template or known.name

    def specs(self, names: Sequence[str]) -> tuple[TensorSpec, ...]:
        """The specs of several values."""
        return tuple(self.values[name].spec for name in names)

    def with_role(self, role: Role) -> tuple[Value, ...]:
        """All values of one role, in graph order."""
        return tuple(value for value in self.values.values() if value.role is role)

    @cached_property
    def num_layers(self) -> int:
        """How many repeated layers the graph holds."""
        return 1 + max((op.layer for op in self.ops if op.layer is not None), default=-1)


def act_rate(graph: Graph, op: Op) -> Rate:
    """How often an op acts: once per micro-batch if it reads or writes a value of that rate."""
    rates = [graph.values[name].rate for name in (*op.inputs, *op.outputs)]
    return Rate.MICRO_BATCH if Rate.MICRO_BATCH in rates else Rate.STEP


def deciding_op(graph: Graph, value: str) -> Op | None:
    """The op whose signature says where a value lives: what writes it; for a frozen variable, what reads it first.

    Graph inputs have none, nor has a variable that no op uses: nobody holds it.
    """
    if graph.values[value].role is Role.INPUT:
        return None
    writer = graph.producer.get(value) or graph.updater.get(value)
    return writer or next(iter(graph.consumers[value]), None)


def written_space(kind: str, operands: Sequence[Value]) -> Space:
    """The memory that an op writes to: the one it moves its input to, else the one that all it reads is in.

    Raises:
        GraphError: it reads from both memories, or moves what is there already.
    """
    here = {value.space for value in operands}
    if len(here) > 1:
        told = ", ".join(f"{value.name} of the {value.space}" for value in operands)
        raise GraphError([f"{kind} reads from both memories (got {told}); to_global brings them to one"])
    if kind in MOVES and here == {MOVES[kind]}:
        raise GraphError([f"{kind} moves {operands[0].name}, which is there already"])
    return MOVES[kind] if kind in MOVES else next(iter(here), Space.DEVICE)


def _memory_problems(graph: Graph, op: Op) -> Iterator[str]:
    """What an op reads, updates and writes is in one memory, except for what it moves to the other."""
    known = [graph.values[name] for name in (*op.inputs, *op.updates) if name in graph.values]
    try:
        space = written_space(op.kind, known)
    except GraphError as error:
        yield from (f"op {op.name}: {problem}" for problem in error.problems)
        return
    for name in op.outputs:
        if name in graph.values and graph.values[name].space is not space:
            yield f"op {op.name}: writes {name} of the {graph.values[name].space}, and computes on the {space}"


def check_graph(graph: Graph) -> None:
    """Raise with every structural problem at once: unknown, duplicate, unwritten and untimely values, untimely ops.

    A variable is updated once and not read afterwards: the reader would get the new value by the order of the ops, and
    the old one by the actors' credits. The forward pass is over when the backward pass begins: a micro-batch passes
    through the stages as one run of ops forth and one back.

    Raises:
        GraphError: with one line per problem, each naming op and value.
    """
    problems: list[str] = []
    written = {value.name for value in graph.values.values() if value.role is not Role.COMPUTED}
    names: set[str] = set()
    updated: dict[str, str] = {}
    turn = ""
    for op in graph.ops:
        turn = turn or (op.name if op.phase is Phase.BACKWARD else "")
        if turn and op.phase is Phase.FORWARD:
            problems.append(f"op {op.name}: is of the forward pass, after op {turn} has begun the backward pass")
        if op.name in names:
            problems.append(f"op {op.name}: the name is used twice")
        names.add(op.name)
        reads = (*op.inputs, *op.updates, *op.after)
        for name in reads if problems or not written.issuperset(reads) else ():
            if name not in graph.values:
                problems.append(f"op {op.name}: reads {name}, which the graph does not hold")
            elif name not in written:
                problems.append(f"op {op.name}: reads {name} before anything writes it (a cycle, or a wrong order)")
        for name in op.outputs:
            if name not in graph.values:
                problems.append(f"op {op.name}: writes {name}, which the graph does not hold")
            elif name in written:
                problems.append(f"op {op.name}: writes {name}, which is already written")
            written.add(name)
        fixed = [n for n in op.updates if n in graph.values and graph.values[n].role is not Role.VARIABLE]
        problems += [f"op {op.name}: updates {name}, which is not a variable" for name in fixed]
        if not updated.keys().isdisjoint((*op.inputs, *op.updates)):
            late = [n for n in op.inputs if n in updated]
            problems += [f"op {op.name}: reads {name} after op {updated[name]} has updated it" for name in late]
            again = [n for n in op.updates if n in updated]
            problems += [f"op {op.name}: updates {n}, which op {updated[n]} has already updated" for n in again]
        updated.update({name: op.name for name in op.updates if name not in updated})
        problems += _memory_problems(graph, op)
    problems += [f"value {name}: nothing writes it" for name in graph.values if name not in written]
    if graph.loss and graph.loss not in graph.values:
        problems.append(f"the loss {graph.loss} is no value of the graph")
    if not graph.ops:
        problems.append("the graph has no ops")
    if problems:
        raise GraphError(problems)
