"""Cells: every column of the measured rows is read, or there is a reason why not."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress

import pytest

from experiments.published.cells import INPUTS, MORE, UNREAD, Unsupported, inputs, read_cells
from experiments.published.fitting import TRAINING, reference
from experiments.published.rows import candidates
from strategy.base.errors import InputError

ROWS = [row for name in TRAINING for row in read_cells(reference(name))]


class Watched(Mapping[str, str]):
    """Cells that note which of their columns were read."""

    def __init__(self, cells: Mapping[str, str], read: set[str]) -> None:
        self._cells, self._read = cells, read

    def __getitem__(self, name: str) -> str:
        self._read.add(name)
        return self._cells[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._cells)

    def __len__(self) -> int:
        return len(self._cells)


@pytest.mark.parametrize("name", TRAINING)
def test_a_column_is_an_input_or_unread_for_a_reason(name: str) -> None:
    header = set(read_cells(reference(name))[0])
    assert header <= {*INPUTS, *MORE, *UNREAD}
    assert not {*INPUTS, *MORE} & set(UNREAD)
    assert all(UNREAD.values())


def test_every_input_is_read_of_some_measured_row() -> None:
    read: set[str] = set()
    blank = dict.fromkeys((*INPUTS, *MORE), "")
    for row in ROWS:
        cells = inputs(blank | row)
        # A size that is there on every row is asked for where it is not.
        for changed in (cells, cells | {"global_batch": ""}, cells | {"layers": "", "params_b": "7"}):
            with suppress(Unsupported, InputError):  # a row that cannot be read has been read all the same
                candidates(Watched(changed, read))
    assert read == {*INPUTS, *MORE}


def test_every_unread_column_is_in_the_measured_rows() -> None:
    assert set(UNREAD) <= {name for row in (ROWS[0], ROWS[-1]) for name in row}
