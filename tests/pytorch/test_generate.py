"""The stored figures are what PyTorch computes here and now; skipped where the extra `torch` is not installed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from tests.pytorch.generate import HERE, gpt2, resnet50
from tests.support.reference import Array


@pytest.mark.slow
def test_pytorch_still_computes_the_stored_figures(tmp_path: Path) -> None:
    for package in ("torch", "torchvision", "transformers"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'sbplan[torch]'")
    compare(gpt2(tmp_path), stored("gpt2"))
    compare(load_file(tmp_path / "gpt2.safetensors"), load_file(HERE / "gpt2.safetensors"))
    compare(resnet50(), stored("resnet50"))


def stored(name: str) -> dict[str, Array]:
    """A file of figures."""
    with np.load(HERE / f"{name}.npz") as file:
        return dict(file)


def compare(found: Mapping[str, Array], kept: Mapping[str, Array]) -> None:
    """The same names with the same figures, up to rounding."""
    assert set(found) == set(kept)
    for name, figures in kept.items():
        np.testing.assert_allclose(found[name], figures, rtol=1e-5, atol=1e-6, err_msg=name)
