"""Forged plans: mutated documents under the hashes of their own content, as `verify` and `simulate` take them.

No checksum refuses them. Both commands must refuse a forgery as bad input, with a message, or both accept it; what
they accept is written as a plan again and must be accepted again. Nothing may end as a bug.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import random
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from experiments.cli import dispatch, guarded
from strategy.layout.schedule import Schedule
from strategy.passes.training import Training
from strategy.plan.plan import plan_text, read_plan
from tests.campaigns.outcome import Outcome
from tests.strategy.plan.test_plan import JUNK, put, stamped
from tests.support.small_plans import config_of, plan_by_rules, random_plan, request

Document = dict[str, Any]
Place = tuple[str | int, ...]
Mutate = Callable[[Document, Place, random.Random], None]

BASES = ("tensor", "pipeline", "random", "interleaved")
VERBS = ("verify", "simulate")


def junk(document: Document, place: Place, rng: random.Random) -> None:
    """A value of any type."""
    put(document, place, copy.deepcopy(rng.choice(JUNK)))


def other_figure(document: Document, place: Place, rng: random.Random) -> None:
    """A near number, or one at the end of what there is."""
    value = _at(document, place)
    near = (value + 1, value - 1, value * 2, -value, value / 2 if isinstance(value, float) else value // 2)
    put(document, place, rng.choice((*near, 0, 1, 2**31, 2**62, 2**63 - 1)))


def other_word(document: Document, place: Place, rng: random.Random) -> None:
    """A word that the document has elsewhere."""
    put(document, place, rng.choice(_words()))


def dropped(document: Document, place: Place, rng: random.Random) -> None:
    """Without the entry."""
    del _at(document, place[:-1])[place[-1]]


def copied(document: Document, place: Place, rng: random.Random) -> None:
    """What stands at a sibling's place, too; in a list, an entry more."""
    parent, value = _at(document, place[:-1]), copy.deepcopy(_at(document, place))
    if isinstance(parent, list):
        parent.insert(rng.randrange(len(parent) + 1), value)
    else:
        parent[rng.choice(list(parent))] = value


def renamed(document: Document, place: Place, rng: random.Random) -> None:
    """An entry of an object under another key; a list in another order."""
    parent = _at(document, place[:-1])
    if isinstance(parent, list):
        rng.shuffle(parent)
    else:
        parent[f"{place[-1]}x"] = parent.pop(place[-1])


MUTATIONS: dict[str, Mutate] = {
    mutate.__name__.replace("_", " "): mutate for mutate in (junk, other_figure, other_word, dropped, copied, renamed)
}
QUOTAS = {**dict.fromkeys(MUTATIONS, 0.1), **dict.fromkeys(BASES, 0.15), "refused": 0.8, "accepted": 0.01}


@cache
def base(kind: str) -> Document:
    """The document of a small plan."""
    training = Training(global_batch=4, num_micro_batches=2)
    if kind == "random":
        plan = random_plan(request(4, training), config_of(training, dp=2, tp=2), random.Random(3))
    else:
        schedule = Schedule.INTERLEAVED if kind == "interleaved" else Schedule.ONE_F_ONE_B
        pp = 1 if kind == "tensor" else 2
        config = config_of(training, tp=2, pp=pp, schedule=schedule)
        plan = plan_by_rules(request(2 * pp, training), config, ("data", "tensor"))
    found: Document = json.loads(plan_text(plan))
    return found


def run(cases: int, seed: int) -> Outcome:
    """Forge `cases` plans."""
    outcome = Outcome(QUOTAS)
    for number in range(seed, seed + cases):
        kind, name, document = forged(number)
        problems, verdict = judge(document)
        outcome.add(f"forgery {number} ({name} in {kind})", problems, (kind, name, verdict))
    return outcome


def forged(seed: int) -> tuple[str, str, Document]:
    """(base, mutation, document): something else in one place."""
    rng = random.Random(seed)
    kind, name = rng.choice(BASES), rng.choice(list(MUTATIONS))
    while True:
        document = copy.deepcopy(base(kind))
        place = _place(document, name, rng)
        if place is not None:
            MUTATIONS[name](document, place, rng)
            if document != base(kind):
                return kind, name, document


def judge(document: Document) -> tuple[list[str], str]:
    """What is wrong with how the commands take a document, and how they take it."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        path = Path("plan.json")
        path.write_text(stamped(document))
        codes, problems = [], list[str]()
        for verb in VERBS:
            code, said = _said(verb, path)
            codes.append(code)
            if code not in (0, 2) or not said.strip():
                problems.append(f"{verb} ends with {code}: {said}")
        if len(set(codes)) > 1:
            problems.append(f"{' and '.join(VERBS)} end with {codes}")
        if codes == [0, 0]:
            path.write_text(plan_text(read_plan(path)))
            problems += [f"written again: {said}" for code, said in (_said("verify", path),) if code]
    return problems, "refused" if codes[0] else "accepted"


def _said(verb: str, path: Path) -> tuple[int, str]:
    """The exit code of a command in this process, and what it says."""
    words, said = [verb, os.fspath(path)], io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
        code = guarded(lambda: dispatch(words), words)
    return code, said.getvalue()


def _place(document: Document, name: str, rng: random.Random) -> Place | None:
    """A random place that a mutation can be made in; every key of the document is as likely as another."""
    place: Place = (rng.choice([key for key in document if not key.endswith("_hash")]),)
    while isinstance(value := _at(document, place), dict | list) and value:
        if name not in ("other figure", "other word") and rng.random() < 0.2:
            return place
        place = (*place, rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value)))
    kind = {"other figure": (int, float), "other word": (str,)}.get(name)
    return place if kind is None or (isinstance(value, kind) and not isinstance(value, bool)) else None


def _at(document: Any, place: Place) -> Any:
    for key in place:
        document = document[key]
    return document


@cache
def _words() -> list[str]:
    """Every word of the bases, once."""
    return sorted({word for kind in BASES for word in _texts(base(kind))})


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
