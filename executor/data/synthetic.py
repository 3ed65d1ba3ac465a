"""Synthetic batches: features, images and ids that are functions of seed, input, step and global index alone.

Every figure is a hash of where it stands in the global batch of its step, so a rank makes its own box and nothing else,
however the plan cuts the batch. The hash is splitmix64's finaliser (Steele, Lea and Flood 2014) on integers, and what
follows is exact, so the figures are the same on every machine.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from executor.data.batch_rows import BatchRows
from executor.data.text import VOCABULARY, Corpus, RowsRead, TextLoader, check_vocabulary
from strategy.models import Integers, RandomFeatures, Source, Tokens
from strategy.program.program import LoadTask
from strategy.sbp.tensor import Box, Shape

_LIKENESS = math.sqrt(0.5)
"""Features of a class share half of their variance."""

Bits = NDArray[np.uint64]


class BatchLoader:
    """Fills the registers of a loader actor: tokens from a text, everything else synthetic.

    Args:
        batch: graph input -> what fills it.
        shapes: graph input -> its global shape [samples of a micro-batch, ...].
        corpus: the text; its training part is read.
        seed: of the run.
        num_micro_batches: per step.
        by_rank: see `BatchRows`.

    Raises:
        InputError: an input of tokens is not [rows, seq], or the text is too short for it or has other tokens.
    """

    def __init__(
        self,
        batch: Mapping[str, Source],
        shapes: Mapping[str, Shape],
        corpus: Corpus,
        *,
        seed: int,
        num_micro_batches: int,
        by_rank: bool = False,
    ) -> None:
        tokens = {name: source for name, source in batch.items() if isinstance(source, Tokens)}
        check_vocabulary(corpus.train, min((source.below for source in tokens.values()), default=VOCABULARY))
        self._text = TextLoader(
            corpus.train,
            seed,
            {name: shapes[name] for name in tokens},
            num_micro_batches=num_micro_batches,
            shifts={name: source.shift for name, source in tokens.items() if source.shift},
            by_rank=by_rank,
        )
        self._batch = batch
        self._shapes = shapes
        self._seed = seed
        self._num_micro_batches = num_micro_batches
        self._batch_rows = BatchRows(num_micro_batches, by_rank)

    def read(self, task: LoadTask, act_number: int) -> RowsRead:
        """What comes from the text, of micro-batch `act_number`, counted since the start of the training."""
        places = [place for place, name in enumerate(task.inputs) if self._is_text(name)]
        return self._text.read(_part(task, places), act_number) if places else {}

    def decode(self, task: LoadTask, act_number: int, raw: RowsRead, arrays: Sequence[NDArray[Any]]) -> None:
        """Write the boxes of `task` of that micro-batch."""
        step, micro_batch = divmod(act_number, self._num_micro_batches)
        for place, (name, box, array) in enumerate(zip(task.inputs, task.boxes, arrays, strict=True)):
            if self._is_text(name):
                self._text.decode(_part(task, [place]), act_number, raw, [array])
            else:
                (begin, end), *rest = box
                rows = self._batch_rows.of(begin, end, self._shapes[name][0], micro_batch)
                array[...] = self._piece(name, step, (rows, *rest))

    def __call__(self, task: LoadTask, act_number: int, arrays: Sequence[NDArray[Any]]) -> None:
        """Read and decode at once."""
        self.decode(task, act_number, self.read(task, act_number), arrays)

    def _is_text(self, name: str) -> bool:
        return isinstance(self._batch[name], Tokens)

    def _piece(self, name: str, step: int, box: Box) -> NDArray[Any]:
        """A box of the global batch of a step."""
        source, shape = self._batch[name], self._shapes[name]
        if isinstance(source, Integers):
            return integers(_key(self._seed, name, step), box, shape[1:], below=source.below)
        assert isinstance(source, RandomFeatures)
        noise = features(_key(self._seed, name, step), box, shape[1:])
        if not source.label:
            return noise
        classes = self._piece(source.label, step, box[:1])
        place = (*((0, 1) for _ in box[:1]), *box[1:])
        common = [features(_key(self._seed, f"{name} of class {c}", 0), place, shape[1:])[0] for c in classes]
        return np.asarray(_LIKENESS * (noise + np.stack(common)))


def _part(task: LoadTask, places: Sequence[int]) -> LoadTask:
    """A task for some of its inputs."""
    return LoadTask(tuple(task.inputs[place] for place in places), tuple(task.boxes[place] for place in places))


def integers(key: int, box: Box, sample: Shape, *, below: int) -> NDArray[np.int64]:
    """The box of a batch of integers, uniform in [0, below); `sample` is the shape of one sample."""
    high = _hashes(key, box, sample) >> np.uint64(32)
    return (high * np.uint64(below) >> np.uint64(32)).astype(np.int64)


def features(key: int, box: Box, sample: Shape) -> NDArray[np.float64]:
    """The box of a batch of figures, uniform with mean 0 and variance 1; `sample` is the shape of one sample."""
    unit = (_hashes(key, box, sample) >> np.uint64(11)) * 2.0**-53
    return np.asarray((2 * unit - 1) * math.sqrt(3), np.float64)


def _hashes(key: int, box: Box, sample: Shape) -> Bits:
    """64 bits for every element of a box, by its index in the global batch."""
    index = np.zeros((1,) * len(box), np.uint64)
    stride = 1
    for dim in reversed(range(len(box))):
        shape = tuple(-1 if other == dim else 1 for other in range(len(box)))
        index = index + (np.arange(*box[dim], dtype=np.uint64) * np.uint64(stride)).reshape(shape)
        stride *= sample[dim - 1] if dim else 1
    with np.errstate(over="ignore"):
        bits = (index + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
        bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(bits ^ (bits >> np.uint64(31)), np.uint64)


def _key(seed: int, name: str, step: int) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}:{step}".encode()).digest()[:8], "big")
