"""Archive: the zip file that torch.export writes, read with bounds and without unpacking anything to disk.

Entries are used by the names that the file's documents give them, inside the one folder that all of them are in, so
that no name leads out of it. What an entry unpacks to is bounded by what is asked for.
"""

from __future__ import annotations

import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from strategy.base.errors import InputError

MOST_ENTRIES = 10**5


@dataclass(frozen=True, slots=True)
class Archive:
    """An archive that has been opened.

    Attributes:
        path: the file.
        sizes: entry, below the common folder -> bytes that it unpacks to.
        root: the common folder, with a slash at its end; empty where there is none.
    """

    path: Path
    sizes: Mapping[str, int]
    root: str

    def read(self, entry: str, most_bytes: int) -> bytes:
        """The bytes of an entry.

        Raises:
            InputError: it is not there, larger than that, or damaged.
        """
        where = f"{self.path}: {entry}"
        if entry not in self.sizes:
            raise InputError("the archive has no such entry", where=where)
        if self.sizes[entry] > most_bytes:
            raise InputError("too large", where=where, got=self.sizes[entry], expected=f"at most {most_bytes} bytes")
        with _opened(self.path) as file:
            try:
                with file.open(self.root + entry) as found:
                    content = found.read(most_bytes + 1)
            except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
                raise InputError(f"the entry is damaged: {error}", where=where) from error
        if len(content) != self.sizes[entry]:
            raise InputError("the entry has another length", where=where, got=len(content), expected="as declared")
        return content


def open_archive(path: Path) -> Archive:
    """The entries of a zip file.

    Raises:
        InputError: it cannot be read, is no zip file, names an entry twice, not at all or outside of it, or has too
            many.
    """
    with _opened(path) as file:
        listed = file.infolist()
    if not all(info.filename for info in listed):
        raise InputError("the archive has an entry without a name", where=str(path))
    entries = [info for info in listed if not info.is_dir()]
    if len(entries) > MOST_ENTRIES:
        raise InputError("too many entries", where=str(path), got=len(entries), expected=f"at most {MOST_ENTRIES}")
    names = [info.filename for info in entries]
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError("the archive has an entry twice", where=str(path), got=twice[0])
    outside = [name for name in names if name.startswith("/") or "\\" in name or ".." in name.split("/")]
    if outside:
        raise InputError("an entry is outside of the archive", where=str(path), got=outside[0])
    tops = {name.split("/", 1)[0] for name in names}
    root = f"{tops.pop()}/" if len(tops) == 1 and all("/" in name for name in names) else ""
    return Archive(path, {info.filename[len(root) :]: info.file_size for info in entries}, root)


@contextmanager
def _opened(path: Path) -> Iterator[zipfile.ZipFile]:
    try:
        with zipfile.ZipFile(path) as file:
            yield file
    except (zipfile.BadZipFile, ValueError, NotImplementedError, OverflowError) as error:
        expected = "a file that torch.export.save wrote"
        raise InputError("not a zip archive", where=str(path), got=str(error), expected=expected) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", where=str(path)) from error
