"""Files: read with clear complaints, written whole or not at all, and folders held by one writer at a time."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

from strategy.base.errors import InputError, RunError

LOCK_NAME = ".lock"
_POLL_S = 0.05


def read_json(path: Path) -> object:
    """The JSON document in `path`.

    Raises:
        InputError: missing, unreadable, truncated, not JSON, or holding NaN or an infinity.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InputError("no such file", where=str(path)) from None
    except UnicodeDecodeError as error:
        raise InputError("not UTF-8 text", where=f"{path}: byte {error.start}") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    if not text.strip():
        raise InputError("the file is empty", where=str(path), expected="a JSON document")
    try:
        return json.loads(text, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        truncated = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated string")
        problem = "the file ends in the middle of its JSON document" if truncated else f"not JSON: {error.msg}"
        hint = "write the file again" if truncated else ""
        raise InputError(problem, where=f"{path}: line {error.lineno} column {error.colno}", hint=hint) from None
    except RecursionError:
        raise InputError("nested too deeply", where=str(path)) from None
    except ValueError as error:
        raise InputError(str(error), where=str(path)) from None


def write_atomic(path: Path, data: str | bytes) -> None:
    """Write `data` to `path` so that a reader, or a power cut, finds the old content or the new one, never a part.

    Raises:
        InputError: the folder does not exist, or `path` is a folder.
        RunError: the file system refuses: full, read-only, no permission. The old content is untouched.
    """
    content = data.encode() if isinstance(data, str) else data
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.EISDIR}:
            raise InputError(f"cannot be written: {error.strerror}", where=str(path)) from None
        raise RunError(
            f"{path}: cannot be written: {error.strerror}; free some space or choose another folder"
        ) from error


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


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _sync_folder(folder: Path) -> None:
    """Make the renaming itself survive a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
