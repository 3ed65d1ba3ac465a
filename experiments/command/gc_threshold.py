"""The threshold of the garbage collector, raised where much is made and nearly all of it is kept."""

from __future__ import annotations

import gc

MANY = 5_000_000
"""Objects more than before that are looked through for garbage: a large plan is made of millions that are none."""


def raise_gc_threshold() -> None:
    """Look for garbage seldom from now on, in a process that runs one command: not even as that ends."""
    gc.set_threshold(MANY, *gc.get_threshold()[1:])
