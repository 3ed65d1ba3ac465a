"""Interpolations of YAML, as OmegaConf has them: `${a.b}` is another key's value, `${.b}` that of a sibling.

`${multiply:4, ${.b}}` is NeMo's product, `${oc.env:NAME,default}` the default: no environment is looked at. What has no
value here stands as it is, for whoever reads the key to tell.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

DEEPEST = 16
"""Interpolations within what interpolations stand for; more, as in a ring, are left."""
MOST_CHARACTERS = 10_000
_INNERMOST = re.compile(r"\$\{([^${}]*)\}")


def interpolated(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the values that its interpolations stand for."""
    return {key: _interpolated(value, document, (key,)) for key, value in document.items()}


def _interpolated(value: Any, root: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    if isinstance(value, Mapping):
        return {key: _interpolated(inner, root, (*path, str(key))) for key, inner in value.items()}
    return _resolved(value, root, path, DEEPEST) if isinstance(value, str) else value


def _resolved(text: Any, root: Mapping[str, Any], path: tuple[str, ...], depth: int) -> Any:
    """The value of a text; from the inside out, since interpolations stand within others."""
    while isinstance(text, str) and depth and len(text) <= MOST_CHARACTERS and (one := _INNERMOST.search(text)):
        value, where = _value(one[1].strip(), root, path)
        value = _resolved(value, root, where, depth - 1)
        if value is None or isinstance(value, Mapping | list):
            return text
        text, depth = value if one[0] == text else text[: one.start()] + str(value) + text[one.end() :], depth - 1
    return text


def _value(inside: str, root: Mapping[str, Any], path: tuple[str, ...]) -> tuple[Any, tuple[str, ...]]:
    """What stands between the braces, and where that is said; None where it has no value."""
    resolver, colon, arguments = inside.partition(":")
    if colon:
        parts = [part.strip() for part in arguments.split(",")]
        if resolver == "multiply" and all(re.fullmatch(r"-?\d{1,18}", part) for part in parts):
            return math.prod(map(int, parts)), path
        return (parts[1] if resolver == "oc.env" and len(parts) == 2 else None), path
    names = inside.lstrip(".")
    ups = len(inside) - len(names)
    where = (*path[: len(path) - ups], *names.split(".")) if ups else tuple(names.split("."))
    found: Any = root
    for name in where:
        found = found.get(name) if isinstance(found, Mapping) else None
    return found, where
