"""Settings: how a model is trained, as the command line says it: `--training optimizer=lamb lr=0.01 decay=cosine`.

Keys are the fields of `Training`, but for what the search or another flag decides. Values are read by the type of their
field; `frozen` takes patterns with commas between.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, get_type_hints

from strategy.base.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from strategy.passes.training import Training

FLAG = "--training"
DECIDED_ELSEWHERE = ("global_batch", "num_micro_batches", "groups")
"""Neither by the command line: groups are for programs."""


def read_training(global_batch: int, settings: Sequence[str], *, bf16: bool = False) -> Training:
    """A training of so many samples per step; what the settings leave out is as `Training` has it.

    With `bf16`, that is what the model computes in where the settings do not say.

    Raises:
        InputError: no KEY=VALUE, an unknown or repeated key, a value of another type, or one that cannot train.
    """
    from strategy.passes.mixed_precision import Precision
    from strategy.passes.training import Training

    kinds = {name: kind for name, kind in get_type_hints(Training).items() if name not in DECIDED_ELSEWHERE}
    known = [field.name for field in dataclasses.fields(Training) if field.name in kinds]
    given: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals:
            raise InputError("not a setting", where=FLAG, got=setting, expected="KEY=VALUE")
        if key not in known:
            raise InputError("unknown key", where=FLAG, got=key, hint=did_you_mean(key, known))
        if key in given:
            raise InputError("a key is given twice", where=FLAG, got=key)
        given[key] = _value(kinds[key], text, f"{FLAG} {key}")
    usual = {"precision": Precision.BF16} if bf16 else {}
    return Training(global_batch, **(usual | given))


def _value(kind: Any, text: str, where: str) -> Any:
    if kind is bool:
        words = {"true": True, "false": False}
        if text not in words:
            raise InputError("a wrong value", where=where, got=text, expected="true or false")
        return words[text]
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if text not in list(kind):
            raise InputError("unknown word", where=where, got=text, hint=did_you_mean(text, map(str, kind)))
        return kind(text)
    if kind not in (int, float):
        return tuple(pattern for pattern in text.split(",") if pattern)
    try:
        return kind(text)
    except ValueError:
        raise InputError("a wrong value", where=where, got=text, expected="a number") from None
