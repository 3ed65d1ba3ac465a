"""Files: read with clear complaints, written whole or not at all, and folders held by one writer at a time."""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import json
import os
import secrets
import stat
import time
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from strategy.base.errors import InputError, RunError

MAX_JSON_BYTES = 256 * 2**20
MAX_JSON_VALUES = 16 * 10**6
"""Of a document, unpacked: so that a small file that unpacks to a huge one costs seconds, not the memory."""

LOCK_NAME = ".lock"
_POLL_S = 0.05
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
_IMPOSSIBLE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG, errno.ELOOP}
"""Complaints about a name, not about the file system."""


def read_json(path: Path) -> object:
    """The JSON document in `path`, unpacked if the name ends in `.gz`.

    Raises:
        InputError: missing, unreadable, truncated, too large, not JSON, or holding a key twice, NaN or an infinity.
    """
    try:
        text = _unpacked(path).decode("utf-8")
    except FileNotFoundError:
        raise InputError("no such file", where=str(path)) from None
    except UnicodeDecodeError as error:
        raise InputError("not UTF-8 text", where=f"{path}: byte {error.start}") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise InputError(f"cannot be unpacked: {error}", where=str(path), hint="is the file complete?") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    return parse_json(text, str(path))


def parse_json(text: str, where: str) -> object:
    """The JSON document that a text is; `where` is the file that it is of.

    Raises:
        InputError: empty, truncated, too large, not JSON, or holding a key twice, NaN or an infinity.
    """
    if not text.strip():
        raise InputError("the file is empty", where=where, expected="a JSON document")
    values = text.count(",") + text.count("{")
    if values > MAX_JSON_VALUES:
        raise InputError("too many values", where=where, got=values, expected=f"at most {MAX_JSON_VALUES}")
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        truncated = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        problem = "the file ends in the middle of its JSON document" if truncated else f"not JSON: {error.msg}"
        hint = "write the file again" if truncated else ""
        raise InputError(problem, where=f"{where}: line {error.lineno} column {error.colno}", hint=hint) from None
    except RecursionError:
        raise InputError("nested too deeply", where=where) from None
    except ValueError as error:
        raise InputError(str(error), where=where) from None


def repeated_key(text: str | bytes) -> str | None:
    """The first key that an object of a JSON document has twice; None of a document without, or of no JSON.

    For documents that a typed reader parses: of two values such a reader takes one, and another reader the other.
    """
    try:
        json.loads(text, object_pairs_hook=_nothing_of)
    except _RepeatedKeyError as error:
        return error.key
    except (ValueError, RecursionError):  # what is no JSON is told by the reader
        return None
    return None


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write `data` to `path` as `writing` does.

    Raises:
        InputError, RunError: as `writing`.
    """
    content = data.encode() if isinstance(data, str) else data
    with writing(path) as file:
        file.write(content)


@contextlib.contextmanager
def writing(path: Path) -> Iterator[BinaryIO]:
    """Open `path` so that a reader, or a power cut, finds the old content or the new one, never a part.

    The file that a symbolic link points to is replaced, and keeps its mode and owner. What is no regular file, such as
    a device or a pipe, is written through.

    Raises:
        InputError: the folder does not exist, the name cannot be, or `path` is a folder.
        RunError: the file system refuses: full, read-only, no permission. The old content is untouched.
    """
    try:
        there = _status(path)
        if there is not None and not stat.S_ISREG(there.st_mode):
            with path.open("wb") as file:
                yield file
            return
        target = Path(os.path.realpath(path))
        temporary = target.with_name(f".sbplan-{secrets.token_hex(8)}.tmp")
        try:
            # Nobody else may open the draft of a file that is to be closed to them.
            with os.fdopen(os.open(temporary, _NEW, 0o666 if there is None else 0o600), "wb") as file:
                if there is not None:
                    _keep_owner_and_mode(file.fileno(), there)
                yield file
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        except BaseException:
            with contextlib.suppress(OSError):
                temporary.unlink()
            raise
        _sync_folder(target.parent)
    except OSError as error:
        if error.errno in _IMPOSSIBLE:
            raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from None
        raise RunError(
            f"{path}: cannot be written: {error.strerror}; free some space or choose another folder"
        ) from error


def _status(path: Path) -> os.stat_result | None:
    """Of the file that a path leads to, if there is one."""
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _keep_owner_and_mode(descriptor: int, there: os.stat_result) -> None:
    made = os.fstat(descriptor)
    if (made.st_uid, made.st_gid) != (there.st_uid, there.st_gid):
        with contextlib.suppress(PermissionError):  # only root gives files away; then the new one is the writer's
            os.fchown(descriptor, there.st_uid, there.st_gid)
    os.fchmod(descriptor, stat.S_IMODE(there.st_mode))


@contextlib.contextmanager
def held(folder: Path, *, wait_s: float = 0.0) -> Iterator[None]:
    """Hold `folder` as its only writer; another process may wait up to `wait_s` for it.

    The lock is the kernel's, so it ends with its owner however that ends; the file only names the owner.

    Raises:
        InputError: another process still holds the folder after `wait_s`; the message has its pid.
        RunError: the file system knows no locks, or the lock file cannot be written.
    """
    import fcntl

    path = folder / LOCK_NAME
    deadline = time.monotonic() + wait_s
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise RunError(f"{path}: cannot be written: {error.strerror}") from error
    with os.fdopen(descriptor, "r+") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    lock.seek(0)
                    owner = lock.read().strip() or "unknown"
                    raise InputError(
                        f"in use by the process with pid {owner}",
                        where=str(folder),
                        hint="wait for it, or choose another folder",
                    ) from None
                time.sleep(_POLL_S)
            except OSError as error:
                raise RunError(
                    f"{path}: cannot be locked: {error.strerror}; choose a folder on a local disk"
                ) from error
        lock.seek(0)
        lock.truncate()
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _unpacked(path: Path) -> bytes:
    """The bytes of a file, read no further than a document may be long."""
    content = io.BytesIO()
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        while piece := file.read(2**20):
            content.write(piece)
            if content.tell() > MAX_JSON_BYTES:
                raise InputError("too large", where=str(path), expected=f"at most {MAX_JSON_BYTES} bytes of JSON")
    return content.getvalue()


class _RepeatedKeyError(ValueError):
    """An object has a key twice."""

    def __init__(self, key: str, times: int) -> None:
        self.key = key
        super().__init__(f"key {key!r} is given {times} times in one object")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _RepeatedKeyError(*Counter(key for key, _ in pairs).most_common(1)[0])
    return found


def _nothing_of(pairs: list[tuple[str, Any]]) -> None:
    """As `_object`, and keeps nothing."""
    _object(pairs)


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _sync_folder(folder: Path) -> None:
    """Make the renaming itself survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
