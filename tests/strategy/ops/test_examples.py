"""Products, norms, attention, convolution and pooling on their own examples: signatures, what is not listed, gradients.

Forward ops whose gradient rule takes an operand for a function of another one skip that operand.
"""

from __future__ import annotations

import math

import pytest

from strategy.ops import REGISTRY, attention, batch_matmul, batch_norm, conv, group_norm, matmul, norm, pool, rotary
from strategy.ops import split_attention as split
from strategy.sbp import is_legal_layout
from tests.strategy.ops.trial import Trial, combinations, gradient_errors, trials, unlisted_but_right, wrong_signatures

FAMILIES = (matmul, batch_matmul, norm, group_norm, batch_norm, attention, split, rotary, conv, pool)
KINDS = [definition.kind for family in FAMILIES for definition in family.OPS]
STATISTICS = {"batch_norm": (1, 2), "attention_terms": (3, 4)}
MOST_COMBINATIONS = 1300
LEAST_SIGNATURES = 10


@pytest.mark.parametrize("kind", KINDS)
def test_every_listed_signature_computes_the_whole_result(kind: str) -> None:
    executed = 0
    for trial in trials([kind]):
        count, wrong = wrong_signatures(trial)
        assert wrong == []
        executed += count
    assert executed >= LEAST_SIGNATURES


def bounded() -> list[Trial]:
    """The examples of which all combinations are few, at least one of every kind with at most three tensors."""
    found = []
    for trial in trials([kind for kind in KINDS if not REGISTRY[kind].examples[0].updates]):
        graph = trial.graph()
        (op,) = graph.ops
        specs = graph.specs((*op.inputs, *op.outputs))
        if math.prod(len(spec.shape) + 2 for spec in specs) <= MOST_COMBINATIONS:
            found.append(trial)
    return found


@pytest.mark.parametrize("trial", bounded(), ids=str)
def test_every_unlisted_combination_is_wrong(trial: Trial) -> None:
    tried, right = unlisted_but_right(trial)
    assert tried >= 10
    assert right == []


def test_the_bound_leaves_most_kinds_in() -> None:
    graph = Trial("batch_matmul", 0).graph()
    found = list(combinations(graph, (2,)))
    assert len(found) == 5**3
    assert all(is_legal_layout(graph.values["op"].spec.shape, signature.outputs[0], (2,)) for signature in found)
    assert {trial.kind for trial in bounded()} >= {"matmul", "conv2d", "conv2d_dx", "rms_norm", "max_pool", "attention"}


@pytest.mark.parametrize("trial", [t for t in trials(KINDS) if REGISTRY[t.kind].gradient is not None], ids=str)
def test_gradients_against_finite_differences(trial: Trial) -> None:
    errors = gradient_errors(trial, STATISTICS.get(trial.kind, ()))
    assert errors
    assert max(errors.values()) < 1e-4, errors


def test_every_forward_kind_has_a_gradient() -> None:
    without = {kind for kind in KINDS if REGISTRY[kind].gradient is None}
    statistics = {"square_deviations", "running_average", "attention_max"}
    assert without == {kind for kind in KINDS if kind.endswith(("_grad", "_tn", "_dx", "_dw", "_sums"))} | statistics


@pytest.mark.parametrize("kind", KINDS)
def test_examples_leave_no_dim_too_short(kind: str) -> None:
    """Along one axis of four ranks, some signature of an example splits something, and some dim is uneven."""
    sizes = [
        size
        for example in REGISTRY[kind].examples
        for spec in (*example.inputs, *example.updates)
        for size in spec.shape
    ]
    assert max(sizes) >= 4
    assert any(size % 2 for size in sizes)
