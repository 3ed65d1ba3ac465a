"""GradientBuilder: what the gradient rule of one op sees, and the means to append the backward ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from strategy.base.errors import GraphError
from strategy.graph.graph import Attrs, Lineage, Op, Phase, of_op
from strategy.sbp.tensor import TensorSpec


class GrowingGraph(Protocol):
    """What gradient rules need of a graph under construction; `strategy.graph.builder.GraphBuilder` is one."""

    def spec(self, name: str) -> TensorSpec:
        """Shape and dtype of a value."""

    def add(
        self,
        name: str | Lineage,
        kind: str,
        inputs: Sequence[str],
        *,
        labels: Sequence[str] = (),
        attrs: Attrs | None = None,
        phase: Phase = Phase.FORWARD,
        layer: int | None = None,
    ) -> tuple[str, ...]:
        """Append an op; gives the names of what it writes."""


@dataclass(slots=True)
class GradientBuilder:
    """The gradients found so far, seen from one op of the forward pass."""

    graph: GrowingGraph
    op: Op
    needed: frozenset[str]
    gradients: dict[str, list[str]] = field(default_factory=dict)
    last: dict[str, tuple[Op, int]] = field(default_factory=dict)
    """Value name -> the op, and which of its inputs, that contributed last."""
    casts: Mapping[str, str] = field(default_factory=dict)
    """Value name -> the variable that it is a cast of."""

    def output_gradient(self, position: int = 0) -> str:
        """The gradient of one output, its several contributions added up."""
        return self.summed(self.op.outputs[position])

    @property
    def is_loss(self) -> bool:
        """Whether the op's first output is the loss itself and nothing else reads it: its gradient is one."""
        return self.op.outputs[0] not in self.gradients

    def summed(self, name: str) -> str:
        """The one gradient of value `name`; a sum belongs where its last term appears.

        So a pipeline sends one gradient from stage to stage, and the layers are alike. A value without contribution is
        the loss: its gradient is one.

        Raises:
            GraphError: the loss is no scalar.
        """
        if name not in self.gradients:
            shape = self.graph.spec(name).shape
            if shape:
                raise GraphError([f"value {name}: cannot be the loss, because it is no scalar: {shape}"])
            self.gradients[name] = [self.emit("one", "full_like", (name,), {"value": 1.0})]
        parts = self.gradients[name]
        if len(parts) > 1:
            op, position = self.last[name]
            line = of_op(op, f"sum{position}", op.layer)
            self.gradients[name] = parts = [*self.graph.add(line, "add_n", parts, phase=Phase.BACKWARD, layer=op.layer)]
        return parts[0]

    def wants(self, position: int) -> bool:
        """Whether the gradient of input `position` leads anywhere."""
        return self.op.inputs[position] in self.needed

    def specs(self, names: Sequence[str]) -> tuple[TensorSpec, ...]:
        """Shapes and dtypes of values."""
        return tuple(self.graph.spec(name) for name in names)

    def emit(self, label: str, kind: str, inputs: Sequence[str], attrs: Attrs | None = None) -> str:
        """Append a backward op with one output; gives the output's name."""
        return self.emit_many(label, kind, inputs, attrs)[0]

    def emit_many(
        self, label: str, kind: str, inputs: Sequence[str], attrs: Attrs | None = None, labels: Sequence[str] = ("0",)
    ) -> tuple[str, ...]:
        """Append a backward op with several outputs."""
        line, layer = of_op(self.op, label, self.op.layer), self.op.layer
        return self.graph.add(line, kind, inputs, labels=labels[1:], attrs=attrs, phase=Phase.BACKWARD, layer=layer)

    def give(self, position: int, gradient: str) -> None:
        """Contribute `gradient` to input `position`.

        What a cast of a variable is given goes to the variable at once, in the variable's dtype: terms of a parameter
        are added up in its own precision, and each where it is used.
        """
        if self.wants(position):
            name = self.op.inputs[position]
            if name in self.casts:
                name = self.casts[name]
                dtype = self.graph.spec(name).dtype
                gradient = self.emit(f"d{position}:{dtype}", "cast", (gradient,), {"dtype": str(dtype)})
            self.gradients.setdefault(name, []).append(gradient)
            self.last[name] = self.op, position
