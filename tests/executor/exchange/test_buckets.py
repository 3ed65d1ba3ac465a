"""Small tensors are fused up to a size, large ones cut; what is not alike is kept apart."""

from __future__ import annotations

import numpy as np

from executor.exchange.buckets import FusedBucket, Fuser, ListedTensor
from executor.exchange.tensors import CollectiveKind, TensorKey


def listed(name: str, count: int, dtype: str = "float32", *, mean: bool = False) -> ListedTensor:
    return ListedTensor(TensorKey(name, CollectiveKind.ALL_REDUCE, dtype, (count,), mean=mean), None, None)


def ranges(bucket: FusedBucket) -> list[tuple[str, int, int]]:
    return [(one.listed.key.name, one.begin, one.end) for one in bucket.fragments]


def test_small_ones_are_fused() -> None:
    fuser = Fuser(100, 1000)
    full = [bucket for name in "abcdef" for bucket in fuser.add(listed(name, 10), 3)]
    assert [ranges(bucket) for bucket in full] == [[("a", 0, 10), ("b", 0, 10)], [("c", 0, 10), ("d", 0, 10)]]
    assert [ranges(bucket) for bucket in fuser.flush()] == [[("e", 0, 10), ("f", 0, 10)]]
    assert list(fuser.flush()) == []


def test_large_ones_are_cut_and_know_their_parts() -> None:
    fuser = Fuser(64, 48)
    one = listed("a", 30)
    full = list(fuser.add(one, 3))
    assert one.fragments_left == 3
    assert [ranges(bucket) for bucket in full] == [[("a", 0, 12)], [("a", 12, 24)]]
    assert [ranges(bucket) for bucket in fuser.flush()] == [[("a", 24, 30)]]


def test_what_is_combined_otherwise_goes_otherwise() -> None:
    fuser = Fuser(1000, 1000)
    for one, contributors in (
        (listed("a", 3), 3),
        (listed("b", 3, "float64"), 3),
        (listed("c", 3, mean=True), 3),
        (listed("d", 3), 1),
        (listed("e", 3), 3),
    ):
        assert list(fuser.add(one, contributors)) == []
    found = list(fuser.flush())
    assert [[name for name, _, _ in ranges(bucket)] for bucket in found] == [["a", "e"], ["b"], ["c"], ["d"]]
    assert [bucket.contributors for bucket in found] == [3, 3, 3, 1]


def test_random_tensors_are_sent_once_and_whole() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        fusion, fragment = int(rng.integers(64, 500)), int(rng.integers(64, 500))
        fuser = Fuser(fusion, fragment)
        tensors = [listed(str(number), int(rng.integers(0, 300))) for number in range(rng.integers(1, 20))]
        buckets = [bucket for one in tensors for bucket in fuser.add(one, 1)] + list(fuser.flush())
        for one in tensors:
            parts = [f for bucket in buckets for f in bucket.fragments if f.listed is one]
            assert len(parts) == one.fragments_left
            assert [part.begin for part in parts] == [0, *(part.end for part in parts[:-1])]
            assert parts[-1].end == one.key.count
        assert all(bucket.count * 4 <= max(fusion, fragment) for bucket in buckets)
