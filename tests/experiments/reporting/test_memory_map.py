"""The memory map says what tensors are for: sums of gradients are no pass, and casts of parameters no activations."""

from __future__ import annotations

from dataclasses import replace

from experiments.explanation.simulated import simulated
from experiments.reporting.memory_map import GRADIENTS, PARAMETERS, memory_map
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from tests.support.small_plans import MODEL, config_of, deduced_plan, request


def test_sums_of_gradients_and_casts_of_parameters_are_named_as_such() -> None:
    training = Training(8, num_micro_batches=4, precision=Precision.BF16)
    config = config_of(training, dp=2, pp=2, zero_stage=1, zero_min_size=64)
    plan = deduced_plan(request(4, training, model=replace(MODEL, layers=4)), config, config.axes)
    for rank in memory_map(simulated(plan)):
        purposes = {name.partition(" ")[0]: purpose for purpose, name, _ in rank.tensors}
        assert purposes["layers.*.mlp.fc1.matmul:d1:float32:sum"] == GRADIENTS
        assert purposes["layers.*.mlp.fc1.weight:bfloat16"] == PARAMETERS
        assert sum(nbytes for _, _, nbytes in rank.tensors) == rank.peak_bytes
