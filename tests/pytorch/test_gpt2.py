"""GPT-2 with weights in Hugging Face's layout gives PyTorch's logits and losses, on one device and laid out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from executor.op_validation.pieces import join
from executor.runtime.hooks import Hooks
from executor.runtime.initialize import given_piece, initial_piece
from executor.runtime.step_reports import Reports
from executor.runtime.worker import Worker
from executor.train import program_of
from strategy.graph.graph import Role
from strategy.graph.ops import REGISTRY
from strategy.layout.layout import home_of
from strategy.models.gpt import GptConfig
from strategy.models.pretrained import open_pretrained
from strategy.passes.training import REPORT, Training, training_graph
from strategy.plan.plan import Plan
from strategy.program.program import LoadTask
from strategy.sbp.sbp import local_box
from tests.pytorch.generate import (
    ADAMW,
    BATCH,
    HEADS,
    HERE,
    LAYERS,
    SEQUENCE,
    STEPS,
    VOCABULARY,
    WEIGHT_DECAY,
    WIDTH,
    token_batches,
)
from tests.support.reference import Array, run_graph
from tests.support.small_plans import config_of, plan_by_rules, request
from tests.support.threads import run_loopback

MODEL = GptConfig(LAYERS, WIDTH, HEADS, SEQUENCE, VOCABULARY)
TRAINING = Training(
    BATCH,
    lr=ADAMW["lr"],
    beta1=ADAMW["betas"][0],
    beta2=ADAMW["betas"][1],
    epsilon=ADAMW["eps"],
    weight_decay=WEIGHT_DECAY,
    max_norm=1.0,
)
LOGITS_WITHIN, LOSSES_WITHIN = 1e-4, 1e-3


@pytest.fixture(scope="module")
def theirs() -> Mapping[str, Array]:
    """What PyTorch computed."""
    with np.load(HERE / "gpt2.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def weights() -> Mapping[str, Array]:
    """Our parameters, from the file that transformers wrote."""
    return open_pretrained(HERE / "gpt2.safetensors", MODEL)


def test_one_device_computes_what_pytorch_computes(weights: Mapping[str, Array], theirs: Mapping[str, Array]) -> None:
    graph = training_graph(MODEL, TRAINING)
    variables = {
        value.name: np.array(weights[value.name])
        if value.name in weights
        else np.zeros(value.spec.shape, value.spec.dtype)
        for value in graph.with_role(Role.VARIABLE)
    }
    losses = []
    for step, (ids, labels) in enumerate(token_batches()):
        values = run_graph(graph, [{"ids": ids, "labels": labels}], variables, step=step)
        if step == 0:
            assert np.max(np.abs(values["logits"] - theirs["logits"])) <= LOGITS_WITHIN
        losses.append(float(values[REPORT][0] / values[REPORT][1]))
    assert losses[-1] < 0.5 * losses[0]
    assert np.max(np.abs(np.array(losses) - theirs["losses"])) <= LOSSES_WITHIN


def test_two_ranks_with_split_tensors_compute_it_too(weights: Mapping[str, Array], theirs: Mapping[str, Array]) -> None:
    plan = plan_by_rules(request(2, TRAINING, model=MODEL), config_of(TRAINING, tp=2), ("data", "tensor"))
    found: dict[int, list[Reports]] = {0: [], 1: []}

    def hooks(rank: int) -> Hooks:
        return Hooks(on_step=lambda step, reports: found[rank].append(reports))

    run_loopback(
        program_of(plan),
        plan.graph,
        REGISTRY,
        load,
        steps=STEPS,
        prepare=lambda worker: start(plan, worker, weights),
        hooks=hooks,
        reports=lambda rank: ("logits", REPORT),
    )
    home = home_of(plan.graph, plan.layout.stages, plan.layout.signatures, "logits")
    assert home is not None
    logits = join([found[rank][0]["logits"] for rank in (0, 1)], home.layout, plan.layout.stages.placements[0].mesh)
    assert np.max(np.abs(logits - theirs["logits"])) <= LOGITS_WITHIN
    losses = [float(reports[REPORT][0] / reports[REPORT][1]) for reports in found[0]]
    assert np.max(np.abs(np.array(losses) - theirs["losses"])) <= LOSSES_WITHIN


def load(task: LoadTask, number: int, arrays: Sequence[Array]) -> None:
    """A rank's part of the batch of a step."""
    batch = dict(zip(("ids", "labels"), token_batches()[number], strict=True))
    for name, box, array in zip(task.inputs, task.boxes, arrays, strict=True):
        array[...] = batch[name][tuple(slice(begin, end) for begin, end in box)]


def start(plan: Plan, worker: Worker, weights: Mapping[str, Array]) -> None:
    """Give a rank its pieces of the weights; moments begin at zero."""
    for value in plan.graph.with_role(Role.VARIABLE):
        home = home_of(plan.graph, plan.layout.stages, plan.layout.signatures, value.name)
        assert home is not None
        placement = plan.layout.stages.placements[home.stage]
        box = local_box(value.spec.shape, home.layout, placement.mesh, placement.coords(worker.rank))
        known = value.name in weights
        worker.write(
            value.name, given_piece(value, box, weights[value.name]) if known else initial_piece(value, box, seed=0)
        )
