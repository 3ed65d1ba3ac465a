"""Machine code of loops is kept where it can be kept, and made where there is a compiler."""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path

import pytest
from numba.core import config

from strategy.base import machine_code
from strategy.base.compiled import compiled, in_place
from strategy.base.errors import EnvironmentLacks


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


def test_code_is_made_anew_where_a_loop_that_it_calls_has_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "changing"
    folder.mkdir()
    header = "from strategy.base.compiled import in_place\n"
    (folder / "calling.py").write_text(
        f"{header}from called import part\n@in_place\ndef whole(it):\n    return 10 * part(it)\n"
    )
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setattr("sys.dont_write_bytecode", True)
    for added in (1, 2):
        (folder / "called.py").write_text(f"{header}@in_place\ndef part(it):\n    return it + {added}\n")
        machine_code._digest.cache_clear()
        for name in ("called", "calling"):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        assert importlib.import_module("calling").whole(1) == 10 * (1 + added)
