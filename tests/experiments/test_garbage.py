"""Garbage is looked for seldom inside, and as usual afterwards."""

from __future__ import annotations

import gc

import pytest

from experiments.garbage import MANY, little_garbage


def interrupted() -> None:
    with little_garbage():
        assert gc.get_threshold()[0] == MANY
        raise KeyError


def test_the_usual_threshold_comes_back_whatever_happens() -> None:
    usual = gc.get_threshold()
    with pytest.raises(KeyError):
        interrupted()
    assert gc.get_threshold() == usual
