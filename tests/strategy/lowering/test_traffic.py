"""Bytes per step by hand: what data parallelism and a pipeline must send."""

from __future__ import annotations

import pytest

from executor.train import program_of
from strategy.lowering.traffic import sent_bytes_per_step
from strategy.passes.training import Training
from strategy.program.program import BoxingTask, TransferTask
from tests.support.small_plans import MODEL, config_of, plan_by_rules, request


@pytest.mark.parametrize("micro_batches", [1, 2])
def test_data_parallel_reduces_each_gradient_once(micro_batches: int) -> None:
    """All-reduce of T bytes over two ranks sends T from each, within what uneven halves add; scalars follow."""
    training = Training(global_batch=4, num_micro_batches=micro_batches)
    plan = plan_by_rules(request(2, training), config_of(training, dp=2), ("data", "tensor"))
    sent = sent_bytes_per_step(program_of(plan))
    gradients = 4 * MODEL.parameters
    assert sent == plan.claims.sent_bytes_per_step
    assert gradients <= sum(sent) / 2 <= gradients + 1000


def test_a_pipeline_sends_activations_and_gradients() -> None:
    training = Training(global_batch=4, num_micro_batches=2)
    plan = plan_by_rules(request(2, training), config_of(training, pp=2), ("data", "tensor"))
    program = program_of(plan)
    assert not any(isinstance(actor.task, BoxingTask) for actor in program.actors)
    activation = 4 * 4 * MODEL.sequence * MODEL.width
    table = 4 * MODEL.vocabulary * MODEL.width
    sent = sent_bytes_per_step(program)
    assert sent[0] >= activation + table
    assert sent[1] >= activation
    for rank in range(2):
        messages = [
            (actor.acts_per_step, message)
            for actor in program.actors
            if actor.rank == rank and isinstance(actor.task, TransferTask)
            for message in actor.task.messages
            if message.source == rank != message.target
        ]
        total = 0
        for acts, message in messages:
            size = 4
            for begin, end in message.box:
                size *= end - begin
            total += acts * size
        assert sent[rank] == total


def test_one_rank_sends_nothing() -> None:
    training = Training(global_batch=2)
    plan = plan_by_rules(request(1, training), config_of(training), ("data", "tensor"))
    assert sent_bytes_per_step(program_of(plan)) == (0,)
