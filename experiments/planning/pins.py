"""Pins: the TOML file that fixes any part of a plan; what it leaves out is searched.

[config]                      # keys of `config` in a plan
tp = 2
schedule = "1f1b"
recompute = "full"
zero_stage = 3
zero_group = 8                # so many neighbours share parameters and state out, other groups hold the same
recompute_values = ["*.mlp.gelu"]
kept_layers = "any"           # any share of the layers between the first and the last may keep what others recompute
offload = "activations"
offload_values = ["*.norm1.*"]
trainer = "megatron"          # only what its configurations can say
bucket_bytes = 1000000        # of gradients that are exchanged together; 0: each by itself
exchange_streams = 2          # over which these exchanges go round

[sbp]                         # value name or pattern -> one SBP per axis: (replica,) data, (expert,) (context,) tensor
"*.mlp.fc1.weight" = ["B", "S(1)"]

[stage]                       # op name or pattern -> pipeline stage, its backward and update ops included;
                              # where virtual_stages is above 1, the virtual stage: 0 to pp * virtual_stages - 1
"layers.0.*" = 0

[placement]                   # the same by the devices of the stage
"layers.1.*" = [2, 3]

Everything that is wrong with a file is reported at once.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from experiments.command.arguments import LARGEST_COUNT
from strategy.base.errors import InputError, did_you_mean, report

if TYPE_CHECKING:
    from strategy.sbp.sbp import NdSbp
    from strategy.space.request import Pins

T = TypeVar("T")
SECTIONS = ("config", "sbp", "stage", "placement")
COUNTS = (
    *("dp", "tp", "cp", "ep", "pp", "micro_batch", "num_micro_batches", "virtual_stages", "tiles"),
    *("zero_group", "zero_min_size"),
    "exchange_streams",
)
WORDS = ("schedule", "recompute", "kept_layers", "offload", "context", "trainer")
PATTERNS = ("recompute_values", "offload_values", "tiled")
ORDER = "order"
LARGEST_ZERO_STAGE = 3


def read_pins(path: Path) -> Pins:
    """The pins of a file.

    Raises:
        InputError: the file is missing, is no TOML, or has a wrong key or value.
    """
    return pins_of(_document(path), str(path))


def pins_of(document: Mapping[str, Any], source: str) -> Pins:
    """The pins of a document of these sections; `source` is what errors say that it is of.

    Raises:
        InputError: a wrong key or value.
    """
    from strategy.layout.config import mesh_axes
    from strategy.space.pins import placement_problems
    from strategy.space.request import Pins

    problems: list[InputError] = []

    def read(section: str, entry: Callable[[str, Any], T]) -> dict[str, T]:
        """The entries of a section that can be read; notes what is wrong with the others."""
        found: dict[str, T] = {}
        for key, value in _table(document.get(section, {}), section, source, problems).items():
            try:
                found[key] = entry(key, value)
            except InputError as error:
                problems.append(error)
        return found

    problems += _unknown(document, SECTIONS, source)
    config = read("config", lambda key, value: _setting(key, value, f"{source}: [config]"))
    groups = config.get("zero_group", config.get("dp")) != config.get("dp")
    axes = mesh_axes(config.get("cp", 1), config.get("ep", 1), groups=groups)
    layouts = read("sbp", lambda pattern, value: _layout(value, axes, f"{source}: [sbp] {pattern!r}"))
    stages = read("stage", lambda pattern, value: _whole(value, f"{source}: [stage] {pattern!r}", at_least=0))
    placements = read("placement", lambda pattern, value: _devices(value, f"{source}: [placement] {pattern!r}"))
    problems += placement_problems(placements)
    report(problems, where=source)
    return Pins(**config, layouts=layouts, stages=stages, placements=placements)


def pins_of_settings(words: Sequence[str]) -> Pins:
    """The pins of settings as they are typed: `tp=8`, `schedule=zbv`; keys and values are those of [config].

    Raises:
        InputError: with every setting that is none.
    """
    from strategy.space.request import Pins

    problems: list[InputError] = []
    found: dict[str, Any] = {}
    for word in words:
        key, equals, text = word.partition("=")
        if not (key and equals and text):
            problems.append(InputError("not a setting", got=word, expected="KEY=VALUE, such as tp=8"))
        elif key in found:
            problems.append(InputError("given more than once", where=key))
        else:
            try:
                found[key] = _setting(key, _typed(text), "pins:")
            except InputError as error:
                problems.append(error)
    report(problems, where="pins")
    return Pins(**found)


def _typed(text: str) -> Any:
    """A value as TOML has it; a word needs no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _document(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError("no such pin file", where=str(path)) from None
    except (OSError, ValueError, RecursionError) as error:
        raise InputError("cannot be read as TOML", where=str(path), got=str(error)) from error


def _unknown(table: Mapping[str, Any], keys: tuple[str, ...], where: str) -> Iterator[InputError]:
    for key in table:
        if key not in keys:
            yield InputError("unknown key", where=where, got=key, hint=did_you_mean(key, keys))


def _table(found: object, section: str, source: str, problems: list[InputError]) -> dict[str, Any]:
    if isinstance(found, dict):
        return found
    where = f"{source}: [{section}]"
    problems.append(InputError("not a table", where=where, got=found, expected=f"[{section}] with keys"))
    return {}


def _setting(key: str, value: Any, where: str) -> Any:
    """A key of [config]."""
    known = (*COUNTS, "bucket_bytes", "zero_stage", "zero_owner", *WORDS, *PATTERNS, ORDER)
    for problem in _unknown({key: value}, known, where):
        raise problem
    if key in COUNTS:
        return _whole(value, f"{where} {key}", at_least=1)
    if key == "bucket_bytes":
        return _whole(value, f"{where} {key}", at_least=0)
    if key == "zero_stage":
        return _whole(value, f"{where} {key}", at_least=0, at_most=LARGEST_ZERO_STAGE)
    if key == "zero_owner":
        if not isinstance(value, bool):
            raise InputError("a wrong type", where=f"{where} {key}", got=value, expected="true or false")
        return value
    if key in WORDS:
        return _word(key, value, f"{where} {key}")
    if key == ORDER:
        return _order(value, f"{where} {key}")
    return _patterns(value, f"{where} {key}")


def _devices(value: Any, where: str) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise InputError("not a list of devices", where=where, got=value, expected="ranks, as [2, 3]")
    return tuple(_whole(device, where, at_least=0) for device in value)


def _whole(value: Any, where: str, *, at_least: int, at_most: int = LARGEST_COUNT) -> int:
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not whole or not at_least <= value <= at_most:
        expected = f"a whole number >= {at_least} and <= {at_most}"
        raise InputError("not a count", where=where, got=value, expected=expected)
    found: int = value
    return found


def _word(key: str, value: Any, where: str) -> StrEnum:
    """One of few words."""
    from strategy.layout.config import Context, KeptLayers, Offload, Recompute
    from strategy.layout.schedule import Schedule
    from strategy.space.trainer_space import TargetTrainer

    kinds: Mapping[str, type[StrEnum]] = {
        "schedule": Schedule,
        "recompute": Recompute,
        "kept_layers": KeptLayers,
        "offload": Offload,
        "context": Context,
        "trainer": TargetTrainer,
    }
    names = [str(word) for word in kinds[key]]
    if value not in names:
        raise InputError(f"unknown {key}", where=where, got=value, hint=did_you_mean(str(value), names))
    return kinds[key](value)


def _order(value: Any, where: str) -> tuple[str, ...]:
    """Names of axes, outermost first."""
    from strategy.space.axis_orders import NAMES

    if not isinstance(value, list) or not set(map(str, value)) <= {*NAMES} or len(set(map(str, value))) < len(value):
        expected = f"each of {', '.join(NAMES)} at most once, outermost first"
        raise InputError("no order of the axes", where=where, got=value, expected=expected)
    return tuple(value)


def _patterns(value: Any, where: str) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise InputError("not a list of patterns", where=where, got=value, expected='names, as ["*.mlp.gelu"]')
    return tuple(value)


def _layout(value: Any, axes: tuple[str, ...], where: str) -> NdSbp:
    from strategy.sbp.sbp import parse_nd

    if not isinstance(value, list) or len(value) != len(axes):
        raise InputError("not a layout", where=where, got=value, expected=f"one SBP per mesh axis: {', '.join(axes)}")
    return parse_nd(value, where=where)
