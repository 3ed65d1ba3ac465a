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
from pathlib import Path
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from strategy.base.errors import InputError
from strategy.program.program import LoadTask

VOCABULARY = 256
_VALIDATION_SHARE = 0.05

Bytes = NDArray[np.uint8]
Ids = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Corpus:
    """Text as bytes, each part a uint8 array [num_bytes]; `digest` names exactly this text and this split."""

    name: str
    train: Bytes
    validation: Bytes
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
        return _split_bytes(path.name, np.memmap(path, np.uint8, mode="r"))
    except OSError as error:
        raise InputError("the file cannot be read", where=f"data {path}", got=error.strerror) from error


def sample_batch(text: Bytes, *, seed: int, step: int, rows: tuple[int, int], seq: int) -> tuple[Ids, Ids]:
    """Rows [begin, end) of the global batch of one step: token ids, and as labels the byte after each.

    Args:
        text: where the rows are cut from, [num_bytes].
        seed: of the run.
        step: the training step.
        rows: begin and end, counted over all micro-batches of the step.
        seq: bytes per row.

    Returns:
        ids [end - begin, seq] and labels [end - begin, seq].

    Raises:
        InputError: the text has fewer than seq + 1 bytes.
    """
    found = sample_rows(text, seed=seed, step=step, rows=rows, width=seq + 1)
    return found[:, :-1], found[:, 1:]


def sample_rows(text: Bytes, *, seed: int, step: int, rows: tuple[int, int], width: int) -> Ids:
    """Rows [begin, end) of the global batch of one step, with the bytes that follow them: [end - begin, width].

    Raises:
        InputError: the text has fewer than `width` bytes.
    """
    starts = len(text) - width + 1
    if starts < 1:
        raise InputError("the text is too short", where="data", got=len(text), expected=f"at least {width} bytes")
    begin, end = rows
    found = np.empty((end - begin, width), np.int32)
    for index, row in enumerate(range(begin, end)):
        start = _draw(starts, seed=seed, counter=(row, step))
        found[index] = text[start : start + width]
    return found


def check_vocabulary(text: Bytes, below: int) -> None:
    """Raise InputError if a token of the text is not in [0, below); looks only where a byte could be."""
    if below < VOCABULARY and (highest := int(text.max())) >= below:
        raise InputError(
            "the text has tokens that are not in the model's vocabulary",
            where="data",
            got=f"byte {highest}",
            expected=f"bytes below {below}",
            hint=f"search a plan of a model with a vocabulary of at least {VOCABULARY}",
        )


class TextLoader:
    """Fills the registers of a loader actor with its part of each micro-batch.

    Args:
        text: where rows are cut from.
        seed: of the run.
        shapes: graph input -> its global shape [rows of a micro-batch, seq].
        num_micro_batches: per step.
        shifts: by how many bytes inputs are ahead; those that are not named are the ids.

    Raises:
        InputError: an input is not [rows, seq], or the text is too short for it.
    """

    def __init__(
        self,
        text: Bytes,
        seed: int,
        shapes: Mapping[str, Sequence[int]],
        *,
        num_micro_batches: int,
        shifts: Mapping[str, int] = MappingProxyType({"labels": 1}),
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
        self._shifts, self._further = shifts, further

    def __call__(self, task: LoadTask, act_number: int, arrays: Sequence[NDArray[np.int32]]) -> None:
        """Write the boxes of `task` of micro-batch `act_number`, counted since the start of the training."""
        step, micro_batch = divmod(act_number, self._num_micro_batches)
        drawn: dict[tuple[tuple[int, int], int], Ids] = {}
        for name, box, array in zip(task.inputs, task.boxes, arrays, strict=True):
            (begin, end), (first, last) = box
            before = micro_batch * self._rows[name]
            rows = (before + begin, before + end)
            key = rows, self._seq[name]
            if key not in drawn:
                width = self._seq[name] + self._further
                drawn[key] = sample_rows(self._text, seed=self._seed, step=step, rows=rows, width=width)
            shift = self._shifts.get(name, 0)
            array[...] = drawn[key][:, first + shift : last + shift]


def _draw(span: int, *, seed: int, counter: tuple[int, int]) -> int:
    """A number in [0, span): the top of one 64-bit draw times span, the same on every machine and NumPy."""
    key = np.array([seed & (2**64 - 1), 0], np.uint64)
    raw = np.random.Philox(key=key, counter=np.array([0, *counter, 0], np.uint64)).random_raw()
    return int(raw) * span >> 64


def _split_files(name: str, folder: Path, files: Iterable[Path]) -> Corpus:
    train: list[bytes] = []
    validation: list[bytes] = []
    for file in sorted(files, key=Path.as_posix):
        try:
            content = (folder / file).read_bytes()
        except OSError as error:
            raise InputError("the file cannot be read", where=f"data {folder / file}", got=error.strerror) from error
        (validation if _is_for_validation(file.as_posix()) else train).append(content)
    if not any(train) and not any(validation):
        raise InputError("no text in the folder", where=f"data {folder}")
    if not any(train) or not any(validation):
        return _split_bytes(name, np.frombuffer(b"".join(train + validation), np.uint8))
    return _corpus(name, *(np.frombuffer(b"".join(part), np.uint8) for part in (train, validation)))


def _is_for_validation(name: str) -> bool:
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") < _VALIDATION_SHARE * 2**64


def _split_bytes(name: str, text: Bytes) -> Corpus:
    cut = len(text) - int(len(text) * _VALIDATION_SHARE)
    return _corpus(name, text[:cut], text[cut:])


def _corpus(name: str, train: Bytes, validation: Bytes) -> Corpus:
    digest = hashlib.sha256(len(train).to_bytes(8, "big"))
    digest.update(train.data)
    digest.update(validation.data)
    return Corpus(name, train, validation, digest.hexdigest())
