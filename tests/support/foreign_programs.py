"""Programs of other frameworks as tests run them: the small files, and what a file computes on one device."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from strategy.graph.graph import Role
from strategy.models.imported.foreign_module import ForeignModule
from strategy.models.imported.read import foreign_module
from strategy.nn.layers import set_training
from strategy.nn.tracer import Tracer
from strategy.sbp.tensor import DType
from tests.pytorch.programs import FOLDER, REFERENCE
from tests.support.reference import Array, run_graph

NAMES = ("resnet", "vit", "bert", "qwen")
SUFFIXES = (".pt2", ".onnx")
FILES = tuple(FOLDER / f"{name}{suffix}" for name in NAMES for suffix in SUFFIXES)


@cache
def reference() -> dict[str, Array]:
    """What PyTorch computed: NAME -> logits, NAME.input -> the example."""
    with np.load(FOLDER / REFERENCE) as file:
        return dict(file)


def logits_of(path: Path, inputs: Array) -> Array:
    """What the program of a file computes, in evaluation, with the file's own weights."""
    return evaluated(foreign_module(path), inputs)


def evaluated(module: ForeignModule, inputs: Array) -> Array:
    """What a program computes of one input."""
    set_training(module, False)
    tracer = Tracer()
    tracer.adopt(module, DType.FLOAT32)
    specs = module.inputs(len(inputs))
    output = module(*[tracer.input(name, spec) for name, spec in specs.items()])
    graph = tracer.graph.build()
    tensors = {one.name: one for one in module.graph.tensors}
    weights = {place.name: np.array(tensors[name].read(), np.float32) for name, place in module.places.items()}
    values = {value.name: weights[value.name] for value in graph.with_role(Role.VARIABLE)}
    (name,) = specs
    return run_graph(graph, [{name: inputs}], values)[output.name]
