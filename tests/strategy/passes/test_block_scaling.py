"""Linear maps of layers multiply codes with a scale per block, along what a product sums over."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from executor.data.text import standard_library
from strategy.base.errors import InputError
from strategy.graph.graph import Graph, Phase
from strategy.graph.ops import op_definition
from strategy.graph.ops.traits import Operands, Product
from strategy.layout.config import PlanConfig
from strategy.models import find_model
from strategy.models.gpt import GptConfig
from strategy.models.mixtral import MixtralConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.planned import planned_graph
from strategy.passes.training import Training, training_graph
from strategy.sbp.tensor import DType, Rate
from tests.support.learned_codes import beside_single_precision
from tests.support.long_parameters import long_but
from tests.support.small_plans import config_of

CONFIG = GptConfig(layers=3, width=64, heads=2, sequence=32, vocabulary=29)
EXPERTS = MixtralConfig(2, 32, 2, 2, 32, 4, 2, 32, 29)
BLOCKS = {Precision.FP8_BLOCK: 128, Precision.MXFP8: 32, Precision.NVFP4: 16}
SQUARE = (Precision.FP8_BLOCK, Precision.NVFP4)


def coded(precision: Precision) -> Graph:
    return training_graph(CONFIG, Training(4, num_micro_batches=2, precision=precision))


@pytest.mark.parametrize("precision", BLOCKS)
def test_blocks_lie_along_what_is_summed_over(precision: Precision) -> None:
    graph, size = coded(precision), BLOCKS[precision]
    w = (size, size) if precision in SQUARE else None
    expected = {
        Operands.NN: (1, size, *(w or (size, 1))),
        Operands.NT: (1, size, *(w or (1, size))),
        Operands.TN: (size, 1, size, 1),
    }
    found = []
    for op in graph.ops:
        cost = op_definition(op.kind).cost
        if isinstance(cost, Product) and cost.blocks:
            assert op.attrs["blocks"] == expected[cost.operands], op.name
            found.append(cost.operands)
    assert {operands: found.count(operands) for operands in Operands} == dict.fromkeys(Operands, 4 * CONFIG.layers)
    head = [op for op in graph.ops if op.layer is None and isinstance(op_definition(op.kind).cost, Product)]
    assert [graph.values[op.inputs[0]].spec.dtype for op in head] == [DType.BFLOAT16] * 3


@pytest.mark.parametrize("precision", BLOCKS)
def test_a_tensor_is_cast_once_per_direction_and_weights_once_per_step(precision: Precision) -> None:
    graph = coded(precision)
    casts = [op for op in graph.ops if op.kind == "quantize_blocks"]
    assert len({(op.inputs[0], op.attrs["blocks"]) for op in casts}) == len(casts)
    of_weights = [op for op in casts if graph.parameter_of(op.inputs[0])]
    assert len(of_weights) == 4 * CONFIG.layers * (1 if precision in SQUARE else 2)
    assert {graph.values[op.outputs[0]].rate for op in of_weights} == {Rate.STEP}
    assert len(casts) - len(of_weights) == 2 * 2 * 4 * CONFIG.layers, "activations and gradients, in two directions"
    for op in casts:
        readers = {reader.phase for reader in graph.consumers[op.outputs[0]]}
        assert op.phase is (Phase.FORWARD if Phase.FORWARD in readers else op.phase)
        is_input = graph.producer[op.inputs[0]].phase is Phase.FORWARD
        assert op.phase is Phase.FORWARD or not is_input or precision is Precision.MXFP8, "x need not be kept"


@pytest.mark.parametrize("precision", BLOCKS)
def test_bytes_of_codes_and_scales_are_counted(precision: Precision) -> None:
    graph, size = coded(precision), BLOCKS[precision]
    (cast,) = [op for op in graph.ops if op.name == "layers.1.mlp.fc2.matmul:x0.rows"]
    codes, scales = graph.specs(cast.outputs[:2])
    elements = 2 * 32 * 256
    assert codes.nbytes == elements // (2 if precision is Precision.NVFP4 else 1)
    assert scales.nbytes == elements // size * (4 if precision is Precision.FP8_BLOCK else 1)


@pytest.mark.parametrize("precision", BLOCKS)
def test_layers_stay_alike(precision: Precision) -> None:
    graph = coded(precision)
    layers = [
        sorted((graph.template_of(op), op.kind) for op in graph.ops if op.layer == layer)
        for layer in range(CONFIG.layers)
    ]
    assert layers[0] == layers[1] == layers[2]


@pytest.mark.parametrize("precision", BLOCKS)
def test_experts_multiply_codes_but_for_gradients_of_their_weights(precision: Precision) -> None:
    graph = training_graph(EXPERTS, Training(4, precision=precision))
    kinds = [op.kind for op in graph.ops if "grouped" in op.kind]
    assert set(kinds) == {"block_scaled_grouped_matmul", "grouped_matmul_tn"}


@pytest.mark.parametrize("precision", long_but(BLOCKS, 2))
def test_twenty_steps_follow_float32_and_all_codes_are_figures_of_their_dtype(precision: Precision) -> None:
    model = GptConfig(layers=2, width=32, heads=2, sequence=32, vocabulary=256)
    training = Training(4, lr=0.01, precision=precision)
    found, expected, strange = beside_single_precision(model, training, standard_library(), 20)
    assert strange == []
    np.testing.assert_allclose(found, expected, rtol=6e-2 if precision is Precision.NVFP4 else 3e-2)
    assert found[-1] < 0.85 * found[0]


@pytest.mark.parametrize(("precision", "size"), [(Precision.MXFP8, 32), (Precision.NVFP4, 16)])
def test_dims_that_blocks_do_not_divide_are_named(precision: Precision, size: int) -> None:
    model = replace(CONFIG, width=72)
    with pytest.raises(InputError, match=rf"layers\.0\.attn\.qkv\.matmul.*blocks of {size} do not divide") as error:
        training_graph(model, Training(4, precision=precision))
    assert "[4, 32, 72]" in str(error.value)
    assert "layers.1" not in str(error.value), "each kind of map once"
    with pytest.raises(InputError, match="do not divide"):
        training_graph(replace(CONFIG, sequence=24), Training(4, precision=precision))


def test_the_last_block_of_128_may_be_shorter() -> None:
    graph = training_graph(replace(CONFIG, width=72), Training(4, precision=Precision.FP8_BLOCK))
    (cast,) = [op for op in graph.ops if op.name == "layers.0.mlp.fc1.weight:bfloat16:squares"]
    assert graph.specs(cast.outputs)[1].shape == (1, 3)


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(InputError, match="no linear map to multiply on codes"):
        training_graph(find_model("resnet-tiny"), Training(4, precision=Precision.MXFP8))


def test_maps_on_codes_of_blocks_are_not_tiled() -> None:
    training = Training(4, precision=Precision.MXFP8)
    config: PlanConfig = config_of(training, tiles=2)
    with pytest.raises(InputError, match="scale per block are not tiled"):
        planned_graph(CONFIG, training, config)
