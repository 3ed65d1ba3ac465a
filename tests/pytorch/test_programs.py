"""Programs of PyTorch at their published sizes compute what PyTorch computes; skipped where it is not installed."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
import pytest

from strategy.models.imported.read import read_program
from tests.pytorch.programs import FULL, example, export, randomised
from tests.support.foreign_programs import logits_of

WITHIN = 1e-5
"""Of the largest logit."""
PARAMETERS = {"resnet50": 25_557_032, "vit-b16": 86_567_656, "bert-base": 109_514_298}
LAYERS = {"resnet50": 16, "vit-b16": 12, "bert-base": 12}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", FULL)
def test_full_models_compute_what_pytorch_computes(name: str, tmp_path: Path) -> None:
    for package in ("torch", "torchvision", "transformers", "onnx", "onnxscript"):
        try:
            importlib.import_module(package)
        except ImportError:
            pytest.skip(f"{package} is not installed: pip install 'sbplan[torch]'")
        except RuntimeError:
            assert (
                package == "torchvision"
            )  # its compiled part does not load, which `programs.torchvision` makes up for
    model = randomised(FULL[name]())
    wanted = export(name, model, tmp_path)
    for suffix in (".pt2", ".onnx"):
        path = tmp_path / f"{name}{suffix}"
        found = logits_of(path, example(name).numpy())
        assert np.abs(found - wanted).max() <= WITHIN * np.abs(wanted).max()
        read = read_program(str(path)).model
        assert read.layers == LAYERS[name]
        assert read.parameters == PARAMETERS[name] or (name, suffix) == ("resnet50", ".onnx")
