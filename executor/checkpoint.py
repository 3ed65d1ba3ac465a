"""Checkpoints: logical tensors, so that any plan can load what any other plan saved.

    step-00000020/rank-0.safetensors   the pieces that rank 0 owned
                  rank-1.safetensors
                  manifest.json        every logical tensor: shape, dtype, and where each piece of it lies

A checkpoint is written under another name and renamed when all of it is on the disk, so one that has its name is
whole. The manifest covers every byte: pieces by SHA-256, headers by SHA-256, files by their sizes, and itself.
Reading trusts nothing: what is changed, cut off, missing, or points elsewhere is refused and never half used.
"""

from __future__ import annotations

import hashlib
import math
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from executor.transport.base import bytes_of
from strategy.errors import InputError, RunError
from strategy.tensor import Box, DType, Shape, box_shape, intersect, within

_MANIFEST = "manifest.json"
_VERSION = 1
_MANIFEST_LIMIT = 1 << 28
_HEADER_LIMIT = 100_000_000
_FOLDER_NAME = re.compile(r"step-(\d{8})(?:\.(\d{1,6}))?")
_SHARD_NAME = re.compile(r"rank-\d{1,7}\.safetensors")

AllOk = Callable[[bool], bool]
"""Whether all ranks say true: a collective call, so also a barrier (`MPI.LAND` over the ranks)."""


@dataclass(frozen=True, slots=True)
class Piece:
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


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
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
    tensors: dict[str, Tensor]


class _Signed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file `manifest.json`: the manifest as it was hashed, byte for byte."""

    sha256: str
    manifest: msgspec.Raw


class _Part(msgspec.Struct, frozen=True):
    """What one rank wrote; rank 0 puts the parts together."""

    file: File
    tensors: dict[str, Tensor]


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


def save(
    folder: Path,
    step: int,
    pieces: Sequence[Piece],
    meta: Mapping[str, str | int | float],
    *,
    rank: int = 0,
    ranks: int = 1,
    all_ok: AllOk = lambda ok: ok,
) -> Path:
    """Save what all ranks own as the checkpoint of `step`; every rank calls it.

    Args:
        folder: where the checkpoints lie, the same for all ranks.
        step: the number of steps done.
        pieces: what this rank owns; the pieces of all ranks tile every tensor.
        meta: goes into the manifest.
        rank: of the caller.
        ranks: how many write.
        all_ok: agreement between the ranks.

    Returns:
        The folder of the new checkpoint.

    Raises:
        RunError: a rank could not write (on all ranks). Earlier checkpoints are as they were.
        InputError: the pieces do not tile the tensors.
    """
    draft = folder / f"step-{step:08d}.tmp"
    final = _free_name(folder, step)
    stages: tuple[Callable[[], None], ...] = (
        (lambda: _start_draft(draft)) if rank == 0 else _nothing,
        lambda: _write_part(draft, rank, pieces),
        (lambda: _finish_draft(draft, final, step, ranks, meta)) if rank == 0 else _nothing,
    )
    for stage in stages:
        failure = _failure_of(stage)
        if not all_ok(failure is None):
            if rank == 0:
                shutil.rmtree(draft, ignore_errors=True)
            if isinstance(failure, InputError):
                raise failure
            reason = (
                f"{failure.strerror or failure}" if isinstance(failure, OSError) else str(failure or "another rank")
            )
            raise RunError(f"checkpoint of step {step} was not saved in {folder}: {reason}; earlier ones are untouched")
    return final


def latest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint in `folder`; None where there is none.

    Raises:
        InputError: the newest one was changed after it was written; says which, and which one is older.
    """
    found = sorted((name, path) for path in folder.glob("step-*") if (name := _parse_name(path.name)) is not None)
    if not found:
        return None
    try:
        return open_checkpoint(found[-1][1])
    except InputError as error:
        older = f"to go on from {found[-2][1].name}" if len(found) > 1 else "to start anew"
        raise InputError(f"{error}", hint=f"remove {found[-1][1].name} {older}") from error


def open_checkpoint(folder: Path) -> Checkpoint:
    """The checkpoint in `folder` itself.

    Raises:
        InputError: the manifest is missing, changed or inconsistent, or a shard file is missing or has another size.
    """
    manifest = _read_manifest(folder / _MANIFEST)
    _check_manifest(folder, manifest)
    return Checkpoint(folder, manifest)


def load(checkpoint: Checkpoint, name: str, box: Box | None = None) -> NDArray[Any]:
    """The part `box` (by default all) of the logical tensor `name`; reads only the shards that it overlaps.

    Raises:
        InputError: no such tensor, a box outside of it, or a shard that is not as it was written.
    """
    tensor = checkpoint.manifest.tensors.get(name)
    where = f"{checkpoint.folder.name}: {name}"
    if tensor is None:
        raise InputError("the checkpoint has no such tensor", where=where)
    wanted = box if box is not None else tuple((0, size) for size in tensor.shape)
    if not _is_inside(wanted, tensor.shape):
        raise InputError("the box is not inside the tensor", where=where, got=wanted, expected=str(tensor.shape))
    result = np.empty(box_shape(wanted), tensor.dtype.numpy)
    for shard in tensor.shards:
        shared = intersect(shard.box, wanted)
        if shared is not None:
            piece = _read_piece(checkpoint, shard, tensor.dtype)
            result[within(shared, wanted)] = piece[within(shared, shard.box)]
    return result


def _nothing() -> None:
    """The part of the ranks that have none in a stage."""


def _failure_of(stage: Callable[[], None]) -> Exception | None:
    """Run one rank's part of a stage; what went wrong is told only after all ranks have heard of it."""
    from safetensors import SafetensorError

    try:
        stage()
    except (OSError, SafetensorError, InputError) as error:
        return error
    return None


def _free_name(folder: Path, step: int) -> Path:
    """The folder of a step that is saved; saved again, `step-00000020.1`: what is there is never taken away first."""
    taken = [name[1] for path in folder.glob(f"step-{step:08d}*") if (name := _parse_name(path.name)) is not None]
    return folder / (f"step-{step:08d}.{max(taken) + 1}" if taken else f"step-{step:08d}")


def _parse_name(name: str) -> tuple[int, int] | None:
    match = _FOLDER_NAME.fullmatch(name)
    return (int(match[1]), int(match[2] or 0)) if match else None


def _start_draft(draft: Path) -> None:
    draft.parent.mkdir(parents=True, exist_ok=True)
    if draft.exists():
        shutil.rmtree(draft)
    draft.mkdir()


def _write_part(draft: Path, rank: int, pieces: Sequence[Piece]) -> None:
    from safetensors.numpy import save_file

    path = draft / f"rank-{rank}.safetensors"
    arrays = {_key(piece): np.asarray(piece.array, order="C") for piece in pieces}
    save_file(arrays, path)
    _sync(path)
    tensors: dict[str, Tensor] = {}
    for piece in pieces:
        array = arrays[_key(piece)]
        if array.shape != box_shape(piece.box):
            raise InputError("the array is not of its box's shape", where=piece.name, got=array.shape)
        shard = Shard(path.name, _key(piece), piece.box, hashlib.sha256(bytes_of(array).data).hexdigest())
        before = tensors[piece.name].shards if piece.name in tensors else ()
        tensors[piece.name] = Tensor(piece.shape, DType(array.dtype.name), (*before, shard))
    part = _Part(File(path.stat().st_size, _header_sha256(path)), tensors)
    (draft / f"rank-{rank}.json").write_bytes(msgspec.json.encode(part))


def _key(piece: Piece) -> str:
    return f"{piece.name}[{','.join(f'{begin}:{end}' for begin, end in piece.box)}]"


def _finish_draft(draft: Path, final: Path, step: int, ranks: int, meta: Mapping[str, str | int | float]) -> None:
    """Put the parts together, check them as a reader would, and give the whole its name."""
    files: dict[str, File] = {}
    tensors: dict[str, Tensor] = {}
    for rank in range(ranks):
        path = draft / f"rank-{rank}.json"
        part = msgspec.json.decode(path.read_bytes(), type=_Part)
        path.unlink()
        files[f"rank-{rank}.safetensors"] = part.file
        for name, tensor in part.tensors.items():
            known = tensors.get(name, Tensor(tensor.shape, tensor.dtype, ()))
            if (known.shape, known.dtype) != (tensor.shape, tensor.dtype):
                raise InputError("ranks disagree on shape or dtype", where=name, got=tensor.shape, expected=str(known))
            tensors[name] = Tensor(known.shape, known.dtype, known.shards + tensor.shards)
    manifest = Manifest(_VERSION, step, dict(meta), files, dict(sorted(tensors.items())))
    _check_manifest(draft, manifest)
    body = msgspec.json.encode(manifest)
    signed = _Signed(hashlib.sha256(body).hexdigest(), msgspec.Raw(body))
    (draft / _MANIFEST).write_bytes(msgspec.json.encode(signed) + b"\n")
    _sync(draft / _MANIFEST)
    _sync(draft)
    draft.rename(final)
    _sync(final.parent)


def _sync(path: Path) -> None:
    """Have the disk hold what was written to a file, or which names a folder has."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _read_manifest(path: Path) -> Manifest:
    try:
        if path.stat().st_size > _MANIFEST_LIMIT:
            raise InputError("too large for a manifest", where=str(path), got=path.stat().st_size)
        signed = msgspec.json.decode(path.read_bytes(), type=_Signed)
        if hashlib.sha256(signed.manifest).hexdigest() != signed.sha256:
            raise InputError("the manifest was changed after it was written", where=str(path))
        manifest = msgspec.json.decode(signed.manifest, type=Manifest)
    except OSError as error:
        raise InputError("cannot be read", where=str(path), got=error.strerror) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError("not a manifest of ours", where=str(path), got=str(error)) from error
    if manifest.version != _VERSION:
        raise InputError("unknown version", where=str(path), got=manifest.version, expected=str(_VERSION))
    return manifest


def _check_manifest(folder: Path, manifest: Manifest) -> None:
    """Every file is there with its size, and the shards of every tensor tile it."""
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
        for shard in tensor.shards:
            if shard.file not in manifest.files:
                raise InputError("a piece lies in an unknown file", where=where, got=shard.file)
            if not _is_inside(shard.box, tensor.shape):
                raise InputError("a piece is not inside the tensor", where=where, got=shard.box)
        _check_tiling(where, tensor)


def _check_tiling(where: str, tensor: Tensor) -> None:
    """Boxes that do not meet and together hold as many elements as the tensor cover it."""
    boxes = sorted(shard.box for shard in tensor.shards)
    for index, box in enumerate(boxes):
        for other in boxes[index + 1 :]:
            if box and other[0][0] >= box[0][1]:
                break
            if intersect(box, other) is not None:
                raise InputError("two pieces overlap", where=where, got=(box, other))
    covered = sum(math.prod(box_shape(box)) for box in boxes)
    if covered != math.prod(tensor.shape):
        expected = f"{math.prod(tensor.shape)} elements"
        raise InputError("the pieces do not cover the tensor", where=where, got=covered, expected=expected)


def _is_inside(box: Box, shape: Shape) -> bool:
    return len(box) == len(shape) and all(
        0 <= begin < end <= size for (begin, end), size in zip(box, shape, strict=True)
    )


def _header_sha256(path: Path) -> str:
    """Hash of a safetensors file's head: eight bytes of length, then as many of JSON."""
    with path.open("rb") as file:
        prefix = file.read(8)
        nbytes = int.from_bytes(prefix, "little")
        if nbytes > min(_HEADER_LIMIT, path.stat().st_size):
            raise InputError("the header is larger than can be", where=str(path), got=nbytes)
        return hashlib.sha256(prefix + file.read(nbytes)).hexdigest()


def _read_piece(checkpoint: Checkpoint, shard: Shard, dtype: DType) -> NDArray[Any]:
    from safetensors import SafetensorError, safe_open

    path = checkpoint.folder / shard.file
    try:
        if _header_sha256(path) != checkpoint.manifest.files[shard.file].header_sha256:
            raise InputError("the header was changed after it was written", where=str(path))
        with safe_open(path, framework="numpy") as file:
            array: NDArray[Any] = file.get_tensor(shard.key)
    except (OSError, SafetensorError) as error:
        raise InputError("the shard file cannot be read", where=str(path), got=str(error)) from error
    if array.dtype.name != dtype or array.shape != box_shape(shard.box):
        raise InputError("a piece is not what the manifest says", where=f"{path}: {shard.key}", got=array.shape)
    if hashlib.sha256(bytes_of(np.asarray(array, order="C")).data).hexdigest() != shard.sha256:
        raise InputError("a piece was changed after it was written", where=f"{path}: {shard.key}")
    return array
