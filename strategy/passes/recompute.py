"""Recompute: activations that the backward pass computes again instead of keeping (Chen et al. 2016, arXiv:1604.06174).

What is dropped lives in a layer, a repeated one or not. Ahead of the first backward op that reads a dropped value, the
forward ops that lead to it stand again, as `NAME:recompute`, in the backward pass:

    forward    x -> norm -> fc1 -> gelu -> fc2 -> ...            norm, fc1, gelu are dropped
    backward   norm:kept0 = copy x
               norm:recompute -> fc1:recompute -> gelu:recompute
               fc2:dw reads gelu:recompute, gelu:dx reads fc1:recompute, ...

A clone does what its original did: random numbers follow from an op's seed and the number of its act, not from who
draws them. Ops that keep something beyond the micro-batch (sums of a step, running statistics) have no clone.

Clones read copies (`norm:kept0`) of the activations that are kept, made in the backward pass. They are the fence that
keeps the sub-graph from starting early: conversions of kept activations hang on them, so where collectives run beside
computation they cannot run ahead of the layer's backward pass and hold what was to be saved; and what the forward pass
converted for itself need not be held for the clones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase

from strategy.base.errors import InputError, did_you_mean
from strategy.graph.graph import Graph, Op, Phase, Role, Value, check_graph, of_op
from strategy.graph.ops import op_definition
from strategy.graph.ops.traits import MEMORY_BOUND, RecomputeClass
from strategy.layout.config import Recompute
from strategy.sbp.tensor import Rate


def recompute(graph: Graph, kind: Recompute, patterns: Sequence[str] = (), kept_layers: Collection[int] = ()) -> Graph:
    """The training graph without the activations of `kind`, and without those whose names match a pattern.

    Args:
        graph: of the training.
        kind: of activations.
        patterns: of names of more.
        kept_layers: layers that keep all of theirs.

    Raises:
        InputError: a pattern matches no activation of a layer, selective or full recompute finds none, or layers are
            to be kept that are not there.
    """
    dropped = dropped_values(graph, kind, patterns)
    if kind in (Recompute.SELECTIVE, Recompute.FULL) and not dropped:
        hint = "full recompute needs layers, selective recompute attention in them"
        raise InputError("there is nothing to recompute", where="config: recompute", got=str(kind), hint=hint)
    if kept_layers:
        _check_layers(graph, kept_layers)
        dropped = {name: op for name, op in dropped.items() if op.layer not in kept_layers}
    if not dropped:
        return graph
    found = _Repeater(graph, dropped).run()
    check_graph(found)
    return found


def _check_layers(graph: Graph, kept_layers: Collection[int]) -> None:
    most = graph.num_layers - 1
    if max(kept_layers) > most:
        where, expected = "config: kept_layers", f"numbers of layers, 0 to {most}"
        raise InputError("a layer that is not there", where=where, got=max(kept_layers), expected=expected)


def dropped_values(graph: Graph, kind: Recompute, patterns: Sequence[str] = ()) -> dict[str, Op]:
    """Value -> the op to repeat, of every activation that is not kept.

    Raises:
        InputError: a pattern matches no activation of a layer.
    """
    activations = dict(_activations(graph))
    if kind is Recompute.FULL:
        dropped = {name: op for name, op in activations.items() if not _leaves_layer(graph, op, name)}
    elif kind is Recompute.SELECTIVE:
        dropped = {name: activations[name] for name in _attention_inside(graph, activations)}
    elif kind is Recompute.MEMORY_BOUND:
        dropped = {name: activations[name] for name in _from_what_is_kept(graph, activations)}
    else:
        dropped = {}
    for pattern in patterns:
        matches = [name for name in activations if fnmatchcase(name, pattern)]
        if not matches:
            where, hint = "config: recompute_values", did_you_mean(pattern, activations)
            raise InputError("a pattern matches no activation of a layer", where=where, got=pattern, hint=hint)
        dropped.update((name, activations[name]) for name in matches)
    return dropped


def _activations(graph: Graph) -> Iterator[tuple[str, Op]]:
    """What forward ops of layers write per micro-batch, and can write again."""
    for op in graph.ops:
        pure = not op.updates and not op_definition(op.kind).accumulates
        if op.phase is Phase.FORWARD and op.any_layer is not None and pure:
            yield from ((name, op) for name in op.outputs if graph.values[name].rate is Rate.MICRO_BATCH)


def _leaves_layer(graph: Graph, producer: Op, name: str) -> bool:
    """Whether the forward pass hands an activation on to another layer: then that one keeps it as its input."""
    return any(op.phase is Phase.FORWARD and op.any_layer != producer.any_layer for op in graph.consumers[name])


def _attention_inside(graph: Graph, activations: Mapping[str, Op]) -> Iterator[str]:
    """What grows with the square of the sequence: scores, probabilities and what becomes of them up to the mixture.

    Korthikanti et al. 2022, arXiv:2205.05198, section 5. Fused attention keeps its own output instead of the scores.
    """
    for name, op in activations.items():
        what = op_definition(op.kind).recompute
        if what is RecomputeClass.ATTENTION:
            yield name
        elif what is RecomputeClass.SOFTMAX:
            scores = [above for read in op.inputs for above in _up_to_product(read, activations)]
            products = (op_definition(activations[above].kind).recompute for above in scores)
            if RecomputeClass.SCORES in products:  # else it is no attention: a router, say
                yield from (*scores, *_down_to_product(graph, name))


def _from_what_is_kept(graph: Graph, activations: Mapping[str, Op]) -> Iterator[str]:
    """What memory-bound ops write and backward passes read, if these read all that it follows from as well."""
    read = {name for op in graph.ops if op.phase is Phase.BACKWARD for name in op.inputs}
    for name, op in activations.items():
        is_cheap = op_definition(op.kind).cost is MEMORY_BOUND and not _leaves_layer(graph, op, name)
        inputs = [above for above in op.inputs if _changes(graph, above)]
        if is_cheap and name in read and inputs and all(above in read for above in inputs):
            yield name


def _changes(graph: Graph, name: str) -> bool:
    """Whether a value is computed anew in every micro-batch."""
    value = graph.values[name]
    return value.role is Role.COMPUTED and value.rate is Rate.MICRO_BATCH


def _up_to_product(name: str, activations: Mapping[str, Op]) -> Iterator[str]:
    """The activation, and those of its layer that it follows from, as far as a product."""
    if name in activations:
        yield name
        if not op_definition(activations[name].kind).recompute.is_product:
            for read in activations[name].inputs:
                yield from _up_to_product(read, activations)


def _down_to_product(graph: Graph, name: str) -> Iterator[str]:
    """The activation, and those that follow from it up to a product, which is left out."""
    yield name
    for op in graph.consumers[name]:
        if op.phase is Phase.FORWARD and not op_definition(op.kind).recompute.is_product:
            for output in op.outputs:
                yield from _down_to_product(graph, output)


@dataclass(slots=True)
class _Repeater:
    """Rewrites the backward pass, op after op."""

    graph: Graph
    dropped: Mapping[str, Op]
    values: dict[str, Value] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)
    instead: dict[tuple[str, int | str | None], str] = field(default_factory=dict)
    """(value, layer) -> what the backward ops of that layer read instead."""

    def run(self) -> Graph:
        """Every backward op of a layer reads clones where there are any, and they stand ahead of the first that does.

        Backward ops of other layers go on reading the original: their stage may run before the clone's.
        """
        self.values.update(self.graph.values)
        for op in self.graph.ops:
            if op.phase is Phase.BACKWARD and op.any_layer is not None:
                for name in op.inputs:
                    self._repeat(name, op.any_layer)
                self.ops.append(replace(op, inputs=self._inputs(op)))
            else:
                self.ops.append(op)
        return Graph(self.values, tuple(self.ops), self.graph.loss)

    def _inputs(self, op: Op) -> tuple[str, ...]:
        return tuple(self.instead.get((name, op.any_layer), name) for name in op.inputs)

    def _repeat(self, name: str, layer: int | str) -> None:
        """Append the clone that writes `name` again, and before it those that it needs."""
        op = self.dropped.get(name)
        if op is None or op.any_layer != layer or (name, layer) in self.instead:
            return
        for position, read in enumerate(op.inputs):
            self._repeat(read, layer)
            if (read, layer) not in self.instead and _changes(self.graph, read):
                fence = of_op(op, f"kept{position}", op.layer)
                self._append(fence.op("copy", (read,), Phase.BACKWARD, op.layer))
                self.instead[read, layer] = fence.name
        line = of_op(op, "recompute", op.layer)
        clone = replace(
            op,
            name=line.name,
            inputs=self._inputs(op),
            outputs=(line.name, *(f"{line.name}.{label}" for label in op.labels)),
            phase=Phase.BACKWARD,
            repeats=op.name,
            origin=line.origin,
            parameter=line.parameter,
            template=line.template,
        )
        self._append(clone)
        self.instead.update({(old, layer): new for old, new in zip(op.outputs, clone.outputs, strict=True)})

    def _append(self, op: Op) -> None:
        """Add an op whose outputs are like its inputs' or its original's."""
        self.ops.append(op)
        like = self.graph.by_name[op.repeats].outputs if op.repeats else op.inputs
        for name, model in zip(op.outputs, like, strict=True):
            self.values[name] = replace(self.graph.values[model], name=name)
