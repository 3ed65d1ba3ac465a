"""The run store: one folder per run and one row in `runs.sqlite`.

A run's folder holds `inputs.json` (resolved) from its first moment, and whatever the verb adds under these names:
`plan.json`, `measurements.json`, `timeline.json.gz`, `log.txt`. The database is an index of the folders; it keeps
SQLite's rollback journal, because the write-ahead log does not work on network file systems.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from strategy.base.errors import InputError, RunError, present
from strategy.base.files import held, read_json, write_atomic

SCHEMA_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    verb TEXT NOT NULL,
    started TEXT NOT NULL,
    finished TEXT,
    status TEXT NOT NULL,
    plan_hash TEXT,
    folder TEXT NOT NULL,
    summary TEXT NOT NULL
)
"""
_COLUMNS = "id, verb, started, finished, status, plan_hash, folder, summary"


class RunStatus(StrEnum):
    """How a run stands. A run whose process was killed stays `running`."""

    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run: times are ISO 8601 in UTC; `plan_hash` is the summary's, where it has one."""

    id: int
    verb: str
    started: str
    folder: Path
    status: RunStatus = RunStatus.RUNNING
    finished: str | None = None
    plan_hash: str | None = None
    summary: Mapping[str, object] = field(default_factory=dict)

    def inputs(self) -> Mapping[str, object]:
        """What the run was given, as it was resolved.

        Raises:
            InputError: the file is missing or damaged.
        """
        found = read_json(self.folder / "inputs.json")
        if not isinstance(found, dict):
            raise InputError("not an object", where=str(self.folder / "inputs.json"), got=type(found).__name__)
        return found


@dataclass(frozen=True, slots=True)
class StoredRuns:
    """The runs of a store, oldest first, and the ids of rows that cannot be read."""

    runs: tuple[RunRecord, ...]
    damaged: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RunStore:
    """The runs under `root`. A second writer waits `wait_s` for the first, then is told its pid.

    Raises (every method):
        InputError: another process holds the store, or `runs.sqlite` is not a run store of this version.
        RunError: the file system refuses to write.
    """

    root: Path
    wait_s: float = 10.0

    def create(self, verb: str, inputs: Mapping[str, object], *, name: str | None = None) -> RunRecord:
        """Open a new run: its folder (called `name`, which may be there already), its resolved inputs, its row."""
        started = _now()
        resolved = json.dumps(inputs, indent=2, sort_keys=True) + "\n"
        with self._writing() as database:
            cursor = database.execute(
                "INSERT INTO runs (verb, started, status, folder, summary) VALUES (?, ?, ?, '', '{}')",
                (verb, started, RunStatus.RUNNING),
            )
            number = present(cursor.lastrowid, "the number of the row")
            folder = self.root / (name or f"{number:04d}-{verb}")
            folder.mkdir(exist_ok=True)  # left by a writer that died before its row was kept
            write_atomic(folder / "inputs.json", resolved)
            database.execute("UPDATE runs SET folder = ? WHERE id = ?", (folder.name, number))
        return RunRecord(id=number, verb=verb, started=started, folder=folder)

    def finish(self, run: RunRecord, status: RunStatus, summary: Mapping[str, object]) -> RunRecord:
        """Close `run`; returns it as it now stands."""
        plan_hash = summary.get("plan_hash")
        closed = replace(
            run,
            status=status,
            finished=_now(),
            plan_hash=None if plan_hash is None else str(plan_hash),
            summary=summary,
        )
        with self._writing() as database:
            database.execute(
                "UPDATE runs SET finished = ?, status = ?, plan_hash = ?, summary = ? WHERE id = ?",
                (closed.finished, status, closed.plan_hash, json.dumps(summary, sort_keys=True), run.id),
            )
        return closed

    def get(self, number: int) -> RunRecord:
        """The run with this id.

        Raises:
            InputError: there is none, or its row is damaged.
        """
        with self._reading() as database:
            row = database.execute(f"SELECT {_COLUMNS} FROM runs WHERE id = ?", (number,)).fetchone()
        if row is None:
            raise InputError("no such run", where=str(self.root), got=number, hint="see 'sbplan runs'")
        found = self._run(row)
        if found is None:
            hint = f"'sbplan runs delete {number}' removes it"
            raise InputError("the row of this run is damaged", where=str(self._database), got=number, hint=hint)
        return found

    def list(self) -> tuple[RunRecord, ...]:
        """All runs whose rows can be read, oldest first."""
        return self.read().runs

    def read(self) -> StoredRuns:
        """All runs, oldest first, and which rows are damaged."""
        with self._reading() as database:
            rows = database.execute(f"SELECT {_COLUMNS} FROM runs ORDER BY id").fetchall()
        runs = [(row[0], self._run(row)) for row in rows]
        return StoredRuns(
            tuple(run for _, run in runs if run is not None), tuple(number for number, run in runs if run is None)
        )

    def delete(self, number: int) -> None:
        """Remove a run's row, damaged or not, and its folder, unless another run has the same.

        The row goes first: a folder without a row is found by nobody, a row without a folder by everyone.

        Raises:
            InputError: there is no such run.
        """
        with self._reading() as database:
            row = database.execute("SELECT folder FROM runs WHERE id = ?", (number,)).fetchone()
        if row is None:
            raise InputError("no such run", where=str(self.root), got=number, hint="see 'sbplan runs'")
        with self._writing() as database:
            database.execute("DELETE FROM runs WHERE id = ?", (number,))
            (others,) = database.execute("SELECT count(*) FROM runs WHERE folder = ?", row).fetchone()
        folder = self.root / row[0] if _is_folder_name(row[0]) else None
        if others or folder is None or not folder.is_dir() or folder.is_symlink():
            return
        try:
            shutil.rmtree(folder)
        except OSError as error:
            raise RunError(f"{folder}: cannot be removed: {error.strerror}") from error

    def _run(self, row: tuple[Any, ...]) -> RunRecord | None:
        """The run that a row says; None if it says none."""
        number, verb, started, finished, status, plan_hash, folder, summary = row
        texts = all(isinstance(text, str) for text in (verb, started, folder, status, summary))
        if not texts or not _is_folder_name(folder) or status not in list(RunStatus):
            return None
        try:
            found = json.loads(summary)
        except (ValueError, RecursionError):
            return None
        if not isinstance(found, dict) or not all(isinstance(text, str | None) for text in (finished, plan_hash)):
            return None
        return RunRecord(number, verb, started, self.root / folder, RunStatus(status), finished, plan_hash, found)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction by the only writer: all of it, or nothing, stays in the database."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with held(self.root, wait_s=self.wait_s), self._connected() as database, database:
                database.execute("BEGIN IMMEDIATE")  # a table and its version are made together, or not at all
                database.execute(_SCHEMA)
                database.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
                yield database
        except OSError as error:
            raise RunError(f"{self.root}: cannot be written: {error.strerror}") from error

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        if not self._database.exists():
            raise InputError("no runs here", where=str(self.root), expected=f"a folder with {self._database.name}")
        with self._connected() as database:
            if not database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                # The first writer has made the file and not yet its table, or was killed between: no runs so far.
                database.execute(_SCHEMA.replace("CREATE TABLE", "CREATE TEMP TABLE"))
            yield database

    @contextlib.contextmanager
    def _connected(self) -> Iterator[sqlite3.Connection]:
        try:
            with contextlib.closing(sqlite3.connect(self._database, timeout=self.wait_s)) as database:
                (version,) = database.execute("PRAGMA user_version").fetchone()
                if version not in {0, SCHEMA_VERSION}:
                    raise InputError(
                        "a run store of another version",
                        where=str(self._database),
                        got=version,
                        expected=str(SCHEMA_VERSION),
                    )
                yield database
        except sqlite3.OperationalError as error:
            raise RunError(f"{self._database}: {error}") from error
        except sqlite3.DatabaseError as error:
            raise InputError(f"not a run store: {error}", where=str(self._database)) from error

    @property
    def _database(self) -> Path:
        return self.root / "runs.sqlite"


def _is_folder_name(text: object) -> bool:
    """Whether a row's folder lies in the store: a plain name, which leads nowhere else."""
    return isinstance(text, str) and text not in ("", ".", "..") and Path(text).name == text and "\0" not in text


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
