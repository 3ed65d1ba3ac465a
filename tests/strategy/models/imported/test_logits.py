"""Programs of torch.export and ONNX compute what PyTorch computes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.foreign_programs import FILES, logits_of, reference

WITHIN = 1e-5
"""Of the largest logit."""
PARAMETERS = {"resnet": 8949, "vit": 0, "bert": 0, "qwen": 0}


@pytest.mark.parametrize("path", FILES, ids=[path.name for path in FILES])
def test_logits_are_pytorchs(path: Path) -> None:
    wanted = reference()[path.stem]
    found = logits_of(path, reference()[f"{path.stem}.input"])
    assert np.abs(found - wanted).max() <= WITHIN * np.abs(wanted).max()
