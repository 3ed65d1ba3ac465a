"""Trainer keys: of a published configuration one key is changed; unless the reading lists it, something else follows.

A key is listed if it is unused, for a reviewed reason, or changes what no figure follows (`unpriced`). Changing any
other key must change the model, the training or the degrees that are read, or be refused. Cases beyond the number of
keys begin again.
"""

from __future__ import annotations

import random

from strategy.base.errors import InputError
from strategy.trainers.read import ReadConfiguration
from tests.campaigns.outcome import Outcome
from tests.support.trainer_configs import Document, ShippedConfiguration, all_keys, another, changed, names_of

QUOTAS = {"read": 0.2, "unused": 0.2, "unpriced": 0.03}


def run(cases: int, seed: int) -> Outcome:
    """Change `cases` keys."""
    outcome = Outcome(QUOTAS)
    keys = all_keys(random.Random(seed))
    readings: dict[str, tuple[list[Document], ReadConfiguration]] = {}
    for number in range(cases):
        one, place, path = keys[number % len(keys)]
        if one.name not in readings:
            readings[one.name] = (documents := one.documents()), one.read(documents)
        kind, problem = _changed(one, place, path, *readings[one.name])
        outcome.add(f"{one.name}: {'.'.join(path)}", [problem] if problem else [], [kind])
    return outcome


def _changed(
    one: ShippedConfiguration,
    place: int,
    path: tuple[str, ...],
    documents: list[Document],
    before: ReadConfiguration,
) -> tuple[str, str]:
    """What a key is, and what is wrong with that."""
    value = documents[place]
    for key in path:
        value = value[key]
    listed = names_of(path)
    for kind, found in (("unused", before.unused), ("unpriced", before.unpriced)):
        if names := listed & set(found):
            return kind, "" if all(found[name] for name in names) else "no reason is given"
    if listed & set(before.not_understood):
        return "not understood", "nobody has reviewed it"
    others = [*documents]
    others[place] = changed(documents[place], path, another(path[-1], value))
    try:
        after = one.read(others)
    except InputError:
        return "read", ""
    same = after.trained == before.trained
    return "read", f"{value!r} may be {another(path[-1], value)!r}, and nothing changes" if same else ""
