"""Boxing at once: a tensor brought elsewhere or laid out otherwise, by the same collectives as in a plan.

Arrays of NumPy are in one memory, a device's and its host's alike: what is on the hosts is there in arrays of its own.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from executor.frontend.global_tensor.distributed_tensor import DistributedTensor, empty_piece
from executor.runtime.collectives import prepare
from strategy.base.errors import present
from strategy.comm.rank_parts import boxing_task, transfer_task
from strategy.graph.ops.base import Workspace
from strategy.layout.layout import Home
from strategy.program.program import ActKind
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import NdSbp

L = TypeVar("L", bound=DistributedTensor)


def converted(tensor: L, placement: Placement, layout: NdSbp) -> L:
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
            held = present(piece, f"the piece of rank {world.rank}")
            task = boxing_task(tensor.spec, before, step, here, world.rank)
            number = world.lane(task.group) if step.kind.is_communication else -1
            target = empty_piece(tensor.spec, here, step.target, world.rank)
            act = prepare(step.kind, task, world.rank, number, world.transport, held, target, Workspace(np))
            world.finish(act())
            piece = target
        if step.kind is ActKind.COPY:
            here = replace(here, space=placement.space)
        before = step.target
    is_state = tensor.is_state and piece is tensor.piece
    return replace(tensor, placement=placement, sbp=layout, piece=piece, is_state=is_state)


def _moved(
    tensor: DistributedTensor,
    piece: np.ndarray | None,
    source: tuple[Placement, NdSbp],
    target: tuple[Placement, NdSbp],
) -> np.ndarray | None:
    """What this rank holds after a transfer between placements."""
    world = tensor.world
    task = transfer_task(tensor.spec, source[1], source[0], target[1], target[0])
    number = world.message_number()
    arrived = empty_piece(tensor.spec, *target, world.rank) if world.rank in target[0].devices else None
    if piece is not None or arrived is not None:
        act = prepare(ActKind.TRANSFER, task, world.rank, number, world.transport, piece, arrived, Workspace(np))
        world.finish(act())
    return arrived
