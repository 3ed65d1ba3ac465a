"""Transfers: every rank gets its box once, from whom it should."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategy.base.errors import SbpError
from strategy.comm.boxing import layouts_of
from strategy.comm.rank_parts import boxing_task, incoming, meeting_ranks, outgoing, transfer_task
from strategy.comm.sent_bytes import sent_nbytes
from strategy.program.program import ActKind, Message
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import (
    B,
    Owner,
    P,
    local_box,
)
from strategy.sbp.tensor import DType, Shape, TensorSpec, box_shape, intersect
from tests.support.boxing_steps import (
    every_step,
    mesh_of,
)
from tests.support.oracle import close, gather, scatter, transfer

PLACEMENTS = (
    mesh_of((2,)),
    mesh_of((2,), first=2),
    mesh_of((3,)),
    mesh_of((3,), first=1),
    mesh_of((2, 2)),
    mesh_of((2, 2), first=4),
    Placement((3, 1), (2,), ("data",)),
    Placement((5, 0, 3, 2, 7, 1), (3, 2), ("data", "tensor")),
    mesh_of((1,), first=1),
)
"""Disjoint, overlapping, contained, in another order."""


@pytest.mark.parametrize("shape", [(12, 12), (7, 5), ()], ids=str)
def test_a_transfer_gives_every_rank_its_box_once(shape: Shape) -> None:
    spec, rng, count = TensorSpec(shape, DType.FLOAT64), np.random.default_rng(0), 0
    whole = np.asarray(rng.standard_normal(shape))
    for here, there in itertools.product(PLACEMENTS, repeat=2):
        for source in layouts_of(spec, here.mesh, partial=False):
            pieces = dict(zip(here.devices, scatter(whole, source, here.mesh, rng), strict=True))
            for target in layouts_of(spec, there.mesh, partial=False):
                task = transfer_task(spec, source, here, target, there)
                arrived = transfer(task, pieces)
                assert set(arrived) == set(there.devices)
                for message in task.messages:
                    held = task.source_boxes[message.source]
                    assert intersect(held, message.box) == message.box
                for rank, piece in arrived.items():
                    wanted = local_box(shape, target, there.mesh, there.coords(rank))
                    assert piece.shape == box_shape(wanted)
                assert close(gather([arrived[r] for r in there.devices], target, there.mesh), whole)
                count += 1
    assert count >= len(PLACEMENTS) ** 2


@pytest.mark.parametrize("shape", [(12, 12), (7, 5), ()], ids=str)
def test_a_transfer_sends_nothing_that_its_receiver_holds(shape: Shape) -> None:
    spec = TensorSpec(shape)
    for here, there in itertools.product(PLACEMENTS, repeat=2):
        for source in layouts_of(spec, here.mesh, partial=False):
            for target in layouts_of(spec, there.mesh, partial=False):
                task = transfer_task(spec, source, here, target, there)
                lacking = 0
                for rank, wanted in task.target_boxes.items():
                    own = task.source_boxes.get(rank)
                    kept = intersect(own, wanted) if own is not None else None
                    lacking += math.prod(box_shape(wanted)) - (math.prod(box_shape(kept)) if kept is not None else 0)
                sent = sum(sent_nbytes(ActKind.TRANSFER, task, rank, spec) for rank in here.devices)
                assert sent == 4 * lacking


def test_replicas_share_the_sending() -> None:
    task = transfer_task(TensorSpec((8,)), (B,), mesh_of((4,)), (B,), mesh_of((4,), first=4))
    assert sorted(m.source for m in task.messages) == [0, 1, 2, 3]


def test_partial_tensors_do_not_travel() -> None:
    for source, target in (((P,), (B,)), ((B,), (P,))):
        with pytest.raises(SbpError, match="partial tensors do not travel"):
            transfer_task(TensorSpec((4,)), source, mesh_of((2,)), target, mesh_of((2,), first=2))


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=12))
def test_meeting_ranks_are_the_connected_components(pairs: list[tuple[int, int]]) -> None:
    reach = {rank: {rank} for pair in pairs for rank in pair}
    for _ in reach:
        for one, other in pairs:
            reach[one] |= reach[other]
            reach[other] |= reach[one]
    wanted = sorted({tuple(sorted(group)) for group in reach.values()})
    assert meeting_ranks([Message(a, b, ()) for a, b in pairs]) == wanted


@pytest.mark.parametrize("mesh", [(3,), (2, 3)], ids=str)
def test_what_ranks_give_is_what_others_get(mesh: Shape) -> None:
    """In every all-to-all; together that is all of what a rank holds afterwards."""
    spec, placement, checked = TensorSpec((7, 5)), mesh_of(mesh, first=2), 0
    for source, step in every_step(spec, mesh, owners=(Owner(1),)):
        if step.kind is not ActKind.ALL_TO_ALL:
            continue
        task = boxing_task(spec, source, step, placement, placement.devices[-1])
        given = [outgoing(task, me) for me in range(len(task.group))]
        for me, wanted in enumerate(task.target_boxes):
            got = incoming(task, me)
            assert got == [gives[me] for gives in given], (source, step)
            assert sum(math.prod(box_shape(box)) for box in got if box) == math.prod(box_shape(wanted))
        checked += 1
    assert checked >= 4
