"""Transformers of our making compute what PyTorch's of the same name compute."""

from __future__ import annotations

import numpy as np
import pytest

from strategy.graph.graph import Role
from strategy.models import find_model
from strategy.passes.training import REPORT, training_graph
from tests.pytorch.families import NAMES, TRAINING, batch_of, drawn, torch_loss
from tests.support.reference import run_graph, start_variables

LOSSES = {
    "bert-tiny": 4.479754240414234,
    "vit-tiny": 2.180766767109378,
    "llama-tiny": 5.642290157803727,
    "mixtral-tiny": 5.862351732301182,
}
"""What `python -m tests.pytorch.families` printed with torch 2.15.0 and transformers 5.23.0."""


@pytest.mark.parametrize("name", NAMES)
def test_losses_are_those_of_pytorch(name: str) -> None:
    """Its rotary angles are in single precision."""
    graph = training_graph(find_model(name), TRAINING)
    variables = start_variables(graph, np.random.default_rng(0)) | drawn(name)
    specs = {value.name: value.spec for value in graph.with_role(Role.INPUT)}
    batch = {key: np.asarray(array, specs[key].dtype) for key, array in batch_of(name).items()}
    values = run_graph(graph, [batch], variables)
    loss = values["token_loss" if name == "mixtral-tiny" else "loss"]
    assert float(loss / values[REPORT][1]) == pytest.approx(LOSSES[name], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_pytorch_still_computes_these_losses(name: str) -> None:
    for package in ("torch", "transformers"):
        pytest.importorskip(package, reason=f"{package} is not installed: pip install 'sbplan[torch]'")
    assert torch_loss(name) == pytest.approx(LOSSES[name], rel=1e-9)
