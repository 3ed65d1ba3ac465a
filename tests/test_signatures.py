"""Every signature that an op lists is right, what it does not list is wrong or excused, and its gradient is right.

A seeded part of `sbplan doctor --ops`, kind by kind.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from executor.op_validation.completeness import check_completeness, read_reasons
from executor.op_validation.gradients import gradient_problems
from executor.op_validation.signatures import signature_text, try_listed
from executor.op_validation.subject import subjects_of
from executor.runtime.kernels.base import open_kernels
from executor.runtime.kernels.numpy import NumpyKernels
from experiments.machine.op_checks import check_kind
from strategy.graph import signature
from strategy.graph.ops import REGISTRY
from strategy.graph.ops.base import AxisSignature, Call, Example, OpDef, elementwise_signatures
from strategy.graph.ops.gradient import GradientBuilder
from strategy.sbp.sbp import P
from strategy.sbp.tensor import TensorSpec
from tests.support.long_parameters import long_but

MOST = [(3, 8), (12, 30)]
"""Signatures that are tried of those that an op lists, and of those that it does not."""
NUMPY = NumpyKernels()
KINDS = tuple(REGISTRY)


@pytest.mark.parametrize(("listed", "unlisted"), long_but(MOST, 0))
@pytest.mark.parametrize("kind", KINDS)
def test_an_op_is_what_it_says(kind: str, listed: int, unlisted: int) -> None:
    found = check_kind(kind, NUMPY, seed=1, most_listed=listed, most_unlisted=unlisted)
    print(found)
    assert found.problems == []


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_an_op_is_what_it_says_on_a_gpu(kind: str) -> None:
    found = check_kind(kind, open_kernels("cupy"))
    print(found)
    assert found.problems == []


def test_reasons_are_of_kinds_that_exist() -> None:
    assert {kind for kind in read_reasons() if kind not in REGISTRY} == {"*"}


def test_the_signatures_of_matmul_are_exactly_these() -> None:
    subject = subjects_of("matmul")[0]
    found = {signature_text(listed) for listed in signature.op_signatures(subject.graph, subject.op, (2,))}
    assert found == {
        "B, B -> B",
        "S(0), B -> S(0)",
        "B, S(1) -> S(1)",
        "S(1), S(0) -> P(sum)",
        "P(sum), B -> P(sum)",
        "B, P(sum) -> P(sum)",
    }


def cube() -> OpDef:
    """y = x^3, written down rightly."""

    def run(call: Call) -> None:
        call.outputs[0][...] = call.inputs[0] ** 3

    def gradient(builder: GradientBuilder) -> None:
        (x,) = builder.op.inputs
        grad = builder.output_gradient()
        for label in ("once", "twice"):
            grad = builder.emit(label, "times", (grad, x))
        builder.give(0, builder.emit("thrice", "add_n", (grad, grad, grad)))

    return OpDef(
        "cube",
        lambda inputs, updates, attrs: (inputs[0],),
        lambda inputs, outputs, attrs: inputs[0].size,
        lambda inputs, outputs, attrs, parts: elementwise_signatures(inputs[0].shape, 1),
        run,
        gradient,
        examples=(Example((TensorSpec((5, 8)),)),),
    )


def times() -> OpDef:
    """x y, of one shape."""

    def run(call: Call) -> None:
        call.outputs[0][...] = call.inputs[0] * call.inputs[1]

    return replace(
        cube(),
        kind="times",
        run=run,
        gradient=None,
        signatures=lambda inputs, outputs, attrs, parts: elementwise_signatures(inputs[0].shape, 2),
        examples=(Example((TensorSpec((5, 8)), TensorSpec((5, 8)))),),
    )


@pytest.fixture
def register(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Adds kinds to the registry while a test runs; what is remembered of signatures is of other kinds then."""
    signature._enumerate.cache_clear()

    def add(*definitions: OpDef) -> None:
        for definition in definitions:
            monkeypatch.setitem(REGISTRY, definition.kind, definition)  # type: ignore[arg-type]

    return add


def test_a_right_op_passes(register: Any) -> None:
    register(cube(), times())
    found = check_kind("cube", NUMPY)
    assert found.problems == []
    assert (found.listed, found.gradients) == (3 * 3 + 9, 1)
    assert found.uneven > 0


def test_a_wrong_signature_is_noticed(register: Any) -> None:
    def wrong(inputs: Any, outputs: Any, attrs: Any, parts: int) -> list[AxisSignature]:
        return [*elementwise_signatures(inputs[0].shape, 1), AxisSignature((P,), (P,))]

    register(replace(cube(), signatures=wrong), times())
    (subject,) = subjects_of("cube")
    problems = [str(verdict) for verdict in try_listed(subject, NUMPY, meshes=((2,),)) if verdict.problem]
    assert len(problems) == 1
    assert problems[0].startswith("cube, example 0, mesh [2]: P(sum) -> P(sum): op as P(sum): off by")


def test_a_missing_signature_is_noticed(register: Any) -> None:
    register(replace(cube(), signatures=lambda inputs, outputs, attrs, parts: []), times())
    (subject,) = subjects_of("cube")
    right = {str(s.inputs[0][0]) for found in check_completeness(subject, NUMPY, meshes=((3,),)) for s in found.right}
    assert {"S(0)", "S(1)"} <= right
    assert "P(sum)" not in right


def test_a_result_that_is_not_written_in_full_is_noticed(register: Any) -> None:
    def run(call: Call) -> None:
        call.outputs[0][1:] = call.inputs[0][1:] ** 3

    register(replace(cube(), run=run), times())
    problems = check_kind("cube", NUMPY, meshes=((2,),), most_unlisted=0).problems
    assert [problem.rpartition(": ")[2] for problem in problems[:2]] == [
        "copies differ",
        "off by inf of the largest element",
    ]


def test_a_wrong_gradient_is_noticed(register: Any) -> None:
    def gradient(builder: GradientBuilder) -> None:
        builder.give(0, builder.emit("once", "times", (builder.output_gradient(), builder.op.inputs[0])))

    register(replace(cube(), gradient=gradient), times())
    (subject,) = subjects_of("cube")
    (problem,) = gradient_problems(subject, NUMPY)
    assert "finite difference" in problem


def test_a_gradient_that_is_left_out_is_noticed(register: Any) -> None:
    register(replace(cube(), gradient=lambda builder: None), times())
    (subject,) = subjects_of("cube")
    assert list(gradient_problems(subject, NUMPY)) == ["cube, example 0: the rule gives input 0 no gradient"]


def test_examples_that_show_nothing_are_a_failure(register: Any) -> None:
    def zero(inputs: Any) -> Any:
        return 0 * inputs[0]

    register(cube(), times(), replace(times(), kind="vain", examples=(replace(times().examples[0], derive={1: zero}),)))
    problems = check_kind("vain", NUMPY, most_unlisted=0).problems
    assert problems == ["vain: all results of its examples are zero, which shows nothing"]


def test_a_kind_without_example_is_a_failure(register: Any) -> None:
    register(replace(cube(), examples=()))
    assert check_kind("cube", NUMPY).problems == ["cube: has no example, so nothing of it is tried"]
