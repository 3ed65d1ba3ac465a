"""The shipped tables of kernels, read once."""

from __future__ import annotations

import pytest

from experiments.kernels.points import KernelPoints, read_points


@pytest.fixture(scope="session")
def point_sets() -> tuple[KernelPoints, ...]:
    return read_points()
