"""Meshes of devices: coordinates, groups, and meshes that cannot be."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

from strategy.base.errors import InputError
from strategy.sbp.placement import Placement, Space, read_space
from strategy.sbp.tensor import Shape

MESHES: tuple[Shape, ...] = ((1,), (4,), (2, 3), (3, 1, 2), (2, 2, 2))


def shuffled(mesh: Shape) -> Placement:
    devices = np.random.default_rng(0).permutation(math.prod(mesh)) + 5
    return Placement(tuple(devices.tolist()), mesh, tuple("abc"[: len(mesh)]))


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_coordinates_are_row_major(mesh: Shape) -> None:
    placement = shuffled(mesh)
    grid = np.array(placement.devices).reshape(mesh)
    for coords in itertools.product(*map(range, mesh)):
        assert placement.coords(int(grid[coords])) == coords


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_groups_run_along_one_axis(mesh: Shape) -> None:
    placement = shuffled(mesh)
    grid = np.array(placement.devices).reshape(mesh)
    for axis in range(len(mesh)):
        wanted = [tuple(row) for row in np.moveaxis(grid, axis, -1).reshape(-1, mesh[axis]).tolist()]
        assert list(placement.groups(axis)) == wanted
        for group in wanted:
            assert all(placement.group(rank, axis) == group for rank in group)


@pytest.mark.parametrize(
    ("devices", "mesh", "axes", "problem"),
    [
        ((0, 1), (2,), (), "one name and one size"),
        ((0, 1), (2,), ("data", "tensor"), "one name and one size"),
        ((), (), (), "one name and one size"),
        ((), (0,), ("data",), "one name and one size"),
        ((), (0, 2), ("data", "tensor"), "one name and one size"),
        ((0, 1), (-1, -2), ("data", "tensor"), "one name and one size"),
        ((0, 1), (-2,), ("data",), "one name and one size"),
        ((0, 1, 2), (2,), ("data",), "mesh and devices disagree"),
        ((0, 1, 2), (2, 2), ("data", "tensor"), "mesh and devices disagree"),
        ((0, 1, 0), (3,), ("data",), "stands twice"),
        ((0, -1), (2,), ("data",), "negative"),
        ((0, 1, 2, 3), (2, 2), ("data", "data"), "axis name"),
    ],
)
def test_meshes_that_cannot_be(devices: tuple[int, ...], mesh: Shape, axes: tuple[str, ...], problem: str) -> None:
    with pytest.raises(InputError, match=rf"{problem}.*got"):
        Placement(devices, mesh, axes)


def test_a_placement_is_written_as_its_devices_and_where_they_are() -> None:
    placement = Placement((0, 1), (2,), ("a",))
    assert str(placement) == "[0, 1]"
    assert str(replace(placement, space=Space.HOST)) == "[0, 1] (hosts)"


def test_an_op_reads_the_memory_of_its_device_unless_it_brings_a_tensor_there() -> None:
    assert [read_space(kind) for kind in ("to_device", "to_host", "add")] == [Space.HOST, Space.DEVICE, Space.DEVICE]
