"""Object files: made once, kept whole or made again, and loaded without a compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from strategy.base import ahead_of_time, object_compiler
from strategy.base.ahead_of_time import ObjectFile, ObjectFunction
from strategy.base.entries import Vector
from strategy.base.errors import EnvironmentLacks, RunError
from strategy.base.files import held
from strategy.base.private_folder import cache_folder

ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A cache of the test's own."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.delenv("NUMBA_DISABLE_JIT", raising=False)
    cache_folder.cache_clear()
    yield
    cache_folder.cache_clear()


@pytest.fixture(scope="module")
def code() -> list[bytes]:
    """What the compiler makes of `doubling`, once it has."""
    return []


@pytest.fixture
def compiled(code: list[bytes], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An item for every time that the compiler is asked; it thinks once."""
    asked = []
    compiler = object_compiler.object_code

    def counting(functions: Mapping[str, Any]) -> bytes:
        asked.append(1)
        if not code:
            code.append(compiler(functions))
        return code[0]

    monkeypatch.setattr(object_compiler, "object_code", counting)
    return asked


def double(x: Vector, y: Vector, factor: int) -> None:
    for at in range(x.size):
        y[at] = x[at] * factor


def doubling(folder: Path, text: str = "a source") -> ObjectFunction[..., None]:
    """The function, as a process has it that begins."""
    source = folder / "source.py"
    source.write_text(text)
    return ObjectFile(str(source), "functions of a test").function(double)


def doubles(function: Callable[..., None]) -> bool:
    x, y = np.arange(5, dtype=np.float32), np.zeros(5, np.float32)
    function(x, y, 2)
    return y.tolist() == [0, 2, 4, 6, 8]


def only_file(folder: Path) -> Path:
    (found,) = (folder / "cache").glob("*/*.object")
    return found


def test_it_is_compiled_once_and_said_so(
    tmp_path: Path, compiled: list[int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert doubles(doubling(tmp_path))
    assert capsys.readouterr().err == "sbplan: functions of a test are compiled, once for this machine\n"
    assert doubles(doubling(tmp_path))
    assert capsys.readouterr().err == ""
    assert len(compiled) == 1


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def flipped_in_code(content: bytes) -> bytes:
    return content[:1000] + bytes([content[1000] ^ 1]) + content[1001:]


def flipped_in_hash(content: bytes) -> bytes:
    return bytes([content[0] ^ 128]) + content[1:]


def emptied(content: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [truncated, flipped_in_code, flipped_in_hash, emptied])
def test_a_damaged_file_is_not_run_but_made_again(
    damage: Callable[[bytes], bytes], tmp_path: Path, compiled: list[int]
) -> None:
    assert doubles(doubling(tmp_path))
    path = only_file(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    assert doubles(doubling(tmp_path))
    assert len(compiled) == 2
    assert path.read_bytes() == whole


def other_source(folder: Path, _patch: pytest.MonkeyPatch) -> ObjectFunction[..., None]:
    return doubling(folder, "another source")


def other_processor(folder: Path, patch: pytest.MonkeyPatch) -> ObjectFunction[..., None]:
    patch.setattr(ahead_of_time, "_host", lambda: "another processor")
    return doubling(folder)


def other_versions(folder: Path, patch: pytest.MonkeyPatch) -> ObjectFunction[..., None]:
    patch.setattr(ahead_of_time, "_versions", lambda: iter(["another version"]))
    return doubling(folder)


def other_settings(folder: Path, patch: pytest.MonkeyPatch) -> ObjectFunction[..., None]:
    patch.setenv("NUMBA_OPT", "0")
    return doubling(folder)


@pytest.mark.parametrize(
    ("other", "files"), [(other_source, 1), (other_processor, 2), (other_versions, 1), (other_settings, 1)]
)
def test_code_that_was_made_otherwise_is_not_run(
    other: Callable[[Path, pytest.MonkeyPatch], ObjectFunction[..., None]],
    files: int,
    tmp_path: Path,
    compiled: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert doubles(doubling(tmp_path))
    assert doubles(other(tmp_path, monkeypatch))
    assert len(compiled) == 2
    assert len(list((tmp_path / "cache").glob("*/*.object"))) == files


def test_a_file_of_another_processor_under_our_name_is_not_run(
    tmp_path: Path, compiled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        assert doubles(other_processor(tmp_path, patch))
    theirs = only_file(tmp_path)
    assert doubles(doubling(tmp_path))
    (ours,) = {*theirs.parent.glob("*.object")} - {theirs}
    ours.write_bytes(theirs.read_bytes())
    assert doubles(doubling(tmp_path))
    assert len(compiled) == 3


def test_what_cannot_be_kept_runs(tmp_path: Path, compiled: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk, and a user without any folder."""

    def full(*_arguments: object) -> None:
        raise RunError("no space left on device")

    monkeypatch.setattr(ahead_of_time, "write_atomic", full)
    assert doubles(doubling(tmp_path))
    monkeypatch.setattr(ahead_of_time, "cache_folder", lambda _source: None)
    function = doubling(tmp_path)
    assert not function._home.is_usable()
    assert doubles(function)
    assert len(compiled) == 2


def test_who_cannot_wait_any_longer_compiles_too(
    tmp_path: Path, compiled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ahead_of_time, "MOST_WAIT_S", 0.0)
    function = doubling(tmp_path)
    folder = function._home.folder
    assert folder is not None
    with held(folder):
        assert doubles(function)
    assert len(compiled) == 1


def test_without_a_compiler_what_is_kept_runs_and_nothing_is_pretended(
    tmp_path: Path, compiled: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("NUMBA_DISABLE_JIT", "1")
        function = doubling(tmp_path)
        assert not function._home.is_usable()
        with pytest.raises(EnvironmentLacks, match="unset NUMBA_DISABLE_JIT"):
            function(None, None, 2)
    assert doubles(doubling(tmp_path))
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    assert doubles(doubling(tmp_path))
    assert len(compiled) == 1


class Named(np.ndarray[Any, Any]):
    """An array of another type."""


def test_operands_that_are_none_are_told(tmp_path: Path, compiled: list[int]) -> None:
    function, x = doubling(tmp_path), np.ones(6, np.float32)
    frozen = x.copy()
    frozen.flags.writeable = False
    shifted = np.zeros(25, np.uint8)[1:].view(np.float32)
    others = [None, 3, [1.0], memoryview(x), np.float32(1), x.astype(float), x.astype(np.int32), x.astype(">f4")]
    for other in (*others, x[::2], x.reshape(2, 3), x[0, ...], x.view(Named), frozen, shifted):
        with pytest.raises(TypeError, match="double: y is no array of 1 dims of float32, contiguous"):
            function(x, other, 2)
        with pytest.raises(TypeError, match="double: x is no array"):
            function(other, x, 2)
    for number in (2.0, None, x):
        with pytest.raises(TypeError, match="int"):
            function(x, x, number)
    for arguments in ((), (x, x), (x, x, 1, 1)):
        with pytest.raises(TypeError, match="double takes 3 arguments"):
            function(*arguments)
    function(x, x, np.int64(3))
    assert x.tolist() == [3.0] * 6
    function(x, x, -1)
    assert x.tolist() == [-3.0] * 6


def test_threads_that_begin_at_once_load_once(tmp_path: Path, compiled: list[int]) -> None:
    function, found = doubling(tmp_path), []
    threads = [threading.Thread(target=lambda: found.append(doubles(function))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4
    assert len(compiled) == 1


MODULE = """
import sys
import numpy as np
from strategy.base.ahead_of_time import ObjectFile
FILE = ObjectFile(__file__, "functions of a test")
def double(x: "Vector", y: "Vector") -> "None":
    for at in range(x.size):
        y[at] = x[at] + x[at]
double = FILE.function(double)
x = np.arange(3, dtype=np.float32)
double(x, x)
print(x.tolist(), "numba" in sys.modules)
"""


def test_of_processes_that_begin_at_once_one_compiles_and_later_ones_load_no_compiler(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(MODULE)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}

    def begin() -> subprocess.Popen[str]:
        pipe = subprocess.PIPE
        return subprocess.Popen([sys.executable, str(path)], env=environment, stdout=pipe, stderr=pipe, text=True)

    told = sorted(process.communicate() for process in [begin(), begin()])
    assert {out.split("]")[0] for out, _ in told} == {"[0.0, 2.0, 4.0"}
    assert [err for _, err in told if err] == ["sbplan: functions of a test are compiled, once for this machine\n"]
    assert begin().communicate() == ("[0.0, 2.0, 4.0] False\n", "")
