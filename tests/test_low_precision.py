"""On codes of 8 bits as in halves, a plan computes what one device computes, up to the digits of the codes."""

from __future__ import annotations

from typing import Any

import pytest

from strategy.graph.signature import op_signatures
from strategy.layout.config import Recompute
from strategy.models.gpt import GptConfig
from strategy.models.mixtral import MixtralConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import training_graph
from strategy.plan.plan import Plan
from strategy.plan.verify import verify
from tests.support.long_parameters import long_but
from tests.support.small_plans import config_of, corpus, deduced_plan, lowered, plan_by_rules, request, train
from tests.test_mixed_precision import differences, how_of, plan_of, plan_with

ROUNDING = 2.0**-4
"""Half the distance from 1 to the next code; where partial sums differ in a half, some codes are the next ones."""
DELAYED, CURRENT = Precision.FP8_DELAYED, Precision.FP8_CURRENT


@pytest.mark.parametrize(
    ("precision", "degrees"), long_but([(DELAYED, (2, 2, 1)), (CURRENT, (1, 3, 1)), (CURRENT, (2, 1, 2))], 2)
)
def test_ranks_train_as_one_device_does_on_codes(precision: Precision, degrees: tuple[int, int, int]) -> None:
    plan = plan_of(precision, *degrees)
    program = lowered(plan)
    assert verify(plan, program) == []
    loss, worst = differences(plan, train(plan, corpus(plan.model.vocabulary), steps=3, program=program), 3)
    assert loss < 2.0**-8
    assert worst < 8 * ROUNDING


@pytest.mark.parametrize(
    ("precision", "technique"),
    long_but(
        [
            (DELAYED, "zero 1"),
            (DELAYED, "zero 3 in stages"),
            (CURRENT, "zero 2"),
            (DELAYED, "recompute in stages"),
            (CURRENT, "recompute"),
            (DELAYED, "zbv"),
        ],
        1,
    ),
)
def test_codes_go_with_every_technique(precision: Precision, technique: str) -> None:
    plan = plan_with(technique, precision)
    program = lowered(plan)
    assert verify(plan, program) == []
    loss, worst = differences(plan, train(plan, corpus(plan.model.vocabulary), steps=3, program=program), 3)
    assert loss < 2.0**-8
    assert worst < 8 * ROUNDING


MODELS = {
    Precision.FP8_BLOCK: GptConfig(layers=2, width=256, heads=2, sequence=128, vocabulary=17),
    Precision.MXFP8: GptConfig(layers=2, width=64, heads=2, sequence=32, vocabulary=17),
    Precision.NVFP4: GptConfig(layers=2, width=64, heads=2, sequence=32, vocabulary=17),
}
"""Whose dims two ranks can split without cutting a block."""
IN_BLOCKS: list[tuple[Precision, tuple[int, int, int], dict[str, Any]]] = [
    (Precision.FP8_BLOCK, (1, 2, 1), {}),
    (Precision.MXFP8, (2, 2, 1), {}),
    (Precision.NVFP4, (1, 2, 2), {}),
    (Precision.MXFP8, (2, 1, 2), {"zero_stage": 3, "zero_min_size": 1}),
    (Precision.NVFP4, (2, 1, 1), {"zero_stage": 2, "zero_min_size": 1}),
    (Precision.FP8_BLOCK, (2, 1, 1), {"zero_stage": 3, "zero_min_size": 1}),
    (Precision.MXFP8, (1, 1, 2), {"schedule": "zbv"}),
    (Precision.NVFP4, (1, 2, 1), {"recompute": Recompute.FULL}),
]


def in_blocks(precision: Precision, degrees: tuple[int, int, int], settings: dict[str, Any]) -> Plan:
    how, (dp, tp, pp) = how_of(precision), degrees
    config = config_of(how, dp=dp, tp=tp, pp=pp, **settings)
    asked = request(dp * tp * pp, how, model=MODELS[precision])
    if not config.zero_stage:
        return deduced_plan(asked, config, ("data", "tensor"))
    return plan_by_rules(asked, config, ("samples split", "tensor"))


@pytest.mark.parametrize(("precision", "degrees", "settings"), long_but(IN_BLOCKS, 4))
def test_ranks_train_as_one_device_does_on_codes_with_a_scale_per_block(
    precision: Precision, degrees: tuple[int, int, int], settings: dict[str, Any]
) -> None:
    plan = in_blocks(precision, degrees, settings)
    program = lowered(plan)
    assert verify(plan, program) == []
    loss, worst = differences(plan, train(plan, corpus(plan.model.vocabulary), steps=3, program=program), 3)
    assert loss < 2.0**-8
    # In 4 bits half the distance from 1 to the next code is 2^-2.
    assert worst < 8 * (2.0**-2 if precision is Precision.NVFP4 else ROUNDING)


@pytest.mark.parametrize("precision", MODELS)
def test_a_tensor_axis_may_split_codes_and_their_scales(precision: Precision) -> None:
    graph = training_graph(MODELS[precision], how_of(precision))
    for name, first, second in (("fc1", "B", "S(1)"), ("fc2", "S(2)", "S(0)")):
        op = graph.by_name[f"layers.1.mlp.{name}.matmul"]
        listed = [[str(layout[0]) for layout in one.inputs[:4]] for one in op_signatures(graph, op, (2,))]
        assert [first, second, first, second] in listed
        codes, scales = graph.specs((op.inputs[1], op.inputs[3]))
        assert scales.shape == tuple(
            rows // block for rows, block in zip(codes.elements, op.attrs["blocks"][2:], strict=True)
        )


@pytest.mark.parametrize("precision", [CURRENT, Precision.NVFP4])
def test_amaxes_of_experts_that_are_shared_out_are_made_of_their_pieces(precision: Precision) -> None:
    how, model = how_of(precision), MixtralConfig(2, 32, 2, 2, 32, 4, 2, 32, 17)
    config = config_of(how, dp=2, ep=2, zero_stage=3, zero_min_size=1)
    plan = deduced_plan(request(2, how, model=model), config, config.axes)
    assert verify(plan) == []
    of_weights = [op for op in plan.graph.ops if op.kind == "amax" and plan.graph.parameter_of(op.inputs[0])]
    read = {str(sbp) for op in of_weights for sbp in plan.layout.signatures[op.name].inputs[0]}
    assert any(one.startswith("S(") for one in read)


def test_weights_are_gathered_as_codes() -> None:
    half, coded = (
        sum(plan_with("zero 3 in stages", precision).claims.sent_bytes_per_step)
        for precision in (Precision.BF16, DELAYED)
    )
    assert coded < 0.7 * half
