"""The threshold of the garbage collector, raised where much is made and nearly all of it is kept."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

MANY = 5_000_000
"""Objects more than before that are looked through for garbage: a large plan is made of millions that are none."""


@contextmanager
def raised_gc_threshold() -> Iterator[None]:
    """Look for garbage seldom in a `with` block."""
    usual = gc.get_threshold()
    gc.set_threshold(MANY, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)
