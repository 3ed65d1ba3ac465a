"""A folder for machine code is one where the user alone can write."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from strategy.base import private_folder
from strategy.base.private_folder import cache_folder, is_private


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A home and a temporary folder of the test's own; nothing remembered of other folders."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(private_folder.tempfile, "gettempdir", lambda: str(tmp_path / "temporary"))
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


def test_a_folder_that_the_user_names_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "named"))
    found = cache_folder(tmp_path / "source")
    assert found is not None
    assert found.parent == tmp_path / "named"


def test_a_user_without_a_home_has_a_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", homeless)
    refuse(monkeypatch, tmp_path / "source")
    found = cache_folder(tmp_path / "source")
    assert found is not None
    assert found.is_relative_to(tmp_path / "temporary")
