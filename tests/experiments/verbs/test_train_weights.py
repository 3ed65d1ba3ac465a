"""`sbplan train --init`: a training starts with the weights of a file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from executor.data.text import read_corpus, sample_batch
from strategy.graph.graph import Role
from strategy.models.pretrained import open_pretrained
from strategy.passes.training import REPORT
from strategy.plan.plan import Plan, write_plan
from tests.mpi.jobs import run, run_well
from tests.pytorch.generate import HERE, VOCABULARY
from tests.pytorch.test_gpt2 import MODEL, TRAINING
from tests.support.long_parameters import long_but
from tests.support.reference import run_graph
from tests.support.small_plans import config_of, deduced_plan, request

pytestmark = pytest.mark.mpi
WEIGHTS = HERE / "gpt2.safetensors"


@pytest.fixture(scope="module")
def plan() -> Plan:
    """Two ranks with split tensors."""
    return deduced_plan(request(2, TRAINING, model=MODEL), config_of(TRAINING, tp=2), ("data", "tensor"))


def test_the_first_loss_is_that_of_the_weights(tmp_path: Path, plan: Plan) -> None:
    text = tmp_path / "text"
    text.write_bytes(np.random.default_rng(0).integers(0, VOCABULARY, 1000).astype(np.uint8).tobytes())
    write_plan(plan, tmp_path / "plan.json")
    arguments = ("--steps", 2, "--json", "--data", text, "--init", WEIGHTS, "--launch")
    first = run_well(tmp_path, "train", tmp_path / "plan.json", *arguments).documents[0]
    weights = open_pretrained(WEIGHTS, MODEL)
    variables = {value.name: np.zeros(value.spec.shape, "f4") for value in plan.graph.with_role(Role.VARIABLE)}
    rows = (0, TRAINING.global_batch)
    ids, labels = sample_batch(read_corpus(text).train, seed=0, step=0, rows=rows, seq=MODEL.sequence)
    loss, count, norm = run_graph(plan.graph, [{"ids": ids, "labels": labels}], {**variables, **weights})[REPORT]
    assert first["loss"] == pytest.approx(loss / count, rel=1e-5)
    assert first["grad_norm"] == pytest.approx(norm, rel=1e-4)


@pytest.mark.parametrize(
    ("flags", "message"),
    long_but(
        [
            (("--init", "nowhere"), "nowhere: the file cannot be read"),
            (("--init", WEIGHTS, "--resume", "--checkpoint", "saved"), "a resumed training has its weights"),
        ],
        0,
    ),
)
def test_what_cannot_start_is_told_once(tmp_path: Path, plan: Plan, flags: tuple[object, ...], message: str) -> None:
    write_plan(plan, tmp_path / "plan.json")
    ended = run(tmp_path, "train", tmp_path / "plan.json", *flags, "--launch")
    assert ended.code == 2
    assert ended.stderr.count(message) == 1
    assert "Traceback" not in ended.stderr
