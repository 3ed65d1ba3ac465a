"""The manifest of a checkpoint: its tensors, the files of their pieces, and what must hold between them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
from numpy.typing import NDArray

from strategy.base.errors import InputError
from strategy.base.limits import LARGEST
from strategy.sbp.tensor import Box, DType, Shape, box_shape

MANIFEST = "manifest.json"
VERSION = 1
MAX_STEP = 99_999_999
"""The last that the name of a checkpoint's folder can tell."""
MAX_DIMS = 8
"""Of a tensor: each doubles the corners of its pieces."""
_FOLDER_NAME = re.compile(r"step-(\d{8})(?:\.(\d{1,6}))?")
_SHARD_NAME = re.compile(r"rank-\d{1,7}\.safetensors")


@dataclass(frozen=True, slots=True)
class TensorPart:
    """The part `box` of a logical tensor of `shape`, as one rank holds it."""

    name: str
    shape: Shape
    box: Box
    array: NDArray[Any]


class Shard(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where one piece lies: under `key` in `file`."""

    file: str
    key: str
    box: tuple[tuple[int, int], ...]
    sha256: str


class LogicalTensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One logical tensor; its shards tile it."""

    shape: tuple[int, ...]
    dtype: DType
    shards: tuple[Shard, ...]


class File(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One shard file, pieces aside."""

    nbytes: int
    header_sha256: str


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a checkpoint holds. `meta` is the caller's: hash of the plan, seed, name of the data, ..."""

    version: int
    step: int
    meta: dict[str, str | int | float]
    files: dict[str, File]
    tensors: dict[str, LogicalTensor]


class Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file `manifest.json`: the manifest as it was hashed, byte for byte."""

    sha256: str
    manifest: msgspec.Raw


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that is there and whole as far as names and sizes go; contents are verified as they are read."""

    folder: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """The number of steps that were done."""
        return self.manifest.step

    @property
    def meta(self) -> Mapping[str, str | int | float]:
        """What the caller saved with it."""
        return self.manifest.meta


def parse_name(name: str) -> tuple[int, int] | None:
    """Step and repetition that the name of a checkpoint's folder tells; None of another name."""
    match = _FOLDER_NAME.fullmatch(name)
    return (int(match[1]), int(match[2] or 0)) if match else None


def check_manifest(folder: Path, manifest: Manifest) -> None:
    """The step can be, every file is there with its size, and the shards of every tensor tile it.

    Raises:
        InputError: one of these does not hold.
    """
    if not 0 <= manifest.step <= MAX_STEP:
        expected = f"a number of steps from 0 to {MAX_STEP}"
        raise InputError("not a possible step", where=f"{folder}: step", got=manifest.step, expected=expected)
    for name, file in manifest.files.items():
        path = folder / name
        if _SHARD_NAME.fullmatch(name) is None:
            raise InputError("not the name of a shard file", where=str(folder), got=name, expected="rank-N.safetensors")
        if path.is_symlink() or not path.is_file():
            raise InputError("the shard file is missing, or is not a plain file", where=str(path))
        if path.stat().st_size != file.nbytes:
            raise InputError("the shard file has another size", where=str(path), got=path.stat().st_size)
    for name, tensor in manifest.tensors.items():
        where = f"{folder.name}: {name}"
        if len(tensor.shape) > MAX_DIMS or not all(0 <= size <= LARGEST for size in tensor.shape):
            raise InputError("not a possible shape", where=where, got=tensor.shape)
        for shard in tensor.shards:
            if shard.file not in manifest.files:
                raise InputError("a piece lies in an unknown file", where=where, got=shard.file)
            if not is_inside(shard.box, tensor.shape):
                raise InputError("a piece is not inside the tensor", where=where, got=shard.box)
        _check_tiling(where, tensor)


def _check_tiling(where: str, tensor: LogicalTensor) -> None:
    """Refuse boxes that do not tile the tensor, in time linear in their number.

    A sum of boxes is known by its corners, each counted +1 or -1 by how many of its coordinates are ends: these boxes
    add up to the whole one just if the corners that do not cancel out are those of the whole.
    """
    covered = sum(math.prod(box_shape(shard.box)) for shard in tensor.shards)
    if covered < math.prod(tensor.shape):
        expected = f"{math.prod(tensor.shape)} elements"
        raise InputError("the pieces do not cover the tensor", where=where, got=covered, expected=expected)
    corners = Counter[tuple[int, ...]]()
    for shard in tensor.shards:
        _count_corners(shard.box, corners, 1)
    _count_corners(tuple((0, size) for size in tensor.shape), corners, -1)
    if any(corners.values()):
        raise InputError("two pieces overlap", where=where, got=next(c for c, times in corners.items() if times))


def _count_corners(box: Box, corners: Counter[tuple[int, ...]], times: int) -> None:
    for ends in product((0, 1), repeat=len(box)):
        corner = tuple(bounds[end] for bounds, end in zip(box, ends, strict=True))
        corners[corner] += -times if sum(ends) % 2 else times


def is_inside(box: Box, shape: Shape) -> bool:
    """Whether a box is a part of a tensor, and not an empty one."""
    return len(box) == len(shape) and all(
        0 <= begin < end <= size for (begin, end), size in zip(box, shape, strict=True)
    )
