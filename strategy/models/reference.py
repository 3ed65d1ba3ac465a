"""References: a model that a function of the user's returns, named `package.module:function`.

    # mine.py                                        sbplan search mine:model --cluster dgx-a100:1 --global-batch 64
    def model() -> Module: ...

The function takes nothing and returns a `Module` with a method `inputs(micro_batch)`, which says what `forward` reads.
This runs the user's code, once: what it returns is recorded, and plans hold the recording.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from strategy.base.errors import InputError, SbplanError, did_you_mean
from strategy.models.base import Preset
from strategy.models.imported.read import preset_of
from strategy.models.module_recording import record_module
from strategy.nn.module import Module

_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


def is_reference(text: str) -> bool:
    """Whether a text has the form `package.module:function`."""
    return _REFERENCE.fullmatch(text) is not None


def read_reference(text: str) -> Preset:
    """The model that a function returns.

    Raises:
        InputError: it cannot be imported, is no function, raises, or returns no module of ours.
    """
    module_name, name = text.split(":")
    with _here_importable():
        try:
            holder = importlib.import_module(module_name)
        except Exception as error:
            raise _failed("cannot be imported", text, error, "is it in this folder, or installed?") from error
        function = getattr(holder, name, None)
        if function is None:
            known = [key for key, one in vars(holder).items() if callable(one) and not key.startswith("_")]
            raise InputError(f"no such function: {name}", where=text, hint=did_you_mean(name, known))
        if not callable(function):
            raise InputError("not a function", where=text, got=type(function).__name__)
        try:
            found = function()
        except SbplanError:
            raise
        except Exception as error:
            raise _failed("raises", text, error, "the function is called without arguments") from error
        return preset_of(_recorded(found, text))


def _recorded(found: Any, text: str) -> Any:
    if not isinstance(found, Module):
        expected = "a Module of strategy.nn.module"
        raise InputError("returns no module", where=text, got=type(found).__name__, expected=expected)
    batch = getattr(found, "batch", None)
    try:
        return record_module(found, where=text, batch=batch if isinstance(batch, dict) else None)
    except SbplanError:
        raise
    except Exception as error:
        raise _failed("cannot be traced", text, error, "forward takes the tensors that inputs names") from error


def _failed(problem: str, text: str, error: Exception, hint: str) -> InputError:
    told = f"{type(error).__name__}: {error}"
    place = _place_of(error)
    return InputError(f"{problem}: {told}{place}", where=text, hint=hint)


def _place_of(error: Exception) -> str:
    """The user's line that raised, the last one in a traceback that is not of the import system."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith("<") and "importlib" not in Path(file).parts and Path(file) != Path(__file__):
            found = f", at {file}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found


@contextmanager
def _here_importable() -> Iterator[None]:
    """Let modules in the folder of the call be imported, behind all others."""
    here = str(Path.cwd())
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        yield
    finally:
        if added:
            sys.path.remove(here)
