"""A seeded part of the checkpoints' campaigns: `python -m tests.campaigns checkpoint-kill|checkpoint-fuzz`."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from executor.checkpoint import TensorPart, latest, load, reading, writing
from strategy.sbp.tensor import Box
from tests.campaigns import checkpoint_fuzz, checkpoint_kill
from tests.support.long_parameters import long_but


def test_a_kill_at_any_call_or_time_leaves_whole_checkpoints() -> None:
    outcome = checkpoint_kill.run(12, seed=3)
    assert outcome.failures == []
    assert outcome.unmet() == []


def test_a_name_that_comes_before_the_content_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the campaign must not accept: a checkpoint's name on what is not yet one."""

    def named_early(draft: Path, rank: int, pieces: Sequence[TensorPart]) -> None:
        early = draft.with_suffix("")
        if rank == 0:
            early.mkdir()
        real(draft, rank, pieces)
        if rank == 0:
            early.rmdir()

    real = writing._write_part
    monkeypatch.setattr(writing, "_write_part", named_early)
    failures = checkpoint_kill.run(20, seed=3).failures
    assert any("unreadable" in failure for failure in failures), failures


def test_damaged_and_hostile_checkpoints_are_refused() -> None:
    outcome = checkpoint_fuzz.run(400, seed=7, memory=False)
    assert outcome.failures == []
    assert outcome.unmet() == []


def test_hashes_that_nobody_compares_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the campaign must not accept: a piece that was changed after it was written."""

    class Agreeable(str):
        __slots__ = ()

        def __ne__(self, other: object) -> bool:
            return False

    real = reading.read_piece

    def agreeing(*piece: object) -> tuple[object, str]:
        array, sha256 = real(*piece)  # type: ignore[arg-type]
        return array, Agreeable(sha256)

    monkeypatch.setattr(reading, "read_piece", agreeing)
    assert any("not what was saved" in failure for failure in checkpoint_fuzz.run(200, 7, memory=False).failures)


@pytest.mark.parametrize("pieces", long_but([1, 2], 1))
def test_reading_takes_less_than_twice_the_file(tmp_path: Path, pieces: int) -> None:
    assert list(checkpoint_fuzz.peaks_over(tmp_path, rows=1500, divisions=(pieces,))) == []


@pytest.mark.parametrize("box", [((0, 12), (0, 10)), ((4, 8), (0, 5)), ((3, 9), (1, 2))])
def test_what_is_loaded_is_the_callers_own(tmp_path: Path, box: Box) -> None:
    checkpoint_kill.save_step(tmp_path, 1, 12, 3)
    found = latest(tmp_path)
    assert found is not None
    assert load(found, "layer.0.weight", box).flags.writeable


def test_what_other_threads_call_is_not_counted() -> None:
    """Whatever earlier tests have left in this process: the kills of a save are drawn from its own calls."""
    over = threading.Event()

    def start_others() -> None:
        while not over.is_set():
            other = threading.Thread(target=lambda: sorted(range(1000), key=lambda number: -number))
            other.start()
            other.join()

    alone = checkpoint_kill.calls.__wrapped__(1)
    beside = threading.Thread(target=start_others)
    beside.start()
    try:
        assert checkpoint_kill.calls.__wrapped__(1) < 1.1 * alone
    finally:
        over.set()
        beside.join()
