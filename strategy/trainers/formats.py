r"""Formats: the text of a trainer's file as flat keys, `a.b.c` for what is nested. Lists are values.

JSON and TOML are read by Python's library, YAML by PyYAML, which is an extra, and its
interpolations by `interpolation`. Arguments are a shell's, one or many a
line, or those of a script (`shell`); an argument without a value is true.
"""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from strategy.base.errors import EnvironmentLacks, InputError
from strategy.base.files import parse_json
from strategy.trainers.interpolation import interpolated
from strategy.trainers.shell import read_script

MOST_FILE_BYTES = 2**20
_SET = ("MODULE", "CONFIG")
_NUMBER = re.compile(r"-?(\d[\d_]*)?\.?\d+(e-?\d+)?", re.IGNORECASE)


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        InputError: it is missing, too large or no text.
    """
    try:
        if path.stat().st_size > MOST_FILE_BYTES:
            raise InputError(
                "too large for a trainer's configuration", where=str(path), expected=f"{MOST_FILE_BYTES} bytes"
            )
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError("no such file", where=str(path)) from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    except UnicodeDecodeError as error:
        raise InputError("not UTF-8 text", where=f"{path}: byte {error.start}") from None


def document_of(text: str, where: str) -> dict[str, Any]:
    """The keys of a file, nested as they stand there; the ending of its name says which format it has.

    Raises:
        InputError: it is not of that format, or no table of keys.
        EnvironmentLacks: it is YAML, and PyYAML is not installed.
    """
    suffix = Path(where).suffix
    if suffix == ".toml":
        try:
            return tomllib.loads(text)
        except (ValueError, RecursionError) as error:
            raise InputError("cannot be read as TOML", where=where, got=str(error)) from None
    if suffix == ".json":
        found = parse_json(text, where)
    elif suffix in (".yaml", ".yml"):
        found = _yaml(text, where)
    else:
        return arguments_of(text, where)
    if not isinstance(found, dict):
        raise InputError("not a trainer's configuration", where=where, got=type(found).__name__, expected="keys")
    return interpolated(found) if suffix in (".yaml", ".yml") else found


def _yaml(text: str, where: str) -> object:
    try:
        import yaml
    except ImportError:
        raise EnvironmentLacks(f"{where} is YAML, which PyYAML reads: pip install 'sbplan[trainers]'") from None
    try:
        return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise InputError("cannot be read as YAML", where=where, got=str(error)) from None


def arguments_of(text: str, where: str) -> dict[str, Any]:
    """Arguments of a command line, or of the command of a script; words before the first of them are the command.

    Of an argument that stands twice the last counts, as it does for argparse. `shell.NAME` is a variable of a script
    that was not followed; of what is set for the command alone MODULE and CONFIG are torchtitan's arguments.
    """
    try:
        script = read_script(text)
    except ValueError as error:
        raise InputError("cannot be read as arguments", where=where, got=str(error)) from None
    found: dict[str, Any] = {name.lower(): script.environment[name] for name in _SET if name in script.environment}
    key = ""
    for word in script.words:
        if word.startswith("--") and len(word) > 2:
            key, equals, value = word[2:].partition("=")
            key = key.replace("_", "-")
            found[key] = value if equals else True
        elif word == "-m" or word.endswith(".py"):
            key = ""  # the program, behind the arguments of what launches it
        elif key:
            found[key] = word if found[key] is True else f"{found[key]} {word}"
    if not found:
        raise InputError("no arguments", where=where, expected="words such as --num-layers 32")
    followed = {key: _typed(value) for key, value in found.items()}
    return followed | {f"shell.{name}": "not followed" for name in script.open}


def flattened(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a": {"b": 1}}` -> `{"a.b": 1}`; a table without keys is a value."""
    return dict(_flattened(document, prefix))


def _flattened(document: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in document.items():
        if isinstance(value, Mapping) and value:
            yield from _flattened(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _typed(value: Any) -> Any:
    """A word of a command line as a number, where it is one."""
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        plain = value.replace("_", "")
        return int(plain) if plain.lstrip("-").isdecimal() else float(plain)
    return value


def as_json(document: Mapping[str, Any]) -> str:
    """A JSON file of a document."""
    return json.dumps(document, indent=2) + "\n"


def as_toml(document: Mapping[str, Any]) -> str:
    """A TOML file of tables, one or two deep, of numbers, texts, truth values and lists of them."""
    lines: list[str] = []
    for name, table in document.items():
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in table.items()), ""]
    return "\n".join(lines)


def as_arguments(arguments: Mapping[str, Any]) -> str:
    """A file of arguments, one a line; those that are true have no value, those that are false are left out."""
    lines = [
        f"--{key}" if value is True else f"--{key} {shlex.quote(str(value))}"
        for key, value in arguments.items()
        if value is not False
    ]
    return "\n".join(lines) + "\n"
