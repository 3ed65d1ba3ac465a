"""A small network of images, trained line by line: mpiexec -n 2 python -m mpi4py -m tests.mpi.by_line."""

from __future__ import annotations

from executor.frontend.global_tensor import placement
from executor.frontend.world import current_world
from tests.executor.frontend.test_first_class import trained_by_line


def main() -> None:
    """Train; the first rank says what came of it."""
    found = trained_by_line(placement([0, 1]))
    if current_world().rank == 0:
        print(" ".join(map(repr, found)))


if __name__ == "__main__":
    main()
