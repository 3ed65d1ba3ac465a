"""What a step sends of an even tensor, counted on another: always what it sends of the tensor itself."""

from __future__ import annotations

import itertools

import pytest

from strategy.comm.boxing import layouts_of, step_between
from strategy.comm.busiest_rank import most_sent, most_transferred
from strategy.comm.hierarchical import box_size
from strategy.comm.rank_parts import boxing_task, transfer_task
from strategy.comm.sent_bytes import most_sent_nbytes
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import Owner
from strategy.sbp.tensor import DType, Shape, TensorSpec


@pytest.mark.parametrize(
    ("shape", "mesh"),
    [
        ((8, 24, 16), (2, 4)),  # even
        ((8, 12, 6), (2, 4)),  # uneven where both axes split one of the later dims
        ((6, 35), (3, 2)),
        ((9,), (2, 2)),
        ((), (2, 2)),
        ((12, 8), (2, 3, 2)),
    ],
)
def test_a_share_is_what_would_be_counted(shape: Shape, mesh: Shape) -> None:
    ranks = 1
    for parts in mesh:
        ranks *= parts
    placement = Placement(tuple(range(5, 5 + ranks)), mesh, tuple("abc"[: len(mesh)]))
    spec = TensorSpec(shape, DType.FLOAT64)
    special = [[Owner(0)], *([[]] * (len(mesh) - 1))]
    layouts = layouts_of(spec, mesh, special=special)
    steps = 0
    for source, target in itertools.permutations(layouts, 2):
        step = step_between(source, target)
        if step is None or step.kind == "slice":
            continue
        rank = placement.devices[0]
        counted = most_sent_nbytes(step.kind, boxing_task(spec, source, step, placement, rank), spec)
        assert most_sent(spec, source, step, mesh) == counted, (source, step)
        steps += 1
    assert steps >= 4


@pytest.mark.parametrize("shape", [(8, 24), (8, 9), (12,), ()])
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
