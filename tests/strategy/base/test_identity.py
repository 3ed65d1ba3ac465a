"""Identity: one object is one key, also where its class compares by value and has no hash."""

from __future__ import annotations

import gc

from strategy.base.identity import Identity


def test_equal_objects_are_two_keys() -> None:
    one, other = [1], [1]
    known = {Identity(one): "one", Identity(other): "other"}
    assert (known[Identity(one)], known[Identity(other)]) == ("one", "other")
    assert Identity([1]) not in known
    assert Identity(one) != one


def test_a_key_keeps_its_object_so_that_no_other_is_taken_for_it() -> None:
    known = {Identity([number]) for number in range(100)}
    gc.collect()
    assert len(known) == 100
    assert Identity([0]) not in known
