"""Agreement: ranks see that they are to compile and compute the same, before a collective would mix what differs.

Each rank has a digest of every fact; only where digests differ is the fact itself told, so that the message has it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from executor.frontend.world import World
from strategy.base.errors import RunError
from strategy.sbp.tensor import Box

_DIGEST = 16
_TOLD = 160
"""Bytes of a digest, and of a fact that differs, as it is told."""

Sharers = Sequence[tuple[int, ...]]
"""Ranks that read the same part of an input, for every part that several read."""


def agree_on(world: World, what: str, facts: Mapping[str, str]) -> None:
    """See that all ranks have the same facts of `what`.

    Raises:
        RunError: they do not; names each that differs, and which ranks have what.
    """
    if world.size == 1:
        return
    names = sorted(facts)
    digests = [_digest("\n".join(names).encode()), *(_digest(facts[name].encode()) for name in names)]
    if len(set(world.gather(digests[0]))) > 1:
        names, facts = ["what is given at all"], {"what is given at all": ", ".join(names)}
        digests = [b"", _digest(facts[names[0]].encode())]
    found = world.gather(b"".join(digests[1:]))
    lines = []
    for index, name in enumerate(names):
        if len({of_rank[index * _DIGEST :][:_DIGEST] for of_rank in found}) > 1:
            told = world.gather(facts[name].encode()[:_TOLD].ljust(_TOLD, b"\0"))
            lines.append(f"\n  {name}: " + "; ".join(f"{text} on rank {_ranks(told, text)}" for text in _texts(told)))
    if lines:
        raise RunError(f"the ranks do not {what} alike{''.join(lines)}")


def agree_on_parts(
    world: World, what: str, parts: Mapping[str, NDArray[np.generic] | None], of: Mapping[str, Sharers]
) -> None:
    """See that ranks that share a part of an array have the same.

    Args:
        world: of all ranks.
        what: the call, for the message.
        parts: name -> this rank's part; None of a rank that has none.
        of: name -> who shares parts; the same on all ranks.

    Raises:
        RunError: they do not; names array and ranks.
    """
    names = [name for name, sharers in sorted(of.items()) if sharers]
    if world.size == 1 or not names:
        return
    mine = [parts[name] for name in names]
    found = world.gather(b"".join(bytes(_DIGEST) if part is None else _digest_of(part) for part in mine))
    lines = []
    for index, name in enumerate(names):
        digests = [of_rank[index * _DIGEST :][:_DIGEST].hex() for of_rank in found]
        for ranks in of[name]:
            if len({digests[rank] for rank in ranks}) > 1:
                held = "; ".join(f"{digests[rank][:8]} on rank {rank}" for rank in ranks)
                lines.append(f"\n  {name}: the part that ranks {', '.join(map(str, ranks))} share is {held}")
    if lines:
        raise RunError(f"{what}: the ranks do not read the same{''.join(lines)}")


def sharers_of(boxes: Mapping[int, Box]) -> Sharers:
    """The ranks that have the same box, of those that share one."""
    by_box: dict[Box, list[int]] = {}
    for rank, box in sorted(boxes.items()):
        by_box.setdefault(box, []).append(rank)
    return [tuple(ranks) for ranks in by_box.values() if len(ranks) > 1]


def digest_of(value: object) -> str:
    """A digest of a value as it is written down."""
    return _digest(repr(value).encode()).hex()


def _digest(raw: bytes) -> bytes:
    return hashlib.blake2b(raw, digest_size=_DIGEST).digest()


def _digest_of(part: NDArray[np.generic]) -> bytes:
    return hashlib.blake2b(np.ascontiguousarray(part).reshape(-1).view(np.uint8).data, digest_size=_DIGEST).digest()


def _texts(told: Sequence[bytes]) -> list[str]:
    """Each of them once, in the order of ranks."""
    return list(dict.fromkeys(map(_text, told)))


def _text(record: bytes) -> str:
    return record.rstrip(b"\0").decode("utf-8", "replace")


def _ranks(told: Sequence[bytes], text: str) -> str:
    return ", ".join(str(rank) for rank, record in enumerate(told) if _text(record) == text)
