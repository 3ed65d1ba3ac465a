"""Offload: what a device does not need for a while waits in its host's memory.

Activations (Rhu et al. 2016, arXiv:1602.08124) leave after their last reader in the forward pass of a layer, and come
back while the backward pass of the layer behind it runs:

    forward    x -> ... -> last reader        x:to_host = to_host x
               the first op two layers on,    after x:to_host
    backward   x:to_device = to_device x:to_host, after the first op of the layer behind
               what read x in the backward pass of the layer reads x:to_device

Copies have streams of their own. One that waits for nothing would run as soon as its original is on the host, and hold
on the device what was to leave it; and where copies take longer than what is computed beside them, what waits to leave
would pile up: hence `after`. So two layers have activations on the device at a time.

The optimiser (Ren et al. 2021, arXiv:2101.06840): parameters and their state live on the host, where they are updated.
Per step and parameter, one copy brings the parameter up, of which the model reads, and one takes the gradient down.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from strategy.base.errors import InputError, did_you_mean
from strategy.graph.graph import Graph, Lineage, Op, Phase, Role, Value, check_graph, of_op
from strategy.graph.ops import op_definition
from strategy.graph.ops.copy import TO_DEVICE, TO_HOST
from strategy.graph.ops.traits import Movement
from strategy.graph.weight_gradients import weight_gradients
from strategy.sbp.placement import Space
from strategy.sbp.tensor import Rate


def offload_activations(graph: Graph, patterns: Sequence[str] = ()) -> Graph:
    """The training graph with the activations of layers on the host between forward and backward pass.

    Args:
        graph: the training graph, what is recomputed already dropped from it.
        patterns: of names of the activations that are meant; all where there are none.

    Raises:
        InputError: a pattern matches none, or there are none.
    """
    trips = list(_trips(graph))
    names = [trip.value for trip in trips]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            where, hint = "config: offload_values", did_you_mean(pattern, names)
            problem = "a pattern matches no activation that waits for the backward pass"
            raise InputError(problem, where=where, got=pattern, hint=hint)
    if not trips:
        raise InputError("there is nothing to offload", where="config: offload", hint="the model has no layers")
    chosen = [trip for trip in trips if not patterns or any(fnmatchcase(trip.value, p) for p in patterns)]
    found = _Traveller(graph, chosen, weight_gradients(graph)).run()
    check_graph(found)
    return found


def offload_optimizer(graph: Graph) -> Graph:
    """The training graph with parameters, their state and their updates on the host."""
    found = _Mover(graph).run()
    check_graph(found)
    return found


def has_trips(graph: Graph) -> bool:
    """Whether activations of a training graph may leave for the host at all."""
    return next(_trips(graph), None) is not None


@dataclass(frozen=True, slots=True)
class _Trip:
    """An activation that leaves after op `last`, for the backward pass of `layer`.

    The copies to the host and back are of the lineages `leaves` and `returns`.
    """

    value: str
    layer: int
    last: str
    leaves: Lineage
    returns: Lineage


def _trips(graph: Graph) -> Iterator[_Trip]:
    """Of every activation, a trip for every layer whose backward pass reads it.

    It is that layer's own, or one that the layer reads in the forward pass too: gradient rules read nothing else. Made
    for an op of that layer, it follows it to its pipeline stage.
    """
    for name, value in graph.values.items():
        producer = graph.producer.get(name)
        if value.space is Space.HOST or value.rate is not Rate.MICRO_BATCH:
            continue
        if producer is None or producer.phase is not Phase.FORWARD:
            continue
        readers = graph.consumers[name]
        for layer in dict.fromkeys(op.layer for op in readers if op.phase is Phase.BACKWARD):
            ahead = [op for op in readers if op.phase is Phase.FORWARD and op.layer == layer]
            last = ahead[-1] if ahead else producer
            if layer is not None and layer == last.layer:
                own = producer.layer == layer
                leaves, returns = (
                    graph.derived(name, kind, layer) if own else of_op(last, f"{last.inputs.index(name)}:{kind}", layer)
                    for kind in (TO_HOST, TO_DEVICE)
                )
                yield _Trip(name, layer, last.name, leaves, returns)


APART = 2
"""So many layers later the forward pass waits for what leaves a layer."""


@dataclass(slots=True)
class _Traveller:
    graph: Graph
    trips: Sequence[_Trip]
    apart: frozenset[str]
    """Gradients of weights."""
    values: dict[str, Value] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    instead: dict[tuple[str, int | None], str] = field(default_factory=dict)
    """(value, layer) -> what the backward pass of that layer reads instead."""

    def run(self) -> Graph:
        """Copies to the host after the ops that read last, copies back ahead of the backward pass of a layer."""
        self.values.update(self.graph.values)
        leaving: dict[str, list[_Trip]] = {}
        coming: dict[int | None, list[_Trip]] = {}
        for trip in self.trips:
            leaving.setdefault(trip.last, []).append(trip)
            coming.setdefault(trip.layer, []).append(trip)
        left: dict[int, list[str]] = {}
        begun: dict[int | None, tuple[str, ...]] = {}
        for op in self.graph.ops:
            if op.phase is Phase.BACKWARD:
                if op.layer in coming:
                    waits = next((begun[layer] for layer in reversed(begun) if layer is not None), ()) or self._latest()
                    for trip in coming.pop(op.layer):
                        self._bring(trip, waits)
                self._add_backward(op)
                if op.layer not in begun and self._is_term(self.ops[-1]):
                    begun[op.layer] = self.ops[-1].outputs[:1]
            elif op.layer is not None and self._is_of_samples(op) and left.get(op.layer - APART):
                self.ops.append(replace(op, after=(*op.after, *left.pop(op.layer - APART))))
            else:
                self.ops.append(op)
            for trip in leaving.get(op.name, ()):
                self._copy(trip.leaves, trip, trip.value, TO_HOST, Phase.FORWARD, Space.HOST)
                left.setdefault(trip.layer, []).append(trip.leaves.name)
        return Graph(self.values, tuple(self.ops), self.graph.loss)

    def _is_of_samples(self, op: Op) -> bool:
        """Whether a forward pass computes this of what it is given."""
        return op.phase is Phase.FORWARD and any(self.values[n].rate is Rate.MICRO_BATCH for n in op.inputs)

    def _latest(self) -> tuple[str, ...]:
        """What backward passes have come to."""
        ahead = (op for op in reversed(self.ops) if op.phase is Phase.BACKWARD and self._is_term(op))
        return next((op.outputs[:1] for op in ahead), ())

    def _bring(self, trip: _Trip, waits: tuple[str, ...]) -> None:
        there = trip.leaves.name
        back = self._copy(trip.returns, trip, there, TO_DEVICE, Phase.BACKWARD, Space.DEVICE, after=waits)
        self.instead[trip.value, trip.layer] = back

    def _is_term(self, op: Op) -> bool:
        """Whether an op has computed something of the micro-batch that the backward pass goes on with.

        No copy, no sum over the step, and no gradient of a weight, which a schedule may put off.
        """
        brought = op_definition(op.kind).cost == Movement(Space.DEVICE)
        if brought or self.values[op.outputs[0]].rate is not Rate.MICRO_BATCH:
            return False
        return op.name not in self.apart

    def _add_backward(self, op: Op) -> None:
        """The op with its new inputs; a fence of what has come from the host is none too many."""
        inputs = tuple(self.instead.get((name, op.layer), name) for name in op.inputs)
        if op_definition(op.kind).rearranges and inputs != op.inputs:
            self.instead[op.outputs[0], op.layer] = inputs[0]
            del self.values[op.outputs[0]]
        else:
            self.ops.append(replace(op, inputs=inputs))

    def _copy(
        self,
        line: Lineage,
        trip: _Trip,
        source: str,
        kind: str,
        phase: Phase,
        space: Space,
        *,
        after: tuple[str, ...] = (),
    ) -> str:
        self.values[line.name] = replace(self.values[source], name=line.name, space=space)
        self.ops.append(line.op(kind, (source,), phase, trip.layer, after=after))
        return line.name


@dataclass(slots=True)
class _Mover:
    graph: Graph
    values: dict[str, Value] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    copies: dict[tuple[str, int | None], str] = field(default_factory=dict)
    """(value, layer) -> its copy in the other memory, for the ops of that layer."""

    def run(self) -> Graph:
        """A parameter comes up ahead of its first reader, a gradient goes down ahead of its update."""
        self.values.update(self.graph.values)
        state = self._move_state()
        for op in self.graph.ops:
            updates = op.phase is Phase.UPDATE and any(self._on_host(name) for name in op.inputs)
            host = op.name in state or updates or self.graph.on_host(op)
            cost = op_definition(op.kind).cost
            reads_host = cost.to is Space.DEVICE if isinstance(cost, Movement) else host
            inputs = tuple(self._at(name, op, host=reads_host) for name in op.inputs)
            self.ops.append(replace(op, inputs=inputs))
            if host and not isinstance(cost, Movement):
                self.values.update((n, replace(self.values[n], space=Space.HOST)) for n in (*op.outputs, *op.updates))
        return Graph(self.values, tuple(self.ops), self.graph.loss)

    def _move_state(self) -> set[str]:
        """Put what the optimiser updates on the host; gives the names of its ops: those that depend on the clip."""
        reached = {op.outputs[0] for op in self.graph.ops if op_definition(op.kind).clips}
        found: set[str] = set()
        for op in self.graph.ops:
            if reached.intersection(op.inputs):
                found.add(op.name)
                reached.update(op.outputs)
                self.values.update((name, replace(self.values[name], space=Space.HOST)) for name in op.updates)
        return found

    def _on_host(self, name: str) -> bool:
        return self.values[name].space is Space.HOST

    def _at(self, name: str, reader: Op, *, host: bool) -> str:
        """The value where its reader needs it. A parameter has one copy for all, other values one for each layer."""
        if self._on_host(name) is host:
            return name
        variable = self.values[name].role is Role.VARIABLE
        key = (name, None if variable else reader.layer)
        if key not in self.copies:
            kind, space = (TO_HOST, Space.HOST) if host else (TO_DEVICE, Space.DEVICE)
            position, layer = reader.inputs.index(name), reader.layer
            line = self.graph.derived(name, kind, layer) if variable else of_op(reader, f"{position}:{kind}", layer)
            self.values[line.name] = Value(line.name, self.values[name].spec, self.values[name].rate, space=space)
            self.ops.append(line.op(kind, (name,), reader.phase, layer))
            self.copies[key] = line.name
        return self.copies[key]
