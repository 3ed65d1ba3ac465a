"""Files are read with clear complaints, and written whole or not at all."""

from __future__ import annotations

import errno
import gzip
import os
import stat
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest

from strategy.base.errors import InputError, RunError
from strategy.base.files import LOCK_NAME, held, read_json, repeated_key, write_atomic, writing

ROOT = Path(__file__).parents[3]
HOLD_UNTIL_KILLED = """
import sys, time
from pathlib import Path
from strategy.base.files import held
with held(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


def hold_elsewhere(folder: Path, for_s: float) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD_UNTIL_KILLED, str(folder), str(for_s)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    return process


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        (b'{"a": [1, 2', "line 1 column 12: the file ends in the middle of its JSON document; write the file again"),
        (b'{"a": "so', "the file ends in the middle"),
        (b'{"a": 1}\n{"b": 2}', "line 2 column 1: not JSON: Extra data"),
        (b"{'a': 1}", "line 1 column 2: not JSON"),
        (b'{"a": NaN}', "NaN is not a JSON number"),
        (b'{"a": "\xff"}', "byte 7: not UTF-8 text"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a": {"b": 1, "c": 2, "b": 1}}', "key 'b' is given 2 times in one object"),
        (b'{"a": 1, "\\u0061": 2, "c": 3}', "key 'a' is given 2 times in one object"),
    ],
)
def test_read_json_says_what_is_wrong(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_json(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_read_json_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"plan\.json: no such file"):
        read_json(tmp_path / "plan.json")
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        read_json(tmp_path)


def test_a_packed_document_is_read_no_further_than_it_may_be_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "timeline.json.gz"
    path.write_bytes(gzip.compress(b'{"a": [1, 2]}'))
    assert read_json(path) == {"a": [1, 2]}
    path.write_bytes(gzip.compress(bytes(2**30 // 8), compresslevel=1))
    monkeypatch.setattr("strategy.base.files.MAX_JSON_BYTES", 2**22)
    tracemalloc.start()
    with pytest.raises(InputError, match="too large"):
        read_json(path)
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()
    monkeypatch.setattr("strategy.base.files.MAX_JSON_VALUES", 1000)
    path.write_bytes(gzip.compress(b"[" + b"[]," * 1000 + b"0]"))
    assert len(read_json(path)) == 1001  # type: ignore[arg-type]
    path.write_bytes(gzip.compress(b"[" + b"[]," * 1001 + b"0]"))
    with pytest.raises(InputError, match="too many values"):
        read_json(path)


def test_a_packed_document_that_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json.gz"
    whole = gzip.compress(b'{"a": [1, 2]}' * 50)
    for damaged in (whole[:-9], whole[:20] + b"\xff" * 8 + whole[28:], b'{"a": 1}', whole[:-4] + b"\0\0\0\0"):
        path.write_bytes(damaged)
        with pytest.raises(InputError, match="cannot be unpacked"):
            read_json(path)


def test_repeated_key() -> None:
    assert repeated_key('{"a": {"b": 1}, "c": [{"b": 1}, {"b": 2}]}') is None
    assert repeated_key(b'{"a": [{"b": 1, "d": 0, "b": 2}]}') == "b"
    assert repeated_key('{"a": 1, "a": ') is None


def test_every_truncation_is_named(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    whole = '{"config": {"dp": 2, "name": "a b"}, "sbp": ["S(0)", "B"]}'
    path.write_text(whole)
    assert read_json(path) == {"config": {"dp": 2, "name": "a b"}, "sbp": ["S(0)", "B"]}
    for end in range(len(whole)):
        path.write_text(whole[:end])
        with pytest.raises(InputError):
            read_json(path)


def test_write_atomic_writes_and_replaces(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    write_atomic(path, "old")
    write_atomic(path, b"new\x00")
    assert path.read_bytes() == b"new\x00"
    assert [child.name for child in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS, errno.EIO])
@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_refusing_file_system_leaves_the_old_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, step: str
) -> None:
    path = tmp_path / "plan.json"
    write_atomic(path, "old")

    def refuse(*_args: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(*((os, "fsync", refuse) if step == "fsync" else (Path, "replace", refuse)))
    with pytest.raises(RunError, match=os.strerror(code)):
        write_atomic(path, "new")
    assert path.read_text() == "old"
    assert [child.name for child in tmp_path.iterdir()] == ["plan.json"]


def test_write_atomic_into_nowhere_is_the_users_mistake(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file or directory"):
        write_atomic(tmp_path / "absent" / "plan.json", "new")
    with pytest.raises(InputError, match="Is a directory"):
        write_atomic(tmp_path, "new")


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o444])
def test_a_file_that_is_written_anew_keeps_its_mode(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "plan.json"
    path.write_text("old")
    path.chmod(mode)
    write_atomic(path, "new")
    assert (path.read_text(), stat.S_IMODE(path.stat().st_mode)) == ("new", mode)


def test_a_link_stays_and_what_it_points_to_is_written(tmp_path: Path) -> None:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    for name in ("there", "not_yet"):
        link = tmp_path / f"link_to_{name}"
        link.symlink_to(Path("elsewhere") / name)
        if name == "there":
            (folder / name).write_text("old")
        write_atomic(link, "new")
        assert link.is_symlink()
        assert (folder / name).read_text() == "new"
    assert sorted(child.name for child in folder.iterdir()) == ["not_yet", "there"]


def test_a_pipe_is_written_through(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        write_atomic(path, "new")
        assert os.read(reader, 16) == b"new"
    finally:
        os.close(reader)
    assert stat.S_ISFIFO(path.stat().st_mode)


def test_names_may_be_as_long_as_the_file_system_has_them(tmp_path: Path) -> None:
    write_atomic(tmp_path / ("a" * 255), "new")
    with pytest.raises(InputError, match="File name too long"):
        write_atomic(tmp_path / ("a" * 256), "new")
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    with pytest.raises(InputError, match="symbolic links"):
        write_atomic(loop, "new")


def test_what_cannot_be_written_to_its_end_leaves_no_part(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"

    def write_some() -> None:
        with writing(path) as file:
            file.write(b"some")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(RunError, match="No space left"):
        write_some()
    assert list(tmp_path.iterdir()) == []


def test_a_second_writer_is_told_the_owner(tmp_path: Path) -> None:
    owner = hold_elsewhere(tmp_path, 60)
    try:
        with pytest.raises(InputError, match=f"in use by the process with pid {owner.pid}"), held(tmp_path):
            pass
    finally:
        owner.kill()
        owner.communicate()
    with held(tmp_path):  # a killed owner leaves nothing behind
        assert (tmp_path / LOCK_NAME).read_text() == f"{os.getpid()}\n"


def test_a_second_writer_may_wait(tmp_path: Path) -> None:
    owner = hold_elsewhere(tmp_path, 0.5)
    started = time.monotonic()
    with held(tmp_path, wait_s=30):
        waited_s = time.monotonic() - started
    owner.communicate()
    assert 0 < waited_s < 20


def test_a_folder_that_is_not_there_cannot_be_held(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="No such file"), held(tmp_path / "absent"):
        pass


def test_an_unlockable_file_system_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    def refuse(*_args: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    unlockable: Callable[..., None] = refuse
    monkeypatch.setattr(fcntl, "flock", unlockable)
    with pytest.raises(RunError, match="cannot be locked"), held(tmp_path):
        pass
