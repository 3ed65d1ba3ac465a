"""Writing a checkpoint: every rank its pieces, then one rank the manifest; a name is given to the finished whole.

A save has stages, which no rank begins before all have ended the one before. What a rank does in a stage touches files
and its own copies of tensors alone, so a thread can do it while the rank trains on (`Save`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import final

import msgspec
import numpy as np

from executor.checkpoint.manifest import (
    MANIFEST,
    VERSION,
    File,
    LogicalTensor,
    Manifest,
    Shard,
    Signed,
    TensorPart,
    check_manifest,
    parse_name,
)
from executor.checkpoint.shard_file import read_header
from executor.runtime.transport.base import bytes_of
from strategy.base.errors import InputError, RunError
from strategy.sbp.tensor import DType, Shape, box_shape

AllOk = Callable[[bool], bool]
"""Whether all ranks say true: a collective call, so also a barrier (`MPI.LAND` over the ranks)."""


class UnsavedError(RunError):
    """The checkpoint of a step could not be written; `own` says whether this is the rank that could not."""

    def __init__(self, message: str, *, own: bool) -> None:
        self.own = own
        super().__init__(message)


class _Part(msgspec.Struct, frozen=True):
    """What one rank wrote; rank 0 puts the parts together."""

    file: File
    tensors: dict[str, LogicalTensor]


def save(
    folder: Path,
    step: int,
    pieces: Sequence[TensorPart],
    meta: Mapping[str, str | int | float],
    *,
    rank: int = 0,
    ranks: int = 1,
    all_ok: AllOk = lambda ok: ok,
    keep: int | None = None,
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
        keep: remove older checkpoints, so that no more than so many are left; by default all stay.

    Returns:
        The folder of the new checkpoint.

    Raises:
        UnsavedError: a rank could not write (on all ranks). Earlier checkpoints are as they were.
        InputError: the pieces do not tile the tensors.
    """
    one = Save(folder, step, pieces, meta, rank=rank, ranks=ranks, keep=keep)
    while not one.is_over:
        one.run()
        one.agree(all_ok(one.is_well))
    return one.final


@final
class Save:
    """One rank's part of a save, whose stages are done by whoever calls `run`, in any thread.

    `agree` is told, on all ranks, whether all of them are well when all are through with a stage. The pieces are not
    to be changed until it is over. For the arguments see `save`.
    """

    def __init__(
        self,
        folder: Path,
        step: int,
        pieces: Sequence[TensorPart],
        meta: Mapping[str, str | int | float],
        *,
        rank: int,
        ranks: int,
        keep: int | None,
    ) -> None:
        self.step = step
        self.final = final = _free_name(folder, step)
        self._folder, self._leads = folder, rank == 0
        self._staging = staging = folder / f"step-{step:08d}.tmp"
        self._failure: Exception | None = None
        stages = (
            (lambda: _start_staging(staging)) if self._leads else _nothing,
            lambda: _write_part(staging, rank, pieces),
            (lambda: _finish_staging(staging, final, step, ranks, meta)) if self._leads else _nothing,
            (lambda: _prune(folder, keep)) if self._leads and keep is not None else _nothing,
        )
        self._stages: deque[Callable[[], None]] = deque(stages)

    @property
    def is_over(self) -> bool:
        """Whether all ranks are through with all stages."""
        return not self._stages

    @property
    def is_well(self) -> bool:
        """Whether nothing went wrong in what this rank did so far."""
        return self._failure is None

    def run(self) -> None:
        """This rank's part of the stage; what goes wrong is told when all ranks have heard of it."""
        self._failure = _failure_of(self._stages[0])

    def agree(self, ok: bool) -> None:
        """All ranks are through with the stage, and `ok` says whether all of them well.

        Raises:
            UnsavedError, InputError: see `save`.
        """
        if ok:
            self._stages.popleft()
            return
        self._stages.clear()
        if self._leads:
            shutil.rmtree(self._staging, ignore_errors=True)
        failure = self._failure
        if isinstance(failure, InputError):
            raise failure
        reason = f"{failure.strerror or failure}" if isinstance(failure, OSError) else str(failure or "another rank")
        message = (
            f"checkpoint of step {self.step} was not saved in {self._folder}: {reason}; earlier ones are untouched"
        )
        raise UnsavedError(message, own=failure is not None)


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
    taken = [name[1] for path in folder.glob(f"step-{step:08d}*") if (name := parse_name(path.name)) is not None]
    return folder / (f"step-{step:08d}.{max(taken) + 1}" if taken else f"step-{step:08d}")


def make_durable_folder(folder: Path) -> None:
    """Make a folder, and those above it, so that a power cut does not take them away.

    Raises:
        OSError: the file system refuses.
    """
    if not folder.is_dir():
        make_durable_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _sync(folder.parent)


def _prune(folder: Path, keep: int) -> None:
    """Remove all but the newest checkpoints, and what an earlier removal, or a save that was killed, has left.

    A checkpoint loses its name first, so that what has one is whole. What cannot be removed is tried again next time.
    """
    whole = sorted((name, path) for path in folder.glob("step-*") if (name := parse_name(path.name)) is not None)
    for _, path in whole[:-keep]:
        with suppress(OSError):
            path.rename(path.with_name(f"{path.name}.tmp"))
    for left in folder.glob("step-*.tmp"):
        if parse_name(left.name.removesuffix(".tmp")) is not None:
            shutil.rmtree(left, ignore_errors=True)


def _start_staging(staging: Path) -> None:
    make_durable_folder(staging.parent)
    if staging.exists():
        shutil.rmtree(staging)
    staging.mkdir()


def _write_part(staging: Path, rank: int, pieces: Sequence[TensorPart]) -> None:
    from safetensors.numpy import save_file

    path = staging / f"rank-{rank}.safetensors"
    arrays = {_key(piece): np.asarray(piece.array, order="C") for piece in pieces}
    save_file(arrays, path)
    _sync(path)
    shards: dict[str, list[Shard]] = {}
    whole: dict[str, tuple[Shape, DType]] = {}
    for piece in pieces:
        array = arrays[_key(piece)]
        if array.shape != box_shape(piece.box):
            raise InputError("the array is not of its box's shape", where=piece.name, got=array.shape)
        shard = Shard(path.name, _key(piece), piece.box, hashlib.sha256(bytes_of(array).data).hexdigest())
        shards.setdefault(piece.name, []).append(shard)
        whole[piece.name] = piece.shape, DType(array.dtype.name)
    tensors = {name: LogicalTensor(*whole[name], tuple(found)) for name, found in shards.items()}
    part = _Part(File(path.stat().st_size, read_header(path).sha256), tensors)
    (staging / f"rank-{rank}.json").write_bytes(msgspec.json.encode(part))


def _key(piece: TensorPart) -> str:
    return f"{piece.name}[{','.join(f'{begin}:{end}' for begin, end in piece.box)}]"


def _finish_staging(staging: Path, final: Path, step: int, ranks: int, meta: Mapping[str, str | int | float]) -> None:
    """Put the parts together, check them as a reader would, and give the whole its name."""
    files: dict[str, File] = {}
    tensors: dict[str, LogicalTensor] = {}
    for rank in range(ranks):
        path = staging / f"rank-{rank}.json"
        part = msgspec.json.decode(path.read_bytes(), type=_Part)
        path.unlink()
        files[f"rank-{rank}.safetensors"] = part.file
        for name, tensor in part.tensors.items():
            known = tensors.get(name, LogicalTensor(tensor.shape, tensor.dtype, ()))
            if (known.shape, known.dtype) != (tensor.shape, tensor.dtype):
                raise InputError("ranks disagree on shape or dtype", where=name, got=tensor.shape, expected=str(known))
            tensors[name] = LogicalTensor(known.shape, known.dtype, known.shards + tensor.shards)
    manifest = Manifest(VERSION, step, dict(meta), files, dict(sorted(tensors.items())))
    check_manifest(staging, manifest)
    body = msgspec.json.encode(manifest)
    signed = Signed(hashlib.sha256(body).hexdigest(), msgspec.Raw(body))
    (staging / MANIFEST).write_bytes(msgspec.json.encode(signed) + b"\n")
    _sync(staging / MANIFEST)
    _sync(staging)
    staging.rename(final)
    _sync(final.parent)


def _sync(path: Path) -> None:
    """Have the disk hold what was written to a file, or which names a folder has."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
