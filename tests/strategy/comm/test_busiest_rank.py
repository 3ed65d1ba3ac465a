"""What a step sends of an even tensor, counted on another: always what it sends of the tensor itself."""

from __future__ import annotations

import itertools

import pytest

from strategy.comm.boxing import layouts_of, step_between
from strategy.comm.busiest_rank import most_sent
from strategy.comm.rank_parts import boxing_task
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
