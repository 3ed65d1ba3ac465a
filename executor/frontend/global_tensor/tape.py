"""Tape: ops on global tensors as they are run, and gradients by them.

    with Tape() as tape:
        loss, count = cross_entropy(model(x), labels)
        mean = loss / count.detach()
    gradients = tape.gradients(mean, [parameter for _, parameter in model.parameters()])

What a gradient is, the ops themselves say (`strategy.passes.autodiff`): the noted ops are a graph, the backward pass is
appended to it, and its ops are run like any others, each where its op of the forward pass was run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType

from executor.frontend.global_tensor.modules import value_of
from executor.frontend.global_tensor.running import LABELS, run_op
from executor.frontend.global_tensor.tensor import GlobalTensor
from executor.frontend.world import Noted, World, current_world
from strategy.base.errors import GraphError, InputError
from strategy.base.identity import Identity
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Op, Role, Value
from strategy.nn.module import Parameter
from strategy.passes.autodiff import differentiate
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import B
from strategy.sbp.tensor import Rate


class Tape:
    """Notes down what is run on global tensors while it is open, and keeps those tensors."""

    def __init__(self) -> None:
        self._noted: list[Noted] = []
        self._world: World = current_world()

    def __enter__(self) -> Tape:
        self._world.tapes.append(self._noted)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._world.tapes[:] = [tape for tape in self._world.tapes if tape is not self._noted]

    def gradients(self, loss: GlobalTensor, of: Sequence[GlobalTensor | Parameter]) -> list[GlobalTensor]:
        """Derivatives of a scalar that was computed while the tape was open, each laid out like what it belongs to.

        Args:
            loss: [].
            of: parameters and tensors that were read, but not computed, while it was open.

        Raises:
            InputError: the loss was not computed on the tape, does not depend on one of them, or one was computed.
            GraphError: an op on the way has no gradient.
        """
        leaves = [value_of(one) if isinstance(one, Parameter) else one for one in of]
        noted = _NotedGraph({Identity(leaf) for leaf in leaves})
        for op in self._noted:
            noted.add(op)
        found = noted.differentiated(loss)
        for one, leaf in zip(of, leaves, strict=True):
            if noted.names.get(Identity(leaf)) not in found:
                hint = "it is computed on the tape, or no float, or nothing on the way from it to the loss was noted"
                raise InputError("the loss has no gradient by it", got=str(one), hint=hint)
        noted.run_backward(loss.placement)
        return [noted.total(found[noted.names[Identity(leaf)]], leaf) for leaf in leaves]


@dataclass(slots=True)
class _NotedGraph:
    """The noted ops as a graph whose values are tensors that are there; `wanted` are its variables."""

    wanted: set[Identity]
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    names: dict[Identity, str] = field(default_factory=dict)
    tensors: dict[str, GlobalTensor] = field(default_factory=dict)
    forward: dict[str, Op] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)
    """Op -> what its random masks are told apart by."""

    def add(self, noted: Noted) -> None:
        """Append an op."""
        for tensor in noted.inputs:
            key = Identity(tensor)
            if key not in self.names:
                name = self.names[key] = f"tensor {len(self.names)}"
                role = Role.VARIABLE if key in self.wanted else Role.INPUT
                self.builder.declare(Value(name, tensor.spec, Rate.MICRO_BATCH, role, space=tensor.placement.space))
                self.tensors[name] = tensor
        before, after = noted.inputs[0].placement.space, noted.outputs[0].placement.space
        kind = noted.kind if before is after else f"to_{after}"
        inputs = [self.names[Identity(tensor)] for tensor in noted.inputs]
        name = f"op {len(self.builder.ops)} {kind}"
        written = self.builder.add(name, kind, inputs, labels=LABELS, attrs=noted.attrs)
        self.numbers[name] = noted.number
        for output, tensor in zip(written, noted.outputs, strict=True):
            self.names.setdefault(Identity(tensor), output)
            self.tensors[output] = tensor

    def differentiated(self, loss: GlobalTensor) -> Mapping[str, Sequence[str]]:
        """Append the backward pass; gives variable -> the terms of its gradient."""
        self.forward = {op.name: op for op in self.builder.ops}
        name = self.names.get(Identity(loss), "")
        if not name or self.builder.values[name].role is not Role.COMPUTED:
            hint = "compute it inside of `with Tape() as tape:`"
            raise InputError("the loss was not computed on the tape", got=str(loss), hint=hint)
        try:
            return differentiate(self.builder, name)
        except GraphError as error:
            hint = "detach() passes no gradient on: loss / count.detach()"
            raise GraphError([f"{problem}; {hint}" for problem in error.problems], where="tape") from error

    def run_backward(self, last: Placement) -> None:
        """Run what was appended; what belongs to no op of the forward pass, on the placement of the loss."""
        for op in self.builder.ops[len(self.forward) :]:
            origin = self.forward.get(op.root)
            home = last if origin is None else self.tensors[origin.inputs[0]].placement
            operands = [_brought(self.tensors[name], home) for name in op.inputs]
            outputs = run_op(op.kind, operands, op.attrs, number=self.numbers.get(op.root, 0))
            self.tensors.update(zip(op.outputs, outputs, strict=True))

    def total(self, terms: Sequence[str], like: GlobalTensor) -> GlobalTensor:
        """The terms of a gradient together, where and as its tensor is."""
        first, *more = (_brought(self.tensors[term], like.placement) for term in terms)
        for term in more:
            first += term
        return first if first.sbp == like.sbp else first.to_global(sbp=like.sbp)


def _brought(tensor: GlobalTensor, placement: Placement) -> GlobalTensor:
    """A tensor on another placement, whole there; itself if it is there."""
    return tensor if tensor.placement == placement else tensor.to_global(placement=placement, sbp=B)
