"""`package.module:function` as a model: one message for each way in which it can be wrong."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from strategy.base.errors import InputError
from strategy.models import find_model

SOURCE = """
from strategy.models.base import Integers
from strategy.nn.layers import Embedding, Linear
from strategy.nn.losses import mse_loss
from strategy.nn.module import Layers, Module
from strategy.sbp.tensor import DType, TensorSpec


class Classifier(Module):
    def __init__(self):
        self.layers = Layers([Linear(8, 8) for _ in range(3)])
        self.head = Linear(8, 4)

    def inputs(self, micro_batch):
        return {"x": TensorSpec((micro_batch, 8))}

    def forward(self, x):
        return self.head(self.layers(x))


class Regression(Classifier):
    def inputs(self, micro_batch):
        return {"x": TensorSpec((micro_batch, 8)), "y": TensorSpec((micro_batch, 4))}

    def forward(self, x, y):
        return mse_loss(super().forward(x), y)


class Silent(Module):
    def forward(self, x):
        return x


class Wrong(Classifier):
    def inputs(self, micro_batch):
        return {"x": TensorSpec((micro_batch, 7))}


class Raising(Classifier):
    def forward(self, x):
        raise RuntimeError("no forward")


def number():
    return 3


def broken():
    raise KeyError("x")


constant = 4
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "their_models.py").write_text(SOURCE)
    (tmp_path / "cannot_import.py").write_text("import nothing_of_this_name\n")
    monkeypatch.chdir(tmp_path)
    for name in ("their_models", "cannot_import"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


@pytest.mark.usefixtures("here")
def test_a_function_gives_a_model() -> None:
    classifier, regression = (find_model(f"their_models:{name}") for name in ("Classifier", "Regression"))
    assert classifier.layers == regression.layers == 3
    assert classifier.parameters == regression.parameters == 3 * 72 + 36
    assert list(classifier.inputs(5)) == ["x", "labels"]
    assert list(regression.inputs(5)) == ["x", "y"]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere:model", "cannot be imported: ModuleNotFoundError: No module named 'nowhere'; is it in this folder"),
        ("cannot_import:model", "cannot be imported: .*nothing_of_this_name.*cannot_import.py:1"),
        ("their_models:Clasifier", "no such function: Clasifier; did you mean 'Classifier'"),
        ("their_models:constant", "not a function .got 'int'"),
        ("their_models:number", "returns no module .got 'int', expected a Module"),
        ("their_models:broken", "raises: KeyError: 'x', at .*their_models.py:"),
        ("their_models:Silent", "does not say what it reads .*give it a method inputs"),
        ("their_models:Wrong", "matmul shapes do not compose"),
        ("their_models:Raising", "cannot be traced: RuntimeError: no forward"),
    ],
)
def test_one_message_for_each_way_to_be_wrong(name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        find_model(name)


@pytest.mark.usefixtures("here")
def test_its_samples_have_their_own_length() -> None:
    with pytest.raises(InputError, match="a model that says itself what it reads"):
        find_model("their_models:Classifier", sequence=4)
