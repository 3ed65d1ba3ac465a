"""Eager: runs ops and modules on global tensors at once, on the pieces that this rank holds.

An op takes the steps of a plan one after another: its signature is deduced, operands that are laid out otherwise are
boxed, and its meaning runs on this rank's pieces. A module that is called with global tensors runs like this too, so
the same code is traced into a graph or executed line by line.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from executor.collectives import prepare
from executor.global_tensor import GlobalTensor
from executor.initialize import initial_piece
from executor.world import World, current_world
from strategy.boxing import boxing_task, transfer_task
from strategy.builder import GraphBuilder
from strategy.errors import GraphError, InputError
from strategy.graph import Attrs, Graph, Op, Role, Value
from strategy.layout import Home
from strategy.nn.module import Module, Parameter
from strategy.ops import op_definition
from strategy.ops.base import Array, Call, Workspace
from strategy.placement import Placement
from strategy.program import ActKind
from strategy.rows import piece_of
from strategy.sbp import B, NdSbp, local_box
from strategy.search.deduce import Deduction, Fit, pick
from strategy.signature import Signature, op_signatures
from strategy.tensor import DType, Rate, TensorSpec

_LABELS = tuple(str(number) for number in range(1, 9))


@dataclass(frozen=True, slots=True)
class Eager:
    """What a tracer is to traced tensors, for global ones: ops run instead of being noted down."""

    world: World

    def holds(self, module: Module) -> bool:
        """Every module can be run."""
        return True

    def foreign(self, module: Module, like: GlobalTensor) -> GlobalTensor:
        """No module is foreign here."""
        raise NotImplementedError(type(module).__name__)

    @contextmanager
    def enter(self, module: Module) -> Iterator[None]:
        """Ops of a module are run like any others."""
        yield

    def parameter(self, module: Module, name: str, like: GlobalTensor) -> GlobalTensor:
        """The parameter in attribute `name` of a module.

        Raises:
            GraphError: there is none, or it has no value yet.
        """
        held = dict(module.own_parameters())
        if name not in held or held[name] not in self.world.state:
            what = "has no parameter" if name not in held else "has no value yet for"
            raise GraphError([f"{type(module).__name__} {what} {name}; materialize(module, ...) gives all values"])
        found: GlobalTensor = self.world.state[held[name]]
        return found

    def apply(
        self,
        label: str,
        kind: str,
        inputs: Sequence[GlobalTensor],
        attrs: Attrs | None = None,
        labels: Sequence[str] = (),
    ) -> tuple[GlobalTensor, ...]:
        """All outputs of an op.

        Raises:
            GraphError: the operands do not compose, or lie on several placements.
            RunError: the ranks do not run the same op on the same tensors.
        """
        attrs = attrs or {}
        self.world.agree(f"{kind}({', '.join(map(str, inputs))}) {dict(attrs) or ''}".strip())
        graph = _graph_of(kind, inputs, attrs)
        (op,) = graph.ops
        signature = _deduced(graph, op, inputs)
        operands = [converted(t, t.placement, nd) for t, nd in zip(inputs, signature.inputs, strict=True)]
        return _run(self.world, graph, op, signature, operands)


def materialize(
    module: Module,
    *,
    placement: Placement,
    seed: int = 0,
    dtype: DType = DType.FLOAT32,
    name: str = "",
) -> None:
    """Give every parameter of a module its first value, whole on every rank of a placement.

    `name` comes before the names of the parameters, on which their values depend. Parameters that have a value keep it.
    """
    world = current_world()
    world.check(placement)
    layout = (B,) * len(placement.mesh)
    for path, parameter in module.parameters(name):
        if parameter not in world.state:
            spec = TensorSpec(parameter.shape, dtype)
            value = Value(path, spec, Rate.STEP, Role.VARIABLE, parameter.init)
            world.agree(f"materialize({path} {dtype}{list(spec.shape)} on {list(placement.devices)})")
            whole = tuple((0, size) for size in spec.shape)
            piece = initial_piece(value, whole, seed=seed) if world.rank in placement.devices else None
            world.state[parameter] = GlobalTensor(spec, placement, layout, piece, world)


def value_of(parameter: Parameter) -> GlobalTensor:
    """The value of a parameter in the current world.

    Raises:
        InputError: it has none yet.
    """
    world = current_world()
    if parameter not in world.state:
        raise InputError("the parameter has no value yet", got=parameter, hint="run a graph, or materialize the module")
    found: GlobalTensor = world.state[parameter]
    return found


def converted(tensor: GlobalTensor, placement: Placement, layout: NdSbp) -> GlobalTensor:
    """A tensor brought to a placement and layout by the cheapest chain of boxing steps; itself if it is there."""
    world, here, piece = tensor.world, tensor.placement, tensor.piece
    moves = placement != here
    converter = world.converter(here, placement) if moves else world.converter(here)
    before = tensor.sbp
    for step in converter.steps(tensor.spec, Home(0, before), int(moves), layout):
        if step.kind is ActKind.TRANSFER:
            piece = _moved(tensor, piece, (here, before), (placement, step.target))
            here = placement
        elif world.rank in here.devices:
            assert piece is not None
            task = boxing_task(tensor.spec, before, step, here, world.rank)
            number = world.lane(task.group) if step.kind.is_communication else -1
            target = _empty(tensor.spec, here, step.target, world.rank)
            act = prepare(step.kind, task, world.rank, number, world.transport, piece, target, Workspace(np))
            world.finish(act())
            piece = target
        before = step.target
    return GlobalTensor(tensor.spec, placement, layout, piece, world)


def _moved(
    tensor: GlobalTensor,
    piece: np.ndarray | None,
    source: tuple[Placement, NdSbp],
    target: tuple[Placement, NdSbp],
) -> np.ndarray | None:
    """What this rank holds after a transfer between placements."""
    world = tensor.world
    task = transfer_task(tensor.spec, source[1], source[0], target[1], target[0])
    number = world.message_number()
    arrived = _empty(tensor.spec, *target, world.rank) if world.rank in target[0].devices else None
    if piece is not None or arrived is not None:
        act = prepare(ActKind.TRANSFER, task, world.rank, number, world.transport, piece, arrived, Workspace(np))
        world.finish(act())
    return arrived


def _empty(spec: TensorSpec, placement: Placement, layout: NdSbp, rank: int) -> Array:
    box = local_box(spec.shape, layout, placement.mesh, placement.coords(rank))
    return piece_of(np, spec, box)


def _graph_of(kind: str, inputs: Sequence[GlobalTensor], attrs: Attrs) -> Graph:
    """A graph of one op on values called by their position; every problem with its operands at once."""
    builder = GraphBuilder()
    names = [
        builder.declare(Value(f"operand {position}", tensor.spec, Rate.MICRO_BATCH, Role.INPUT))
        for position, tensor in enumerate(inputs, start=1)
    ]
    problems: list[str] = []
    places = list(dict.fromkeys(tensor.placement for tensor in inputs))
    if len(places) > 1:
        ranks = " and ".join(str(list(place.devices)) for place in places)
        problems.append(f"op {kind} ({', '.join(names)}): operands on several placements (got {ranks}); use to_global")
    try:
        builder.add(kind, kind, names, labels=_LABELS, attrs=attrs)
    except GraphError as error:
        problems += error.problems
    if problems:
        raise GraphError(problems, where="global tensors")
    return Graph(dict(builder.values), tuple(builder.ops))


def _deduced(graph: Graph, op: Op, inputs: Sequence[GlobalTensor]) -> Signature:
    placement, world = inputs[0].placement, inputs[0].world
    converter = world.converter(placement)
    options = op_signatures(graph, op, placement.mesh)
    fits = []
    for option in options:
        pairs = list(zip(inputs, option.inputs, strict=True))
        price_ns = sum(sum(converter.prices_ns(t.spec, Home(0, t.sbp), 0, nd)) for t, nd in pairs)
        fits.append(Fit(price_ns, sum(t.sbp != nd for t, nd in pairs)))
    return options[pick(fits, Deduction.MATCH_ALL)]


def _run(
    world: World, graph: Graph, op: Op, signature: Signature, operands: Sequence[GlobalTensor]
) -> tuple[GlobalTensor, ...]:
    placement = operands[0].placement
    specs = graph.specs(op.outputs)
    pieces: list[np.ndarray | None] = [None] * len(specs)
    if world.rank in placement.devices:
        coords = placement.coords(world.rank)
        written = [_empty(s, placement, nd, world.rank) for s, nd in zip(specs, signature.outputs, strict=True)]
        call = Call(
            xp=np,
            attrs=op.attrs,
            inputs=tuple(t.piece for t in operands),
            outputs=tuple(written),
            updates=(),
            input_boxes=tuple(local_box(t.shape, t.sbp, placement.mesh, coords) for t in operands),
            output_boxes=tuple(
                local_box(spec.shape, nd, placement.mesh, coords)
                for spec, nd in zip(specs, signature.outputs, strict=True)
            ),
            workspace=Workspace(np),
            number=world.operations,
        )
        op_definition(op.kind).run(call)
        pieces = list(written)
    return tuple(
        GlobalTensor(spec, placement, nd, piece, world)
        for spec, nd, piece in zip(specs, signature.outputs, pieces, strict=True)
    )
