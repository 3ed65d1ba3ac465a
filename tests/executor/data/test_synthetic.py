"""Synthetic batches: each rank draws its box of one and the same batch, and what is drawn is as stated."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from executor.data.synthetic import BatchLoader, features, integers
from executor.data.text import VOCABULARY, Corpus, sample_batch
from strategy.base.errors import InputError
from strategy.models import PRESETS, Integers, RandomFeatures, Source, Tokens
from strategy.program.program import LoadTask
from strategy.sbp.tensor import Box

Array = npt.NDArray[Any]
TEXT = np.arange(200, dtype=np.uint8)
CORPUS = Corpus("text", TEXT, TEXT, "digest")
BATCH: dict[str, Source] = {
    "images": RandomFeatures("labels"),
    "noise": RandomFeatures(),
    "labels": Integers(10),
    "ids": Tokens(200),
    "next": Tokens(200, 1),
}
SHAPES = {"images": (4, 3, 5, 7), "noise": (4, 6), "labels": (4,), "ids": (4, 8), "next": (4, 8)}
DTYPES = {"images": np.float32, "noise": np.float64, "labels": np.int32, "ids": np.int32, "next": np.int32}


def loader(*, micro_batches: int = 3, seed: int = 1) -> BatchLoader:
    rows = 12 // micro_batches
    shapes = {name: (rows, *shape[1:]) for name, shape in SHAPES.items()}
    return BatchLoader(BATCH, shapes, CORPUS, seed=seed, num_micro_batches=micro_batches)


def draw(load: BatchLoader, name: str, act: int, box: Box) -> Array:
    array = np.empty(tuple(end - begin for begin, end in box), DTYPES[name])
    load(LoadTask((name,), (box,)), act, [array])
    return array


def whole(name: str, rows: int = 4) -> Box:
    return ((0, rows), *((0, size) for size in SHAPES[name][1:]))


@pytest.mark.parametrize("name", BATCH)
def test_a_box_is_that_part_of_the_batch(name: str) -> None:
    batch = draw(loader(), name, 7, whole(name))
    boxes: list[Box] = [((1, 4), *whole(name)[1:]), ((0, 1), *((size // 2, size) for size in SHAPES[name][1:]))]
    for box in boxes:
        cut = batch[tuple(slice(begin, end) for begin, end in box)]
        np.testing.assert_array_equal(draw(loader(), name, 7, box), cut)


@pytest.mark.parametrize("name", BATCH)
def test_the_batch_is_the_same_however_it_is_cut_into_micro_batches(name: str) -> None:
    once = draw(loader(micro_batches=1), name, 2, whole(name, 12))
    parts = [draw(loader(), name, 3 * 2 + number, whole(name)) for number in range(3)]
    np.testing.assert_array_equal(np.concatenate(parts), once)


@pytest.mark.parametrize("name", BATCH)
def test_steps_and_seeds_differ(name: str) -> None:
    drawn = {draw(loader(seed=seed), name, act, whole(name)).tobytes() for seed in (1, 2) for act in (0, 1, 3)}
    assert len(drawn) == 6


def test_tokens_come_from_the_text() -> None:
    ids, following = sample_batch(TEXT, seed=1, step=2, rows=(4, 8), seq=8)
    np.testing.assert_array_equal(draw(loader(), "ids", 7, whole("ids")), ids)
    np.testing.assert_array_equal(draw(loader(), "next", 7, whole("next")), following)


@pytest.mark.parametrize("vocabulary", [128, 199])
def test_a_text_of_other_tokens_is_refused_at_once(vocabulary: int) -> None:
    batch: dict[str, Source] = {"ids": Tokens(200), "next": Tokens(vocabulary, 1)}
    shapes = {name: SHAPES[name] for name in batch}
    below = rf"\(got 'byte {vocabulary}', expected bytes below {vocabulary}\)"
    said = rf"data, byte {vocabulary}: the text has .* {below}; search a plan of a model with"
    with pytest.raises(InputError, match=said):
        BatchLoader(batch, shapes, CORPUS, seed=1, num_micro_batches=1)


def test_every_preset_of_text_knows_its_bytes() -> None:
    read = {name: preset.model.batch.values() for name, preset in PRESETS.items()}
    below = {n: source.below for n, sources in read.items() for source in sources if isinstance(source, Tokens)}
    assert below.keys() >= {"gpt-tiny", "llama-tiny", "mixtral-tiny"}
    assert min(below.values()) >= VOCABULARY


def splitmix64(state: int, steps: int) -> int:
    """The generator as its authors write it: number `steps` of the sequence that begins at `state`."""
    mask = 2**64 - 1
    z = state + (steps + 1) * 0x9E3779B97F4A7C15 & mask
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
    z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
    return z ^ z >> 31


def test_figures_are_as_stated_and_the_same_on_every_machine() -> None:
    box = ((0, 200), (0, 300))
    drawn = features(3, box, (300,))
    assert abs(drawn.mean()) < 0.02
    assert abs(drawn.std() - 1) < 0.02
    counts = np.bincount(integers(3, box, (300,), below=7).reshape(-1), minlength=7)
    assert counts.size == 7
    assert np.ptp(counts) < 0.1 * counts.mean()
    wanted = [(splitmix64(3, index) >> 32) * 1000 >> 32 for index in range(6)]
    assert integers(3, ((0, 2), (0, 3)), (3,), below=1000).reshape(-1).tolist() == wanted


def test_samples_of_a_class_resemble_one_another() -> None:
    load = BatchLoader(BATCH, {**SHAPES, "images": (64, 3, 5, 7), "labels": (64,)}, CORPUS, seed=1, num_micro_batches=1)
    labels = draw(load, "labels", 0, ((0, 64),))
    images = draw(load, "images", 0, ((0, 64), (0, 3), (0, 5), (0, 7))).reshape(64, -1)
    likeness = images @ images.T / images.shape[1]
    alike = labels[:, None] == labels[None, :]
    np.fill_diagonal(alike, val=False)
    assert likeness[alike].mean() > 0.4
    assert abs(likeness[labels[:, None] != labels[None, :]].mean()) < 0.05
    assert images.std() == pytest.approx(1, abs=0.05)
