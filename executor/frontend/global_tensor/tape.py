"""Tape: ops on global tensors as they are run, and gradients by them.

    with Tape() as tape:
        loss, count = cross_entropy(model(x), labels)
        mean = loss / count.detach()
    gradients = tape.gradients(mean, [parameter for _, parameter in model.parameters()])

What a gradient is, the ops themselves say (`strategy.passes.autodiff`): the noted ops are a graph, to which the backward
pass is appended, and its ops are run like any others.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType

from executor.frontend.global_tensor.modules import value_of
from executor.frontend.global_tensor.running import run_op
from executor.frontend.global_tensor.tensor import GlobalTensor
from executor.frontend.world import Noted, World, current_world
from strategy.base.errors import GraphError, InputError
from strategy.base.identity import Identity
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Role, Value
from strategy.nn.module import Parameter
from strategy.passes.autodiff import differentiate
from strategy.sbp.sbp import B
from strategy.sbp.tensor import Rate

_LABELS = tuple(str(number) for number in range(1, 9))


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
        builder, names, numbers = GraphBuilder(), dict[Identity, str](), dict[str, int]()
        tensors: dict[str, GlobalTensor] = {}
        wanted = {Identity(leaf) for leaf in leaves}
        for place, noted in enumerate(self._noted):
            for tensor in noted.inputs:
                key = Identity(tensor)
                if key not in names:
                    role = Role.VARIABLE if key in wanted else Role.INPUT
                    name = names[key] = f"tensor {len(names)}"
                    builder.declare(Value(name, tensor.spec, Rate.MICRO_BATCH, role, space=tensor.placement.space))
                    tensors[name] = tensor
            op = f"op {place} {noted.kind}"
            numbers[op] = noted.number
            inputs = [names[Identity(tensor)] for tensor in noted.inputs]
            moves = noted.inputs[0].placement.space is not noted.outputs[0].placement.space
            kind = f"to_{noted.outputs[0].placement.space}" if moves else noted.kind
            written = builder.add(op, kind, inputs, labels=_LABELS, attrs=noted.attrs)
            for name, tensor in zip(written, noted.outputs, strict=True):
                names.setdefault(Identity(tensor), name)
                tensors[name] = tensor
        if Identity(loss) not in names or builder.values[names[Identity(loss)]].role is not Role.COMPUTED:
            hint = "compute it inside of `with Tape() as tape:`"
            raise InputError("the loss was not computed on the tape", got=str(loss), hint=hint)
        forward = {op.name: op for op in builder.ops}
        try:
            found = differentiate(builder, names[Identity(loss)])
        except GraphError as error:
            hint = "detach() passes no gradient on: loss / count.detach()"
            raise GraphError([f"{problem}; {hint}" for problem in error.problems], where="tape") from error
        for one, leaf in zip(of, leaves, strict=True):
            if names.get(Identity(leaf)) not in found:
                hint = "it is computed on the tape, or no float, or nothing on the way from it to the loss was noted"
                raise InputError("the loss has no gradient by it", got=str(one), hint=hint)
        for op in builder.ops[len(forward) :]:
            home = tensors[forward[op.root].inputs[0]].placement if op.root in forward else loss.placement
            operands = [_brought(tensors[name], home) for name in op.inputs]
            outputs = run_op(op.kind, operands, op.attrs, number=numbers.get(op.root, 0))
            tensors.update(zip(op.outputs, outputs, strict=True))
        return [self._sum([tensors[name] for name in found[names[Identity(leaf)]]], leaf) for leaf in leaves]

    @staticmethod
    def _sum(terms: Sequence[GlobalTensor], like: GlobalTensor) -> GlobalTensor:
        """The terms of a gradient together, where and as its tensor is."""
        here = [_brought(term, like.placement) for term in terms]
        total = here[0] if len(here) == 1 else run_op("add_n", here, {}, number=0)[0]
        return total if total.sbp == like.sbp else total.to_global(sbp=like.sbp)


def _brought(tensor: GlobalTensor, placement: object) -> GlobalTensor:
    """A tensor on another placement, whole there; itself if it is there."""
    if tensor.placement == placement:
        return tensor
    return tensor.to_global(placement=placement, sbp=B)  # type: ignore[arg-type]
