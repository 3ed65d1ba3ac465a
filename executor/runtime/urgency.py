"""Urgency: which of several streams that could go on goes on first, for others may wait for what it does."""

from __future__ import annotations

from collections.abc import Sequence

from strategy.program.program import Program


def by_urgency(program: Program, streams: Sequence[int]) -> list[int]:
    """Streams of communication alone, then static, then dynamic ones."""

    def urgency(stream: int) -> tuple[bool, bool, int]:
        return not communicates(program, stream), program.streams[stream].dynamic, stream

    return sorted(streams, key=urgency)


def communicates(program: Program, stream: int) -> bool:
    """Whether a stream is of communication alone."""
    return all(program.actors[actor].kind.is_communication for actor in program.streams[stream].sequence)
