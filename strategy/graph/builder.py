"""GraphBuilder: grows a graph op by op, inferring shapes; the tracer, autodiff and the optimiser pass use it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from strategy.base.errors import GraphError, InputError, did_you_mean
from strategy.graph.graph import (
    Attrs,
    Graph,
    Lineage,
    Op,
    Phase,
    Role,
    Value,
    check_graph,
    lineage_of,
    of_value,
    written_space,
)
from strategy.graph.ops import REGISTRY
from strategy.graph.ops.base import OpDef
from strategy.sbp.tensor import Rate, TensorSpec

OF_A_STEP = frozenset({"square", "clip", "learning_rate", "report", "step"})
"""Names of what training computes once per step, which nothing of a model is called by."""


def _check_ragged(kind: str, takes: bool, operands: Sequence[Value]) -> None:
    if not takes and [value for value in operands if value.spec.ragged is not None]:
        takers = ", ".join(sorted(name for name, definition in REGISTRY.items() if definition.ragged))
        raise InputError(f"{kind} takes no ragged operands", got=[v.name for v in operands], expected=takers)


@dataclass(slots=True)
class GraphBuilder:
    """A graph under construction."""

    values: dict[str, Value] = field(default_factory=dict)
    ops: list[Op] = field(default_factory=list)

    def declare(self, value: Value) -> str:
        """Add an input or a variable."""
        if value.name in self.values:
            raise GraphError([f"value {value.name}: the name is used twice"])
        self.values[value.name] = value
        return value.name

    def add(
        self,
        name: str | Lineage,
        kind: str,
        inputs: Sequence[str],
        *,
        labels: Sequence[str] = (),
        outputs: Sequence[str] = (),
        updates: Sequence[str] = (),
        attrs: Attrs | None = None,
        phase: Phase = Phase.FORWARD,
        layer: int | None = None,
    ) -> tuple[str, ...]:
        """Append an op and the values that it writes; the first output is called like the op, others `name.label`.

        Args:
            name: of the op, with its provenance where it is not the model's own.
            kind: of the op.
            inputs: what it reads.
            labels: of its outputs but the first; those that it does not write are left out.
            outputs: their names, where they are called otherwise.
            updates: variables that it rewrites.
            attrs: of the op.
            phase: of the training step.
            layer: the repeated layer that it belongs to.

        Raises:
            GraphError: a tensor is unknown, or the shapes do not compose; names op, tensors, found and expected.
        """
        attrs = attrs or {}
        line = name if isinstance(name, Lineage) else Lineage(name)
        name = line.name
        try:
            definition = REGISTRY[kind]
            operands = [self.values[n] for n in inputs]
            updated = [self.values[n] for n in updates]
        except KeyError:
            raise GraphError(self._unknown(name, kind, (*inputs, *updates))) from None
        try:
            _check_ragged(kind, definition.ragged, operands)
            specs = definition.infer([v.spec for v in operands], [v.spec for v in updated], attrs)
            space = written_space(kind, [*operands, *updated])
        except InputError as error:
            told = error.problems if isinstance(error, GraphError) else (str(error),)
            where = f"op {name} ({', '.join((*inputs, *updates))})"
            raise GraphError([f"{where}: {problem}" for problem in told]) from error
        except (ValueError, KeyError) as error:
            where = f"op {name} ({', '.join((*inputs, *updates))})"
            found = f"{len(inputs)} inputs, {len(updates)} updates, attrs {dict(attrs)}"
            raise GraphError([f"{where}: {kind} takes other operands or attrs (got {found}): {error}"]) from error
        written = tuple(outputs or (name, *(f"{name}.{label}" for label in labels)))[: len(specs)]
        twice = [output for output in written if output in self.values]
        if twice:
            raise GraphError([f"value {output}: the name is used twice" for output in twice])
        rate = _rate_of(definition, operands)
        for output, spec in zip(written, specs, strict=True):
            self.declare(Value(output, spec, rate, space=space))
        op = Op(
            name,
            kind,
            tuple(inputs),
            written,
            tuple(updates),
            dict(attrs),
            phase,
            layer,
            origin=line.origin,
            parameter=line.parameter,
            template=line.template,
            labels=tuple(labels[: max(len(specs) - 1, 0)]),
            lone_layer=line.lone_layer,
        )
        self.ops.append(op)
        return written

    def add_op(self, op: Op, inputs: Sequence[str]) -> tuple[str, ...]:
        """Append an op of another graph that reads these instead; its outputs keep their names.

        Raises:
            GraphError: as `add`.
        """
        return self.add(
            lineage_of(op),
            op.kind,
            inputs,
            labels=op.labels,
            outputs=op.outputs,
            updates=op.updates,
            attrs=op.attrs,
            phase=op.phase,
            layer=op.layer,
        )

    def _unknown(self, op: str, kind: str, reads: Sequence[str]) -> list[str]:
        """What there is not, of what an op is to be."""
        found = [f"op {op}: reads {name}, which the graph does not hold" for name in reads if name not in self.values]
        if kind not in REGISTRY:
            found.append(f"op {op}: unknown op kind (got {kind!r}); {did_you_mean(kind, REGISTRY)}")
        return found

    def derived(self, name: str, label: str, layer: int | None = None) -> Lineage:
        """The lineage of an op of a layer that is made for a value; what was written last is found at once."""
        value = self.values[name]
        computed = value.role is Role.COMPUTED
        producer = next((op for op in reversed(self.ops) if name in op.outputs), None) if computed else None
        return of_value(value, producer, label, layer)

    def spec(self, name: str) -> TensorSpec:
        """Shape and dtype of a value."""
        return self.values[name].spec

    def build(self, *, loss: str = "") -> Graph:
        """The finished, checked graph."""
        graph = Graph(dict(self.values), tuple(self.ops), loss)
        check_graph(graph)
        return graph

    def variables(self) -> list[Value]:
        """Variables declared so far, in order."""
        return [value for value in self.values.values() if value.role is Role.VARIABLE]


def _rate_of(definition: OpDef, operands: Sequence[Value]) -> Rate:
    """The rate of what an op writes."""
    micro = definition.repeats or Rate.MICRO_BATCH in [value.rate for value in operands]
    return Rate.MICRO_BATCH if micro and not definition.accumulates else Rate.STEP
