"""Text to train on: bytes of real text, drawn so that no loader has a state.

The vocabulary is the 256 byte values. The text is a file or folder of the user's, else what every machine has: the
sources of Python's own standard library. Which rows a batch holds follows from (seed, step, row)
alone, by a counter-based generator (Philox 4x64-10; Salmon et al. 2011), so every rank draws exactly its
part of the same global batch, however the plan cuts it into micro-batches, and a resumed run goes on where it stopped.
Images, features and ids that come from no text are in `synthetic`.
"""

from __future__ import annotations

import hashlib
import os
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.random import (
    Philox,
)  # here: two threads that both make NumPy load it at first use may end in a RecursionError
from numpy.typing import NDArray

from executor.data.batch_rows import BatchRows
from executor.data.file_text import CHUNK_NBYTES, FileText, FolderText, Text, open_text
from strategy.base.errors import InputError
from strategy.program.program import LoadTask

VOCABULARY = 256
_VALIDATION_SHARE = 0.05

Bytes = NDArray[np.uint8]
Ids = NDArray[np.int32]
RowsAndSeq = tuple[tuple[int, int], int]
RowsRead = dict[RowsAndSeq, Bytes]


@dataclass(frozen=True, slots=True)
class Corpus:
    """Text as bytes in two parts; `digest` names exactly this text and this split."""

    name: str
    train: Text
    validation: Text
    digest: str


def standard_library() -> Corpus:
    """The sources of this Python's standard library, without its tests and installed packages.

    Raises:
        InputError: this Python came without its sources.
    """
    folder = Path(sysconfig.get_path("stdlib"))
    skipped = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
    names: list[Path] = []
    for inner, folders, files in os.walk(folder):
        # not even listed: what is installed can be a hundred times what comes with Python
        folders[:] = [name for name in folders if name not in skipped]
        found = (Path(inner, name) for name in files)
        names += [path.relative_to(folder) for path in found if path.suffix == ".py"]
    if not names:
        raise InputError("this Python came without its sources", where=str(folder), hint="give a text with --data PATH")
    return _split_files("Python standard library", folder, names)


def read_corpus(path: Path) -> Corpus:
    """The text of a file, or of all files of a folder (hidden ones aside).

    Of a folder, about 5 % of the files, chosen by their names, are for validation; of a single file, or where the
    names leave one part empty, the last 5 % of the bytes.

    Raises:
        InputError: nothing there, not a file or folder, unreadable, or no text in it.
    """
    if not path.exists():
        raise InputError("no such file or folder", where=f"data {path}")
    if path.is_dir():
        names = [found.relative_to(path) for found in path.rglob("*") if found.is_file()]
        return _split_files(path.name, path, [n for n in names if not any(part.startswith(".") for part in n.parts)])
    if not path.is_file():
        raise InputError("neither a file nor a folder", where=f"data {path}")
    if path.stat().st_size == 0:
        raise InputError("the file is empty", where=f"data {path}")
    try:
        text = open_text(path)
    except OSError as error:
        raise InputError("the file cannot be read", where=f"data {path}", got=error.strerror) from error
    cut = _cut(len(text))
    return _corpus(path.name, text.part(0, cut), text.part(cut, len(text)))


def sample_batch(text: Text, *, seed: int, step: int, rows: tuple[int, int], seq: int) -> tuple[Ids, Ids]:
    """Rows [begin, end) of the global batch of one step: token ids, and as labels the byte after each.

    Args:
        text: where the rows are cut from.
        seed: of the run.
        step: the training step.
        rows: begin and end, counted over all micro-batches of the step.
        seq: bytes per row.

    Returns:
        ids [end - begin, seq] and labels [end - begin, seq].

    Raises:
        InputError: the text has fewer than seq + 1 bytes.
    """
    found = sample_rows(text, seed=seed, step=step, rows=rows, width=seq + 1).astype(np.int32)
    return found[:, :-1], found[:, 1:]


def sample_rows(text: Text, *, seed: int, step: int, rows: tuple[int, int], width: int) -> Bytes:
    """Rows [begin, end) of the global batch of one step, with the bytes that follow them: [end - begin, width].

    Raises:
        InputError: the text has fewer than `width` bytes, or can no longer be read.
    """
    starts = len(text) - width + 1
    if starts < 1:
        raise InputError("the text is too short", where="data", got=len(text), expected=f"at least {width} bytes")
    begin, end = rows
    found = np.empty((end - begin, width), np.uint8)
    for index, row in enumerate(range(begin, end)):
        start = _draw(starts, seed=seed, counter=(row, step))
        found[index] = text[start : start + width]
    return found


def check_vocabulary(text: Text, below: int) -> None:
    """Raise InputError if a token of the text is not in [0, below); looks only where a byte could be."""
    if below >= VOCABULARY:
        return
    for begin in range(0, len(text), CHUNK_NBYTES):
        strange = np.flatnonzero(text[begin : begin + CHUNK_NBYTES] >= below)
        if strange.size:
            at = begin + int(strange[0])
            raise InputError(
                "the text has tokens that are not in the model's vocabulary",
                where=_where_is(text, at),
                got=f"byte {text[at : at + 1][0]}",
                expected=f"bytes below {below}",
                hint=f"search a plan of a model with a vocabulary of at least {VOCABULARY}",
            )


def _where_is(text: Text, position: int) -> str:
    """Where a byte of a text stands, for people."""
    return text.where_is(position) if isinstance(text, FileText | FolderText) else f"data, byte {position}"


class TextLoader:
    """Fills the registers of a loader actor with its part of each micro-batch.

    Args:
        text: where rows are cut from.
        seed: of the run.
        shapes: graph input -> its global shape [rows of a micro-batch, seq].
        num_micro_batches: per step.
        shifts: by how many bytes inputs are ahead; those that are not named are the ids.
        by_rank: see `BatchRows`.

    Raises:
        InputError: an input is not [rows, seq], or the text is too short for it.
    """

    def __init__(
        self,
        text: Text,
        seed: int,
        shapes: Mapping[str, Sequence[int]],
        *,
        num_micro_batches: int,
        shifts: Mapping[str, int] = MappingProxyType({"labels": 1}),
        by_rank: bool = False,
    ) -> None:
        further = max(shifts.values(), default=1)
        for name, shape in shapes.items():
            if len(shape) != 2:
                raise InputError("text does not fit this input", where=name, got=tuple(shape), expected="[rows, seq]")
            if len(text) < shape[1] + further:
                expected = f"at least {shape[1] + further} bytes"
                raise InputError("the text is too short", where="data", got=len(text), expected=expected)
        self._text = text
        self._seed = seed
        self._rows = {name: shape[0] for name, shape in shapes.items()}
        self._seq = {name: shape[1] for name, shape in shapes.items()}
        self._num_micro_batches = num_micro_batches
        self._batch_rows = BatchRows(num_micro_batches, by_rank)
        self._shifts, self._further = shifts, further

    def read(self, task: LoadTask, act_number: int) -> RowsRead:
        """The rows that the boxes of `task` are of, of micro-batch `act_number`, counted since the training's start."""
        step = act_number // self._num_micro_batches
        found: RowsRead = {}
        for key in self._keys(task, act_number):
            if key not in found:
                rows, seq = key
                width = seq + self._further
                found[key] = sample_rows(self._text, seed=self._seed, step=step, rows=rows, width=width)
        return found

    def decode(self, task: LoadTask, act_number: int, raw: RowsRead, arrays: Sequence[NDArray[Any]]) -> None:
        """Write the boxes of `task`: the columns of every input, as ids."""
        keys = self._keys(task, act_number)
        for name, box, key, array in zip(task.inputs, task.boxes, keys, arrays, strict=True):
            (_, (first, last)), shift = box, self._shifts.get(name, 0)
            array[...] = raw[key][:, first + shift : last + shift]

    def __call__(self, task: LoadTask, act_number: int, arrays: Sequence[NDArray[Any]]) -> None:
        """Read and decode at once."""
        self.decode(task, act_number, self.read(task, act_number), arrays)

    def _keys(self, task: LoadTask, act_number: int) -> list[RowsAndSeq]:
        """Rows of the global batch of the step, and how long they are, input by input."""
        micro_batch = act_number % self._num_micro_batches
        found = []
        for name, box in zip(task.inputs, task.boxes, strict=True):
            (begin, end), _ = box
            found.append((self._batch_rows.of(begin, end, self._rows[name], micro_batch), self._seq[name]))
        return found


def _draw(span: int, *, seed: int, counter: tuple[int, int]) -> int:
    """A number in [0, span): the top of one 64-bit draw times span, the same on every machine and NumPy."""
    key = np.array([seed & (2**64 - 1), 0], np.uint64)
    raw = Philox(key=key, counter=np.array([0, *counter, 0], np.uint64)).random_raw()
    return int(raw) * span >> 64


def _split_files(name: str, folder: Path, files: Iterable[Path]) -> Corpus:
    train: list[tuple[str, bytes]] = []
    validation: list[tuple[str, bytes]] = []
    for file in sorted(files, key=Path.as_posix):
        try:
            content = (folder / file).read_bytes()
        except OSError as error:
            raise InputError("the file cannot be read", where=f"data {folder / file}", got=error.strerror) from error
        if content:
            part = validation if _is_for_validation(file.as_posix()) else train
            part.append((str(folder / file), content))
    if not train and not validation:
        raise InputError("no text in the folder", where=f"data {folder}")
    if train and validation:
        return _corpus(name, _joined(train), _joined(validation))
    text = _joined(train + validation)
    cut = _cut(len(text))
    return _corpus(name, text.part(0, cut), text.part(cut, len(text)))


def _joined(files: Sequence[tuple[str, bytes]]) -> FolderText:
    begins = accumulate((len(content) for _, content in files[:-1]), initial=0)
    whole = np.frombuffer(b"".join(content for _, content in files), np.uint8)
    return FolderText(whole, tuple(zip(begins, (name for name, _ in files), strict=True)))


def _is_for_validation(name: str) -> bool:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") < _VALIDATION_SHARE * 2**64


def _cut(nbytes: int) -> int:
    """Where the part for validation begins."""
    return nbytes - int(nbytes * _VALIDATION_SHARE)


def _corpus(name: str, train: Text, validation: Text) -> Corpus:
    digest = hashlib.sha256(len(train).to_bytes(8, "big"))
    for part in (train, validation):
        for begin in range(0, len(part), CHUNK_NBYTES):
            digest.update(part[begin : begin + CHUNK_NBYTES].data)
    return Corpus(name, train, validation, digest.hexdigest())
