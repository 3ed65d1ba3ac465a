"""The matmul of OneFlow's global-view page, over two placements, in its notation.

mpiexec -n 4 python -m mpi4py -m tests.mpi.global_view
"""

from __future__ import annotations

import random

import numpy as np
from mpi4py import MPI

from executor.frontend.global_tensor import broadcast, from_numpy, manual_seed, partial_sum, placement, randn, split
from executor.frontend.world import current_world
from strategy.sbp.placement import Space


def two_placements() -> np.ndarray:
    """A 4x5 in rows and B 5x8 whole on ranks 0 and 1; their product whole on 2 and 3, times 8x6 in columns."""
    p0, p1 = placement([0, 1]), placement([2, 3])
    a0 = randn(4, 5, placement=p0, sbp=split(0))
    b0 = randn(5, 8, placement=p0, sbp=broadcast)
    y0 = a0 @ b0
    assert (y0.placement, y0.sbp) == (p0, (split(0),))
    y1 = y0.to_global(placement=p1, sbp=broadcast)
    b1 = randn(8, 6, placement=p1, sbp=split(1))
    y2 = y1 @ b1
    assert (y2.placement, y2.sbp, y2.shape) == (p1, (split(1),), (4, 6))
    rank = current_world().rank
    local = y2.to_local()
    assert (None if local is None else local.shape) == ((4, 3) if rank >= 2 else None)
    local = y0.to_local()
    assert (None if local is None else local.shape) == ((2, 8) if rank < 2 else None)
    return y2.numpy()


def alone() -> np.ndarray:
    """The same with everything whole on every rank."""
    everyone = placement([0, 1, 2, 3])
    a, b, c = (randn(*shape, placement=everyone, sbp=broadcast) for shape in ((4, 5), (5, 8), (8, 6)))
    return (a @ b @ c).numpy()


def convert_at_random(count: int) -> None:
    """Conversions between random placements and layouts of a 7x5 keep its values."""
    rng = random.Random(count)
    whole = np.arange(35.0).reshape(7, 5)
    choices = (split(0), split(1), broadcast, partial_sum)
    lines = (placement(ranks, space) for ranks in ([0, 1], [1, 2, 3], [3], [0, 1, 2, 3]) for space in Space)
    where = (*lines, placement([[0, 2], [1, 3]]))
    tensor = from_numpy(whole, placement=where[0], sbp=broadcast)
    for _ in range(count):
        there = rng.choice(where)
        tensor = tensor.to_global(placement=there, sbp=[rng.choice(choices) for _ in there.mesh])
        np.testing.assert_array_equal(tensor.numpy(), whole)


def main() -> None:
    """Both, from one seed, and a few more layouts of the same product."""
    manual_seed(7)
    found = two_placements()
    manual_seed(7)
    np.testing.assert_allclose(found, alone(), rtol=0, atol=1e-5)
    grid = placement([[0, 1], [2, 3]])
    manual_seed(7)
    x = randn(4, 5, placement=grid, sbp=[split(0), split(1)])
    w = randn(5, 8, placement=grid, sbp=[broadcast, split(0)])
    y = x @ w
    assert y.sbp == (split(0), partial_sum), y
    last = randn(8, 6, placement=grid, sbp=broadcast)
    np.testing.assert_allclose((y @ last).numpy(), found, rtol=0, atol=1e-5)
    convert_at_random(40)
    sums = MPI.COMM_WORLD.gather(float(found.sum()))
    if sums is not None:
        print(f"{len(sums)} ranks, {len(set(sums))} result")


if __name__ == "__main__":
    main()
