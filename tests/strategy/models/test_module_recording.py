"""Recorded modules and programs: a plan holds all of their graph, and trains it on ranks as on one device."""

from __future__ import annotations

import dataclasses
import random
from pathlib import Path
from typing import Any

import pytest

from strategy.base.errors import InputError
from strategy.models import Model, find_model, recorded_layers
from strategy.models.imported.read import open_weights
from strategy.models.module_recording import record_module
from strategy.models.recorded_layers import RecordedLayers
from strategy.nn.layers import Linear
from strategy.nn.module import Layers, Module, Parameter
from strategy.nn.tracer import Tensor
from strategy.passes.training import Training, training_graph
from strategy.plan.plan import read_plan, write_plan
from strategy.sbp.tensor import DType, TensorSpec
from tests.campaigns.transparency import check, check_under_mpi
from tests.pytorch.programs import FOLDER
from tests.support.long_parameters import long_but
from tests.support.small_plans import config_of, deduced_plan, random_plan, request

TRAINING = Training(global_batch=4, num_micro_batches=2, dtype=DType.FLOAT64, epsilon=1e-4)
PROGRAMS = ("qwen.pt2", "qwen.onnx", "bert.pt2", "vit.pt2", "resnet.pt2")
STEPS = 2


class Declared(Module):
    """A preset that says what it reads, as a user's module does."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.inner = model.module()

    def inputs(self, micro_batch: int) -> dict[str, TensorSpec]:
        return self.model.inputs(micro_batch)

    def walk(self, path: tuple[str | int, ...] = ()) -> Any:
        yield self, path
        yield from self.inner.walk(path)

    def forward(self, *inputs: Tensor) -> Any:
        return self.inner.forward(*inputs)


class Added(Module):
    """Two parameters that have one gradient."""

    def __init__(self) -> None:
        self.one, self.other = Parameter((4,)), Parameter((4,))
        self.head = Linear(4, 3)

    def inputs(self, micro_batch: int) -> dict[str, TensorSpec]:
        return {"x": TensorSpec((micro_batch, 4))}

    def forward(self, *inputs: Tensor) -> Any:
        (x,) = inputs
        return self.head(x + (self.parameter("one", x) + self.parameter("other", x)))


def test_parameters_that_are_added_to_each_other_have_one_sum_of_gradients() -> None:
    graph = training_graph(record_module(Added(), where="added"), TRAINING)
    one, other = (next(op for op in graph.ops if op.updates and op.updates[0] == name) for name in ("one", "other"))
    assert one.inputs[0] == other.inputs[0]
    assert graph.producer[one.inputs[0]].kind == "accumulate"


def program(name: str) -> Model:
    return find_model(str(FOLDER / name))


@pytest.mark.parametrize("name", ["gpt-tiny", "vit-tiny", "resnet-tiny", "llama-tiny"])
@pytest.mark.parametrize("micro_batch", [1, 5])
def test_a_recording_is_what_was_traced(name: str, micro_batch: int) -> None:
    """Also of micro-batches for which nothing was traced."""
    model = find_model(name)
    recorded = record_module(Declared(model), where=name)
    training = Training(micro_batch)
    ours, theirs = training_graph(recorded, training), training_graph(model, training)
    assert ours.ops == theirs.ops
    assert list(ours.values.items()) == list(theirs.values.items())
    assert recorded.layers == model.layers
    assert recorded.parameters == model.parameters


def test_the_same_module_gives_the_same_text() -> None:
    one, other = (record_module(Declared(find_model("gpt-tiny")), where="gpt").text for _ in range(2))
    assert one == other


@pytest.mark.parametrize("name", long_but(PROGRAMS, 1, 2))
def test_a_program_trains_data_parallel_as_on_one_device(name: str, tmp_path: Path) -> None:
    plan = deduced_plan(request(2, TRAINING, model=program(name)), config_of(TRAINING, dp=2), ("data", "tensor"))
    assert list(check(plan, steps=STEPS)) == []
    write_plan(plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan


@pytest.mark.parametrize("name", long_but(PROGRAMS, 0, 4))
def test_a_program_trains_in_a_pipeline_as_on_one_device(name: str) -> None:
    plan = random_plan(request(2, TRAINING, model=program(name)), config_of(TRAINING, pp=2), random.Random(name))
    assert list(check(plan, steps=STEPS)) == []


@pytest.mark.mpi
@pytest.mark.long
def test_programs_train_under_mpiexec_and_random_layouts_as_on_one_device() -> None:
    plans = {
        number: random_plan(request(2, TRAINING, model=program(name)), config_of(TRAINING, tp=2), random.Random(name))
        for number, name in enumerate(PROGRAMS)
    }
    assert check_under_mpi(2, plans, steps=STEPS) == {number: [] for number in plans}


@pytest.mark.parametrize("name", ["bert.pt2", "vit.pt2", "qwen.pt2"])
def test_layers_of_programs_are_alike(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a search may solve three of many; the files have just three."""
    monkeypatch.setattr(recorded_layers, "LEAST", 2)
    path = FOLDER / name
    model = program(name)
    assert isinstance(model, RecordedLayers)
    fewer = dataclasses.replace(model, layers=2)
    assert training_graph(fewer, TRAINING).loss == training_graph(model, TRAINING).loss
    last = [held.label for held in fewer.kept.parameters if held.path[:2] == ("layers", 1)]
    assert last == [held.label for held in model.kept.parameters if held.path[:2] == ("layers", 2)]
    assert set(open_weights(path, fewer)) == {held.name for held in fewer.kept.parameters}


class Branching(Module):
    """Another graph for another number of samples."""

    def __init__(self) -> None:
        self.layers = Layers([Linear(4, 4), Linear(4, 4)])

    def inputs(self, micro_batch: int) -> dict[str, TensorSpec]:
        return {"x": TensorSpec((micro_batch, 4))}

    def forward(self, *inputs: Tensor) -> Tensor:
        x = self.layers(inputs[0])
        return x.relu() if x.shape[0] == 2 else x


def test_a_module_that_branches_on_the_samples_is_refused() -> None:
    with pytest.raises(
        InputError, match=r"mine: 1 problem\n.*does other ops for \(2, 4, 6\) samples .*write it for any number"
    ):
        record_module(Branching(), where="mine")
