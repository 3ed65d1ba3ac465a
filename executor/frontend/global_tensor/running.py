"""Running: one op on pieces, at once.

An op takes the steps of a plan one after another: its signature is deduced, operands that are laid out otherwise are
boxed, and its meaning runs on this rank's pieces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from executor.frontend.global_tensor.boxing import L, converted
from executor.frontend.global_tensor.distributed_tensor import DistributedTensor, empty_piece
from executor.frontend.world import Noted
from strategy.base.errors import GraphError
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Attrs, Graph, Op, Role, Value
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import Call, Workspace
from strategy.graph.ops.half_precision import run_act
from strategy.graph.signature import Signature, op_signatures
from strategy.layout.layout import Home
from strategy.sbp.sbp import local_box
from strategy.sbp.tensor import Rate
from strategy.space.deduce import Deduction, SignatureFit, pick

LABELS = tuple(str(number) for number in range(1, 9))
"""Of the outputs of an op that nobody names."""


def run_op(kind: str, inputs: Sequence[L], attrs: Attrs, *, number: int | None = None) -> tuple[L, ...]:
    """All outputs of an op, laid out as its operands suggest; `number` tells random masks apart, else the op's own.

    Raises:
        GraphError: the operands do not compose, or lie on several placements.
        RunError: the ranks do not run the same op on the same tensors.
    """
    world = inputs[0].world
    outputs = _act(kind, inputs, (), attrs, number)
    world.note(Noted(kind, tuple(inputs), outputs, attrs, world.acts if number is None else number))
    return outputs


def run_update(kind: str, inputs: Sequence[L], updates: Sequence[L], attrs: Attrs) -> None:
    """Rewrite state in place by an op; it keeps its layout.

    Raises:
        GraphError: the operands do not compose, or lie on several placements.
        RunError: the ranks do not run the same op on the same tensors.
    """
    _act(kind, inputs, updates, attrs, None)


def _act(kind: str, inputs: Sequence[L], updates: Sequence[L], attrs: Attrs, number: int | None) -> tuple[L, ...]:
    operands = (*inputs, *updates)
    world = operands[0].world
    world.agree(f"{kind}({', '.join(map(str, operands))}) {dict(attrs) or ''}".strip())
    graph = _graph_of(kind, inputs, updates, attrs)
    (op,) = graph.ops
    for operand in operands:
        operand.settle()
    signature = _deduced(graph, op, inputs, updates)
    boxed = [converted(t, t.placement, nd) for t, nd in zip(inputs, signature.inputs, strict=True)]
    world.acts += number is None
    return _run(graph, op, signature, boxed, updates, world.acts if number is None else number)


def _graph_of(
    kind: str, inputs: Sequence[DistributedTensor], updates: Sequence[DistributedTensor], attrs: Attrs
) -> Graph:
    """A graph of one op on values called by their position; every problem with its operands at once."""
    builder = GraphBuilder()
    names = [
        builder.declare(
            Value(f"operand {position}", tensor.spec, Rate.MICRO_BATCH, Role.INPUT, space=tensor.placement.space)
        )
        for position, tensor in enumerate(inputs, start=1)
    ]
    rewritten = [
        builder.declare(Value(f"state {position}", t.spec, Rate.STEP, Role.VARIABLE, space=t.placement.space))
        for position, t in enumerate(updates, start=1)
    ]
    problems: list[str] = []
    places = list(dict.fromkeys(tensor.placement for tensor in (*inputs, *updates)))
    if len(places) > 1:
        ranks = " and ".join(map(str, places))
        problems.append(f"op {kind} ({', '.join(names)}): operands on several placements (got {ranks}); use to_global")
    try:
        builder.add(kind, kind, names, labels=LABELS, updates=rewritten, attrs=attrs)
    except GraphError as error:
        problems += error.problems
    if problems:
        raise GraphError(problems, where="global tensors")
    return Graph(dict(builder.values), tuple(builder.ops))


def _deduced(
    graph: Graph, op: Op, inputs: Sequence[DistributedTensor], updates: Sequence[DistributedTensor]
) -> Signature:
    placement, world = inputs[0].placement, inputs[0].world
    converter = world.converter(placement)
    kept = tuple(tensor.sbp for tensor in updates)
    options = [option for option in op_signatures(graph, op, placement.mesh) if option.updates == kept]
    if not options:
        told = ", ".join(map(str, updates))
        raise GraphError([f"op {op.kind}: no legal signature rewrites {told}; to_global lays state out otherwise"])
    fits = []
    for option in options:
        pairs = list(zip(inputs, option.inputs, strict=True))
        price_ns = sum(sum(converter.prices_ns(t.spec, Home(0, t.sbp), 0, nd)) for t, nd in pairs)
        fits.append(SignatureFit(price_ns, sum(t.sbp != nd for t, nd in pairs)))
    return options[pick(fits, Deduction.MATCH_ALL)]


def _run(
    graph: Graph, op: Op, signature: Signature, operands: Sequence[L], updates: Sequence[L], number: int
) -> tuple[L, ...]:
    placement, world = operands[0].placement, operands[0].world
    specs = graph.specs(op.outputs)
    pieces: list[np.ndarray | None] = [None] * len(specs)
    if world.rank in placement.devices:
        coords = placement.coords(world.rank)
        written = [empty_piece(s, placement, nd, world.rank) for s, nd in zip(specs, signature.outputs, strict=True)]
        call = Call(
            xp=np,
            attrs=op.attrs,
            inputs=tuple(t.piece for t in operands),
            outputs=tuple(written),
            updates=tuple(t.piece for t in updates),
            input_boxes=tuple(local_box(t.spec.shape, t.sbp, placement.mesh, coords) for t in operands),
            output_boxes=tuple(
                local_box(spec.shape, nd, placement.mesh, coords)
                for spec, nd in zip(specs, signature.outputs, strict=True)
            ),
            workspace=Workspace(np),
            number=number,
        )
        run_act(op_definition(op.kind), call)
        pieces = list(written)
    return tuple(
        replace(operands[0], spec=spec, sbp=nd, piece=piece, is_state=False)
        for spec, nd, piece in zip(specs, signature.outputs, pieces, strict=True)
    )
