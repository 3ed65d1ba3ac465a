"""Reading a program: which reader a file is for, and the model that its program is; its weights by our names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from strategy.base.errors import GraphError, InputError
from strategy.models.base import Model, Preset
from strategy.models.huggingface.config import BATCH_TOKENS, MOST_SAMPLES
from strategy.models.imported.exported import read_exported
from strategy.models.imported.foreign import Array, ForeignGraph, ForeignTensor
from strategy.models.imported.foreign_module import ForeignModule
from strategy.models.imported.onnx_file import read_onnx
from strategy.models.module_recording import record_module
from strategy.models.recorded import Recorded

READERS = {".pt2": read_exported, ".onnx": read_onnx}
"""Suffix -> what reads such files."""


def is_program(text: str) -> bool:
    """Whether a text names a file with a program."""
    return Path(text).suffix.lower() in READERS


def read_foreign(path: Path) -> ForeignGraph:
    """The program of a file.

    Raises:
        InputError: it is not there, or no such file.
    """
    if not path.is_file():
        raise InputError("no such file", where=str(path))
    return READERS[path.suffix.lower()](path)


def foreign_module(path: Path, *, sequence: int | None = None) -> ForeignModule:
    """The program of a file as a module.

    Raises:
        InputError: it cannot be read, or uses what no op of ours is; all of it in one message.
    """
    try:
        return ForeignModule(read_foreign(path), sequence=sequence)
    except GraphError:
        raise
    except InputError as error:
        if str(error).startswith(str(path)):
            raise
        raise InputError(str(error), where=str(path)) from error


def read_program(text: str, *, sequence: int | None = None) -> Preset:
    """The model that the program of a file is, with samples per step as for Hugging Face's configs.

    Raises:
        InputError: see `foreign_module` and `record_module`.
    """
    module = foreign_module(Path(text), sequence=sequence)
    known = {one.name: one.label for one in module.graph.tensors}
    labels = {place.name: known[name] for name, place in module.places.items()}
    return preset_of(record_module(module, where=text, labels=labels))


def preset_of(model: Model) -> Preset:
    """A model with samples per step: a power of two that makes a few million tokens at most."""
    samples = min(MOST_SAMPLES, max(1, BATCH_TOKENS // model.tokens_per_sample))
    return Preset(model, 1 << samples.bit_length() - 1)


@dataclass(frozen=True, slots=True)
class ProgramWeights(Mapping[str, Array]):
    """The weights of a program's file by our names; each is read when it is asked for.

    Attributes:
        tensors: our name -> the tensor in the file.
    """

    tensors: Mapping[str, ForeignTensor]

    def __getitem__(self, name: str) -> Array:
        return self.tensors[name].read()

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)


def open_weights(path: Path, model: Recorded) -> ProgramWeights:
    """The weights of the file that a model was recorded from, or of one with the same parameters.

    Raises:
        InputError: the file cannot be read, or its tensors are not those of the model.
    """
    held = {one.label: one for one in read_foreign(path).tensors}
    found = {}
    problems = []
    for one in model.kept.parameters:
        tensor = held.get(one.label)
        if tensor is None or tensor.shape != one.shape:
            got = "nothing" if tensor is None else tensor.shape
            problems.append(f"{one.name}: got {got} for {one.label!r}, expected {one.shape}")
        else:
            found[one.name] = tensor
    if problems:
        raise GraphError(problems, where=str(path))
    return ProgramWeights(found)


__all__ = ["ProgramWeights", "foreign_module", "is_program", "open_weights", "preset_of", "read_program"]
