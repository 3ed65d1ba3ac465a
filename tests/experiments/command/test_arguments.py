"""What the types of arguments take, and how they refuse the rest."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from experiments.command.arguments import fit_probability, gpu_range, positive_int, seconds, share, tokens

ACCEPTED = (
    (positive_int, "64", 64),
    (seconds, "0.5", 0.5),
    (share, "0", 0.0),
    (fit_probability, "0.95", 0.95),
    (tokens, "15T", 15 * 10**12),
    (tokens, "1e12", 10**12),
    (tokens, "300b", 300 * 10**9),
    (gpu_range, "64", (64, 64)),
    (gpu_range, "64..1024", (64, 1024)),
)
REFUSED = (
    (positive_int, ("0", "-1", "1.5", str(2**31), "9" * 5000)),
    (seconds, ("0", "-1", "inf", "nan", "a minute")),
    (share, ("-0.1", "1", "nan", "half")),
    (fit_probability, ("0", "1", "nan", "sure")),
    (tokens, ("0", "T", "0.1", "2e18", "nanT", "")),
    (gpu_range, ("8..4", "..", "4..", "0")),
)


@pytest.mark.parametrize(("read", "text", "value"), ACCEPTED)
def test_reads(read: Callable[[str], object], text: str, value: object) -> None:
    assert read(text) == value


@pytest.mark.parametrize(("read", "text"), [(read, text) for read, texts in REFUSED for text in texts])
def test_refuses_and_says_what_was_expected(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=r"^got .*, expected "):
        read(text)


@pytest.mark.parametrize("read", [read for read, _ in REFUSED])
def test_what_is_refused_is_shown_shortened(read: Callable[[str], object]) -> None:
    with pytest.raises(argparse.ArgumentTypeError) as refusal:
        read("x" * 100_000)
    assert len(str(refusal.value)) < 5_000
