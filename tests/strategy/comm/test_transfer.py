"""What a transfer sends of an even tensor, counted on another: always what it sends of the tensor itself."""

from __future__ import annotations

import itertools

import pytest

from strategy.comm.boxing import layouts_of
from strategy.comm.hierarchical import box_size
from strategy.comm.rank_parts import transfer_task
from strategy.comm.transfer import most_transferred
from strategy.sbp.placement import Placement
from strategy.sbp.tensor import DType, Shape, TensorSpec


@pytest.mark.parametrize("shape", [(8, 24), (8, 9), (12,), (3, 7), (25, 11), (2, 3), ()])
@pytest.mark.parametrize("meshes", [((2, 2), (2, 2)), ((2, 3), (4, 1)), ((4, 2), (2, 3)), ((1, 6), (2, 2))])
@pytest.mark.parametrize("first", [10, 1])
def test_a_share_of_a_transfer_is_what_would_be_counted(shape: Shape, meshes: tuple[Shape, Shape], first: int) -> None:
    """Whether the receivers are other ranks or some of the senders."""
    here, there = meshes
    sender = Placement(tuple(range(here[0] * here[1])), here, ("a", "b"))
    receiver = Placement(tuple(range(first, first + there[0] * there[1])), there, ("a", "b"))
    spec = TensorSpec(shape, DType.FLOAT64)
    sources, targets = (layouts_of(spec, mesh, partial=False) for mesh in meshes)
    for source, target in itertools.product(sources, targets):
        sent: dict[int, int] = {}
        messages = transfer_task(spec, source, sender, target, receiver).messages
        for message in messages:
            if message.source != message.target:
                sent[message.source] = sent.get(message.source, 0) + box_size(message.box)
        ranks = {rank for message in messages for rank in (message.source, message.target)}
        most, taking = most_transferred(spec, source, sender, target, receiver)
        assert (most, set(taking)) == (max(sent.values(), default=0), ranks)
