"""Garbage is looked for seldom inside, and as usual afterwards."""

from __future__ import annotations

import gc

import pytest

from experiments.command.gc_threshold import MANY, raised_gc_threshold


def interrupted() -> None:
    with raised_gc_threshold():
        assert gc.get_threshold()[0] == MANY
        raise KeyError


def test_the_usual_threshold_comes_back_whatever_happens() -> None:
    usual = gc.get_threshold()
    with pytest.raises(KeyError):
        interrupted()
    assert gc.get_threshold() == usual
