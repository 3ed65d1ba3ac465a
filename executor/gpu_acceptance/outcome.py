"""Outcomes of acceptance: what each part showed, in one file that grows part by part."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from strategy.base.errors import InputError
from strategy.base.files import write_atomic

Figures = Mapping[str, Any]
"""What a part measured: numbers, texts, lists and tables of them."""
_FORMAT, _VERSION = "sbplan-gpu-acceptance", 1


class PartStatus(StrEnum):
    """How a part ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LEFT_OUT = "left out"


class PartFailed(Exception):
    """A part has shown that something is not as it must be; with what it measured so far."""

    def __init__(self, problem: str, figures: Figures | None = None) -> None:
        super().__init__(problem)
        self.figures = figures or {}


class LeftOut(Exception):
    """A part cannot be shown here, and why."""


@dataclass(frozen=True, slots=True)
class PartOutcome:
    """Of one part: its status, seconds, a problem or reason, and what it measured, as JSON text."""

    status: PartStatus
    seconds: float
    problem: str
    figures: str

    @property
    def succeeded(self) -> bool:
        """Whether all is as it must be."""
        return self.status is PartStatus.SUCCEEDED


def write_outcomes(path: Path, outcomes: Mapping[str, PartOutcome]) -> None:
    """Replaces the file."""
    parts = {name: {**asdict(one), "figures": json.loads(one.figures)} for name, one in outcomes.items()}
    document = {"format": _FORMAT, "version": _VERSION, "parts": parts}
    write_atomic(path, json.dumps(document, indent=1) + "\n")


def read_outcomes(path: Path) -> dict[str, PartOutcome]:
    """What is known so far; nothing where there is no file.

    Raises:
        InputError: the file is of something else.
    """
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_text())
        if (document["format"], document["version"]) != (_FORMAT, _VERSION):
            raise InputError("another file", where=str(path), got=document["format"], expected=_FORMAT)
        return {
            name: PartOutcome(PartStatus(one["status"]), one["seconds"], one["problem"], json.dumps(one["figures"]))
            for name, one in document["parts"].items()
        }
    except (ValueError, KeyError, TypeError) as error:
        hint = "name a file that is not there, or one that this command wrote"
        raise InputError("not outcomes of acceptance", where=f"--json {path}", got=str(error), hint=hint) from error
