"""The run store: one folder per run and one row in `runs.sqlite`.

A run's folder holds `inputs.json` (resolved) from its first moment, and whatever the verb adds under these names:
`plan.json`, `measurements.json`, `timeline.json.gz`, `log.txt`. The database is an index of the folders; it keeps
SQLite's rollback journal, because the write-ahead log does not work on network file systems.
"""

from __future__ import annotations

import contextlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from strategy.base.errors import InputError, RunError, present
from strategy.base.files import held, write_atomic

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
            InputError: there is none.
        """
        with self._reading() as database:
            row = database.execute(f"SELECT {_COLUMNS} FROM runs WHERE id = ?", (number,)).fetchone()
        if row is None:
            raise InputError("no such run", where=str(self.root), got=number, hint="see 'sbplan runs'")
        return self._run(row)

    def list(self) -> tuple[RunRecord, ...]:
        """All runs, oldest first."""
        with self._reading() as database:
            rows = database.execute(f"SELECT {_COLUMNS} FROM runs ORDER BY id").fetchall()
        return tuple(self._run(row) for row in rows)

    def _run(self, row: tuple[Any, ...]) -> RunRecord:
        number, verb, started, finished, status, plan_hash, folder, summary = row
        return RunRecord(
            id=number,
            verb=verb,
            started=started,
            folder=self.root / folder,
            status=RunStatus(status),
            finished=finished,
            plan_hash=plan_hash,
            summary=json.loads(summary),
        )

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        """One transaction by the only writer: all of it, or nothing, stays in the database."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with held(self.root, wait_s=self.wait_s), self._connected() as database, database:
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


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
