"""Pins: the TOML file that fixes any part of a plan; what it leaves out is searched.

[config]                      # keys of `config` in a plan
tp = 2
schedule = "1f1b"

[sbp]                         # value name or pattern -> one SBP per mesh axis: data, tensor
"*.mlp.fc1.weight" = ["B", "S(1)"]

[stage]                       # op name or pattern -> pipeline stage, its backward and update ops included
"layers.0.*" = 0
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.console import not_there_yet
from strategy.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from strategy.candidates import Pins
    from strategy.sbp import NdSbp
    from strategy.schedule import Schedule

SECTIONS = ("config", "sbp", "stage")
COUNTS = ("dp", "tp", "pp", "micro_batch", "num_micro_batches")
SINGLE_VALUED: Mapping[str, object] = {"cp": 1, "ep": 1, "virtual_stages": 1, "recompute": "none", "zero_stage": 0}
"""Keys of `config` that have one value in this version."""


def read_pins(path: Path) -> Pins:
    """The pins of a file.

    Raises:
        InputError: the file is missing, is no TOML, or has a wrong key or value.
        EnvironmentLacks: it asks for what this version does not have.
    """
    from strategy.candidates import Pins

    document = _document(path)
    _known(document, SECTIONS, str(path))
    config, sbp, stage = (_table(document, section, f"{path}: [{section}]") for section in SECTIONS)
    where = f"{path}: [config]"
    _known(config, (*COUNTS, "schedule", *SINGLE_VALUED), where)
    for key, only in SINGLE_VALUED.items():
        found = config.get(key, only)
        if type(found) is not type(only):
            raise InputError("a wrong type", where=f"{where} {key}", got=found, expected=type(only).__name__)
        if found != only:
            raise not_there_yet(f"{where} {key} = {found!r} (only {only!r} is)")
    return Pins(
        **{key: _whole(config[key], f"{where} {key}", at_least=1) for key in COUNTS if key in config},
        schedule=_schedule(config["schedule"], f"{where} schedule") if "schedule" in config else None,
        layouts={pattern: _layout(value, f"{path}: [sbp] {pattern!r}") for pattern, value in sbp.items()},
        stages={p: _whole(value, f"{path}: [stage] {p!r}", at_least=0) for p, value in stage.items()},
    )


def _document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such pin file", where=str(path)) from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError("cannot be read as TOML", where=str(path), got=str(error)) from error


def _known(table: Mapping[str, Any], keys: tuple[str, ...], where: str) -> None:
    for key in table:
        if key not in keys:
            raise InputError("unknown key", where=where, got=key, hint=did_you_mean(key, keys))


def _table(document: Mapping[str, Any], section: str, where: str) -> dict[str, Any]:
    found = document.get(section, {})
    if not isinstance(found, dict):
        raise InputError("not a table", where=where, got=found, expected=f"[{section}] with keys")
    return found


def _whole(value: Any, where: str, *, at_least: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < at_least:
        raise InputError("not a count", where=where, got=value, expected=f"a whole number >= {at_least}")
    return value


def _schedule(value: Any, where: str) -> Schedule:
    from strategy.schedule import Schedule

    names = [str(schedule) for schedule in Schedule]
    if value not in names:
        raise InputError("unknown schedule", where=where, got=value, hint=did_you_mean(str(value), names))
    return Schedule(value)


def _layout(value: Any, where: str) -> NdSbp:
    from strategy.candidates import AXES
    from strategy.sbp import parse_nd

    if not isinstance(value, list) or len(value) != len(AXES):
        raise InputError("not a layout", where=where, got=value, expected=f"one SBP per mesh axis: {', '.join(AXES)}")
    return parse_nd(value, where=where)
