"""Machine code is kept where the user alone can write, and only where it can be kept."""

from __future__ import annotations

import importlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from numba.core import config

from strategy.base import machine_code
from strategy.base.compiled import compiled, in_place
from strategy.base.errors import EnvironmentLacks
from strategy.base.machine_code import cache_folder, is_private


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A home and a temporary folder of the test's own; nothing remembered of other folders."""
    monkeypatch.setattr(config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(machine_code.tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
    tmp_path.chmod(0o700)
    cache_folder.cache_clear()
    yield
    cache_folder.cache_clear()


def refuse(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    """Let nothing be written in some folders, as on a read-only disk."""
    access = os.access

    def refusing(path: Path, mode: int) -> bool:
        return not any(path.is_relative_to(folder) for folder in folders) and access(path, mode)

    monkeypatch.setattr(os, "access", refusing)


def test_code_is_kept_beside_the_source_else_in_the_home_else_in_a_temporary_folder_else_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, home, temporary = (tmp_path / name for name in ("source", "home", "temporary"))
    source.mkdir()
    found = []
    for refused in ((), (source,), (source, home), (source, home, temporary)):
        with monkeypatch.context() as patch:
            refuse(patch, *refused)
            cache_folder.cache_clear()
            found.append(cache_folder(source))
    beside, at_home, in_temporary, nowhere = found
    assert beside == source / "__pycache__"
    for folder, place in ((at_home, home), (in_temporary, temporary)):
        assert folder is not None
        assert folder.is_relative_to(place)
        assert folder.stat().st_mode & 0o77 == 0
    assert nowhere is None


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775, 0o722])
def test_a_folder_that_others_can_write_to_is_not_used(tmp_path: Path, mode: int) -> None:
    cache = tmp_path / "source" / "__pycache__"
    cache.mkdir(parents=True)
    cache.chmod(mode)
    assert cache_folder(cache.parent) != cache
    cache.chmod(0o755)
    assert is_private(cache)


def test_a_folder_in_one_that_others_can_rename_in_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "open" / "mine"
    folder.mkdir(parents=True, mode=0o700)
    for mode, private in ((0o777, False), (0o1777, True), (0o755, True)):
        folder.parent.chmod(mode)
        assert is_private(folder) is private


def test_a_folder_of_somebody_else_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "theirs"
    folder.mkdir(mode=0o700)
    assert is_private(folder)
    monkeypatch.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
    assert not is_private(folder)


@pytest.mark.parametrize("kept", [True, False])
def test_code_runs_whether_it_can_be_kept_or_not(kept: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk: the folder is there, and every file in it is refused."""

    def refusing(*_arguments: object) -> None:
        raise OSError(28, os.strerror(28))

    if not kept:
        monkeypatch.setattr(machine_code.FunctionCache, "_save_overload", refusing)
        monkeypatch.setattr(machine_code.FunctionCache, "_load_overload", refusing)

    def add(left: int, right: int) -> int:
        return left + right

    assert in_place(add)(2, 3) == 5


def test_without_a_compiler_nothing_is_pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "DISABLE_JIT", 1)
    with pytest.raises(EnvironmentLacks, match="unset NUMBA_DISABLE_JIT"):
        in_place(lambda: 0)()


def test_code_of_a_version_whose_types_had_other_names_is_compiled_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "kept"
    folder.mkdir()
    (folder / "older.py").write_text(
        "from typing import NamedTuple\n"
        "from strategy.base.compiled import compiled\n"
        "class Named(NamedTuple):\n    number: int\n"
        "@compiled\ndef one_more(it):\n    return it.number + 1\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    older = importlib.import_module("older")
    assert older.one_more(older.Named(1)) == 2
    named = older.Named
    del older.Named
    fresh = compiled(older.one_more.__wrapped__)
    older.Renamed = named
    named.__name__ = named.__qualname__ = "Renamed"
    assert fresh(older.Renamed(2)) == 3
