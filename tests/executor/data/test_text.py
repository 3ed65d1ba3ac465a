from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from executor.data.text import VOCABULARY, Corpus, TextLoader, read_corpus, sample_batch, standard_library
from strategy.base.errors import InputError
from strategy.program.program import LoadTask


@pytest.fixture(scope="module")
def library() -> Corpus:
    return standard_library()


def test_the_standard_library_is_real_text_with_a_fixed_split(library: Corpus) -> None:
    assert len(library.train) > 1_000_000
    assert 0.01 < len(library.validation) / (len(library.train) + len(library.validation)) < 0.12
    assert b"def " in library.train[:100_000].tobytes()
    assert int(library.train[:].max()) < VOCABULARY
    assert standard_library().digest == library.digest


def test_labels_are_the_next_byte(library: Corpus) -> None:
    ids, labels = sample_batch(library.train, seed=1, step=3, rows=(0, 4), seq=32)
    assert ids.dtype == labels.dtype == np.int32
    assert ids.shape == labels.shape == (4, 32)
    np.testing.assert_array_equal(ids[:, 1:], labels[:, :-1])


def test_every_rank_draws_its_rows_of_the_same_batch(library: Corpus) -> None:
    whole, _ = sample_batch(library.train, seed=1, step=3, rows=(0, 8), seq=16)
    parts = [sample_batch(library.train, seed=1, step=3, rows=rows, seq=16)[0] for rows in ((0, 3), (3, 8))]
    np.testing.assert_array_equal(np.concatenate(parts), whole)


def test_seed_step_and_row_each_change_the_draw(library: Corpus) -> None:
    drawn = {
        sample_batch(library.train, seed=seed, step=step, rows=(row, row + 1), seq=64)[0].tobytes()
        for seed in (0, 1)
        for step in (0, 1)
        for row in (0, 1)
    }
    assert len(drawn) == 8


def test_the_draw_is_uniform_and_reaches_both_ends() -> None:
    text = np.arange(11, dtype=np.uint8)
    ids, labels = sample_batch(text, seed=0, step=0, rows=(0, 5000), seq=1)
    counts = np.bincount(ids[:, 0], minlength=10)
    assert counts.size == 10
    assert counts.min() > 400
    assert counts.max() < 600
    assert labels.max() == 10


def test_the_draw_is_the_same_on_every_machine() -> None:
    text = (np.arange(100_000) // 400).astype(np.uint8)
    ids, _ = sample_batch(text, seed=7, step=5, rows=(0, 6), seq=1)
    assert ids[:, 0].tolist() == [2, 47, 20, 75, 246, 33]


def test_the_loader_fills_rows_and_columns(library: Corpus) -> None:
    shapes = {"ids": (8, 16), "labels": (8, 16)}
    load = TextLoader(library.train, 5, shapes, num_micro_batches=4)
    whole_ids, whole_labels = sample_batch(library.train, seed=5, step=2, rows=(24, 32), seq=16)
    ids, labels = np.empty((4, 16), np.int32), np.empty((4, 8), np.int32)
    load(LoadTask(("ids", "labels"), (((4, 8), (0, 16)), ((4, 8), (8, 16)))), 11, [ids, labels])
    np.testing.assert_array_equal(ids, whole_ids[4:])
    np.testing.assert_array_equal(labels, whole_labels[4:, 8:])


def test_the_batch_is_the_same_however_it_is_cut(library: Corpus) -> None:
    whole = np.empty((8, 16), np.int32)
    TextLoader(library.train, 5, {"ids": (8, 16)}, num_micro_batches=1)(
        LoadTask(("ids",), (((0, 8), (0, 16)),)), 3, [whole]
    )
    cut = np.empty((2, 16), np.int32)
    load = TextLoader(library.train, 5, {"ids": (2, 16)}, num_micro_batches=4)
    for micro_batch in range(4):
        load(LoadTask(("ids",), (((0, 2), (0, 16)),)), 3 * 4 + micro_batch, [cut])
        np.testing.assert_array_equal(cut, whole[2 * micro_batch : 2 * micro_batch + 2])


def test_a_file_is_split_by_its_bytes(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(bytes(range(200)))
    corpus = read_corpus(path)
    assert corpus.train[:].tobytes() + corpus.validation[:].tobytes() == bytes(range(200))
    assert len(corpus.validation) == 10


def test_a_folder_is_split_by_file(tmp_path: Path) -> None:
    for index in range(200):
        (tmp_path / f"{index}.txt").write_bytes(bytes([index]) * 10)
    (tmp_path / ".hidden").write_bytes(b"\xff" * 10)
    corpus = read_corpus(tmp_path)
    train, validation = set(corpus.train[:].tolist()), set(corpus.validation[:].tolist())
    assert not train & validation
    assert train | validation == set(range(200))
    assert 2 <= len(validation) <= 25


def test_a_folder_of_one_file_still_has_both_parts(tmp_path: Path) -> None:
    (tmp_path / "only.txt").write_bytes(b"x" * 100)
    corpus = read_corpus(tmp_path)
    assert (len(corpus.train), len(corpus.validation)) == (95, 5)


def test_what_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    for path, problem in (
        (tmp_path / "nowhere", "no such file or folder"),
        (tmp_path / "empty", "empty"),
        (tmp_path / "folder", "no text"),
        (Path("/dev/null"), "neither a file nor a folder"),
    ):
        with pytest.raises(InputError, match=problem):
            read_corpus(path)


def test_too_short_a_text_is_refused() -> None:
    text = np.zeros(16, np.uint8)
    assert sample_batch(text, seed=0, step=0, rows=(0, 1), seq=15)[0].shape == (1, 15)
    with pytest.raises(InputError, match="got 16, expected at least 17 bytes"):
        sample_batch(text, seed=0, step=0, rows=(0, 1), seq=16)
    with pytest.raises(InputError, match="too short"):
        TextLoader(text, 0, {"ids": (1, 16)}, num_micro_batches=1)


def test_an_input_that_is_not_rows_by_seq_is_refused() -> None:
    with pytest.raises(InputError, match=r"image.*\[rows, seq\]"):
        TextLoader(np.zeros(99, np.uint8), 0, {"image": (1, 3, 8)}, num_micro_batches=1)


_TWO_FIRST_DRAWS = """
import importlib._bootstrap, threading, time
from executor.data.text import _draw

loaded = importlib._bootstrap._load_unlocked

def slowly(spec):
    module = loaded(spec)
    if spec.name == "numpy.random":
        loading.set()
        time.sleep(0.5)
    return module

importlib._bootstrap._load_unlocked = slowly
loading, errors = threading.Event(), []

def draw(wait_s):
    loading.wait(wait_s)
    try:
        _draw(10, seed=1, counter=(2, 3))
    except RecursionError as error:
        errors.append(error)

threads = [threading.Thread(target=draw, args=(wait_s,)) for wait_s in (0.0, 2.0)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(len(errors))
"""


def test_threads_that_draw_first_at_one_time_load_nothing() -> None:
    """The moment in which `numpy.random` is loaded and no attribute of NumPy yet, made to last."""
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", _TWO_FIRST_DRAWS]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root, env={"PYTHONPATH": str(root)})
    assert done.stdout == "0\n"
