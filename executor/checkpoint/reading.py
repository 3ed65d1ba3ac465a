"""Reading a checkpoint: the newest one of a folder, verified, and any part of its tensors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from executor.checkpoint.manifest import (
    MANIFEST,
    VERSION,
    Checkpoint,
    Manifest,
    Shard,
    Signed,
    check_manifest,
    is_inside,
    parse_name,
)
from executor.checkpoint.shard_file import Header, Stored, read_header, read_piece
from strategy.base.errors import InputError
from strategy.base.files import repeated_key
from strategy.sbp.tensor import Box, DType, box_shape, intersect, within

_MANIFEST_LIMIT = 1 << 28


def latest(folder: Path) -> Checkpoint | None:
    """The newest checkpoint in `folder`; None where there is none.

    Raises:
        InputError: the newest one was changed after it was written; says which, and which one is older.
    """
    found = sorted((name, path) for path in folder.glob("step-*") if (name := parse_name(path.name)) is not None)
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
    manifest = _read_manifest(folder / MANIFEST)
    check_manifest(folder, manifest)
    return Checkpoint(folder, manifest)


class Reader:
    """Reads parts of the tensors of a checkpoint; the header of a file is read, and verified, once."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._files: dict[str, tuple[Header, Mapping[str, Stored]]] = {}

    def load(self, name: str, box: Box | None = None) -> NDArray[Any]:
        """The part `box` (by default all) of the logical tensor `name`; reads only the shards that it overlaps.

        The part and one shard are in memory at a time; a part that is one shard is that shard itself.

        Raises:
            InputError: no such tensor, a box outside of it, or a shard that is not as it was written.
        """
        checkpoint = self._checkpoint
        tensor = checkpoint.manifest.tensors.get(name)
        where = f"{checkpoint.folder.name}: {name}"
        if tensor is None:
            raise InputError("the checkpoint has no such tensor", where=where)
        wanted = box if box is not None else tuple((0, size) for size in tensor.shape)
        if not is_inside(wanted, tensor.shape):
            raise InputError("the box is not inside the tensor", where=where, got=wanted, expected=str(tensor.shape))
        whole = next((shard for shard in tensor.shards if shard.box == wanted), None)
        if whole is not None:
            return self._piece(whole, tensor.dtype)
        result = np.empty(box_shape(wanted), tensor.dtype.numpy)
        for shard in tensor.shards:
            shared = intersect(shard.box, wanted)
            if shared is not None:
                # No name for the shard: the next one is read when it is gone.
                cells = within(shared, shard.box)
                result[within(shared, wanted)] = self._piece(shard, tensor.dtype)[cells]
        return result

    def _piece(self, shard: Shard, dtype: DType) -> NDArray[Any]:
        path = self._checkpoint.folder / shard.file
        try:
            header, pieces = self._pieces_of(shard.file)
            array, sha256 = read_piece(header, pieces.get(shard.key), dtype, box_shape(shard.box))
        except OSError as error:
            raise InputError("the shard file cannot be read", where=str(path), got=str(error)) from error
        if sha256 != shard.sha256:
            raise InputError("a piece was changed after it was written", where=f"{path}: {shard.key}")
        return array

    def _pieces_of(self, name: str) -> tuple[Header, Mapping[str, Stored]]:
        if name not in self._files:
            header = read_header(self._checkpoint.folder / name)
            if header.sha256 != self._checkpoint.manifest.files[name].header_sha256:
                raise InputError("the header was changed after it was written", where=str(header.path))
            self._files[name] = header, header.pieces()
        return self._files[name]


def load(checkpoint: Checkpoint, name: str, box: Box | None = None) -> NDArray[Any]:
    """One part of one tensor; see `Reader.load`, which is for many."""
    return Reader(checkpoint).load(name, box)


def _read_manifest(path: Path) -> Manifest:
    try:
        if path.stat().st_size > _MANIFEST_LIMIT:
            raise InputError("too large for a manifest", where=str(path), got=path.stat().st_size)
        content = path.read_bytes()
        signed = msgspec.json.decode(content, type=Signed)
        if hashlib.sha256(signed.manifest).hexdigest() != signed.sha256:
            raise InputError("the manifest was changed after it was written", where=str(path))
        manifest = msgspec.json.decode(signed.manifest, type=Manifest)
    except OSError as error:
        raise InputError("cannot be read", where=str(path), got=error.strerror) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError("not a manifest of ours", where=str(path), got=str(error)) from error
    repeated = repeated_key(content)
    if repeated is not None:
        raise InputError(f"key {repeated!r} is given twice in one object", where=str(path))
    if manifest.version != VERSION:
        raise InputError("unknown version", where=str(path), got=manifest.version, expected=str(VERSION))
    return manifest
