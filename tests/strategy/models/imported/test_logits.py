"""Programs of torch.export and ONNX compute what PyTorch computes, with as many parameters, in as many layers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from strategy.models.imported.read import foreign_module, open_weights, read_program
from strategy.models.recorded import Recorded, RecordedOp
from tests.support.foreign_programs import FILES, logits_of, reference
from tests.support.long_parameters import long_but

WITHIN = 1e-5
"""Of the largest logit."""
PARAMETERS: Mapping[str, tuple[int, int]] = {
    "resnet": (9053, 8733),  # ONNX: batch norms are folded into convolutions
    "vit": (7069, 7069),
    "bert": (10856, 10792),  # ONNX: positions that are not read are folded away
    "qwen": (16416, 16416),
}
"""As PyTorch counts them, and as the .onnx file has them."""
LAYERS = {"resnet": 5, "vit": 3, "bert": 3, "qwen": 3}


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_logits_are_pytorchs(path: Path) -> None:
    wanted = reference()[path.stem]
    found = logits_of(path, reference()[f"{path.stem}.input"])
    assert np.abs(found - wanted).max() <= WITHIN * np.abs(wanted).max()


@pytest.mark.parametrize("path", long_but(FILES, *range(0, len(FILES), 2)), ids=[path.name for path in FILES])
def test_samples_are_computed_one_by_one(path: Path) -> None:
    """Of other sizes of the batch than that which was exported."""
    wanted, inputs = reference()[path.stem], reference()[f"{path.stem}.input"]
    for order in ((0,), (1, 0, 1), (0, 1, 1, 0, 1)):
        found = logits_of(path, inputs[list(order)])
        assert np.abs(found - wanted[list(order)]).max() <= WITHIN * np.abs(wanted).max()


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_parameters_and_layers_are_those_of_the_model(path: Path) -> None:
    model = read_program(str(path)).model
    assert model.parameters == PARAMETERS[path.stem][path.suffix == ".onnx"]
    assert model.layers == LAYERS[path.stem]


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_every_weight_is_found_in_the_file_by_the_recording(path: Path) -> None:
    model = read_program(str(path)).model
    assert isinstance(model, Recorded)
    weights = open_weights(path, model)
    shapes = {one.name: one.shape for one in model.recording.parameters}
    assert {name: array.shape for name, array in weights.items()} == shapes


def test_what_was_written_out_is_found() -> None:
    """Attention, rotary positions, norms and activations are ops of ours, whichever way a file has them."""
    for suffix in (".pt2", ".onnx"):
        kinds = [op.kind for op in _recorded(f"qwen{suffix}")]
        assert [kinds.count(kind) for kind in ("attention", "rotary", "rms_norm", "silu")] == [3, 6, 13, 3]
        assert [op.attrs["causal"] for op in _recorded(f"qwen{suffix}") if op.kind == "attention"] == [1, 1, 1]
        assert [op.attrs["group"] for op in _recorded(f"qwen{suffix}") if op.kind == "attention"] == [2, 2, 2]
        assert [op.attrs["causal"] for op in _recorded(f"bert{suffix}") if op.kind == "attention"] == [0, 0, 0]


def _recorded(name: str) -> tuple[RecordedOp, ...]:
    path = next(path for path in FILES if path.name == name)
    model = read_program(str(path)).model
    assert isinstance(model, Recorded)
    return model.recording.ops


def test_names_are_the_authors_and_layers_are_numbered() -> None:
    path = next(path for path in FILES if path.name == "resnet.pt2")
    places = {place.name for place in foreign_module(path).places.values()}
    assert {"conv1.weight", "bn1.running_variance", "layers.0.conv1.weight", "layers.4.bn3.bias", "fc.bias"} <= places
