"""Linear maps of layers multiply codes, each tensor is cast once, and training goes on as in bf16."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from executor.data.text import standard_library
from strategy.base.errors import InputError
from strategy.graph.graph import Graph, Phase
from strategy.graph.ops import REGISTRY, op_definition
from strategy.graph.ops.traits import Product
from strategy.models import find_model
from strategy.models.decoder import DecoderConfig
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training, evaluation_graph, training_graph
from strategy.sbp.tensor import DType, Rate
from tests.support.learned_codes import beside_single_precision
from tests.support.long_parameters import long_but
from tests.support.reference import Array, random_batch, run_graph, start_variables

CONFIG = GptConfig(layers=3, width=16, heads=2, sequence=8, vocabulary=29)
CODED = {name for op in REGISTRY.values() for name in (op.coded, op.block_coded) if name}
WAYS = (Precision.FP8_DELAYED, Precision.FP8_CURRENT)


def coded(precision: Precision, **settings: Any) -> Graph:
    return training_graph(CONFIG, Training(4, num_micro_batches=2, precision=precision, **settings))


def products(graph: Graph) -> list[tuple[str, tuple[DType, ...]]]:
    """Op and dtypes of what it multiplies, of all products of two matrices."""
    costs = ((op, op_definition(op.kind).cost) for op in graph.ops)
    plain = [op for op, cost in costs if isinstance(cost, Product) and cost == Product(operands=cost.operands)]
    return [(op.name, tuple(spec.dtype for spec in graph.specs(op.inputs[:2]))) for op in plain]


@pytest.mark.parametrize("precision", WAYS)
def test_layers_multiply_codes_and_the_head_does_not(precision: Precision) -> None:
    graph = coded(precision)
    narrow, wide = DType.FLOAT8_E4M3, DType.FLOAT8_E5M2
    kinds = [dtypes for name, dtypes in products(graph) if graph.by_name[name].layer is not None]
    assert len(kinds) == 3 * 4 * CONFIG.layers, "four maps, each with two gradients"
    assert kinds.count((narrow, narrow)) == kinds.count((wide, narrow)) == kinds.count((narrow, wide)) == len(kinds) / 3
    head = [dtypes for name, dtypes in products(graph) if graph.by_name[name].layer is None]
    assert head == [(DType.BFLOAT16, DType.BFLOAT16)] * 3


@pytest.mark.parametrize("precision", [*WAYS, Precision.FP8_BLOCK])
def test_layers_that_stand_alone_multiply_codes(precision: Precision) -> None:
    """DeepSeek-V3's first dense layer, and the one that predicts further ahead."""
    sizes = {"heads": 2, "key_heads": 2, "head_width": 128, "hidden": 256, "sequence": 6, "vocabulary": 16}
    experts = {"windows": (0, 0), "sparse": (0, 1), "experts": 4, "choices": 2, "expert_hidden": 128}
    model = DecoderConfig(layers=1, width=128, **sizes, before=1, **experts, ahead=1)  # type: ignore[arg-type]
    graph = training_graph(model, Training(4, precision=precision))
    maps = [op for op in graph.ops if op.kind in CODED and op.phase is Phase.FORWARD and not op.repeats]
    assert {op.any_layer for op in maps} == {"before.0", 0, "ahead.0"}
    whole = [op for op in graph.ops if op.kind == "matmul" and op.any_layer in ("before.0", "ahead.0")]
    assert all("router" in graph.parameter_of(op.inputs[-1]) for op in whole)


def test_experts_multiply_codes_and_their_routers_do_not() -> None:
    graph = training_graph(find_model("mixtral-tiny"), Training(4, precision=Precision.FP8_CURRENT))
    routers = [op for op in graph.ops if op.layer is not None and "router" in graph.parameter_of(op.inputs[-1])]
    read = {graph.values[name].spec.dtype for op in routers if op.phase is Phase.FORWARD for name in op.outputs}
    assert read == {DType.BFLOAT16}
    kinds = {op.kind for op in graph.ops if isinstance(op_definition(op.kind).cost, Product) and op.layer is not None}
    assert {"scaled_matmul", "scaled_grouped_matmul", "scaled_grouped_matmul_tn"} <= kinds
    assert not any(kind.startswith("grouped") for kind in kinds)


@pytest.mark.parametrize("precision", WAYS)
def test_a_tensor_is_cast_once_and_weights_once_per_step(precision: Precision) -> None:
    graph = coded(precision)
    casts = [op for op in graph.ops if op.kind == "quantize"]
    assert len({op.inputs[0] for op in casts}) == len(casts) == 3 * 4 * CONFIG.layers
    weights = [op for op in casts if graph.parameter_of(op.inputs[0])]
    assert len(weights) == 4 * CONFIG.layers
    assert {graph.values[op.outputs[0]].rate for op in weights} == {Rate.STEP}
    for op in weights:
        assert {graph.producer[name].layer for name in op.outputs} == {op.layer}
        assert len(graph.consumers[op.outputs[0]]) == 2, "forward, and the gradient of the input"


@pytest.mark.parametrize("precision", WAYS)
def test_layers_stay_alike(precision: Precision) -> None:
    graph = coded(precision)
    layers = [
        sorted((graph.template_of(op), op.kind) for op in graph.ops if op.layer == layer)
        for layer in range(CONFIG.layers)
    ]
    assert layers[0] == layers[1] == layers[2]


def test_the_history_is_the_largest_magnitude_over_the_micro_batches_newest_first() -> None:
    graph = coded(Precision.FP8_DELAYED, amax_history=3)
    variables, rng = start_variables(graph, np.random.default_rng(0)), np.random.default_rng(1)
    (record,) = [op for op in graph.ops if op.kind == "record_amax" and op.layer == 1]
    sums = graph.producer[record.inputs[0]]
    seen: list[list[float]] = []
    for step in range(2):
        largest = np.zeros(len(sums.inputs))

        def watch(values: Mapping[str, Array], largest: Array = largest) -> None:
            read = [graph.producer[name].inputs[0] for name in sums.inputs]
            np.maximum(largest, [np.abs(values[name].astype(float)).max() for name in read], out=largest)

        batches = [random_batch(graph, CONFIG.vocabulary, rng) for _ in range(2)]
        run_graph(graph, batches, variables, step=step, seen=watch)
        seen.append(largest.tolist())
    history = variables[record.updates[0]]
    np.testing.assert_array_equal(history, np.array([seen[1], seen[0], [0.0] * len(seen[0])]).T)


def test_a_figure_that_is_none_leaves_no_trace_in_the_history() -> None:
    graph = coded(Precision.FP8_DELAYED, skip_nonfinite=True)
    variables, rng = start_variables(graph, np.random.default_rng(0)), np.random.default_rng(1)
    batches = [random_batch(graph, CONFIG.vocabulary, rng) for _ in range(2)]
    run_graph(graph, batches, variables, step=0)
    before = {name: array.copy() for name, array in variables.items()}
    variables["token"][:] = np.inf
    with np.errstate(all="ignore"):
        run_graph(graph, batches, variables, step=1)
    histories = [name for op in graph.ops if op.kind == "record_amax" for name in op.updates]
    assert all(np.isfinite(variables[name]).all() for name in histories)
    np.testing.assert_array_equal(variables["position"], before["position"])


@pytest.mark.parametrize("precision", long_but(WAYS, 0))
def test_thirty_steps_follow_float32_and_all_codes_are_figures_of_their_dtype(precision: Precision) -> None:
    model = GptConfig(layers=2, width=32, heads=2, sequence=16, vocabulary=256)
    training = Training(8, lr=0.003, precision=precision)
    found, expected, strange = beside_single_precision(model, training, standard_library(), 30)
    assert strange == []
    # Of five steps together. With longer steps training is unstable, and how a processor rounds sums moves it by 6 %.
    np.testing.assert_allclose(means_of(found, 5), means_of(expected, 5), rtol=5e-3)
    assert found[-1] < 0.8 * found[0]


def means_of(losses: Array, steps: int) -> Array:
    """Of so many steps in turn."""
    return np.convolve(losses, np.full(steps, 1 / steps), mode="valid")


def test_codes_stand_for_what_they_are_made_of_to_the_digits_of_their_dtype() -> None:
    graph = training_graph(CONFIG, Training(4, precision=Precision.FP8_CURRENT))
    variables = start_variables(graph, np.random.default_rng(0))
    values = run_graph(graph, [random_batch(graph, CONFIG.vocabulary, np.random.default_rng(1))], variables)
    for op in graph.ops:
        if op.kind == "quantize":
            given = values[op.inputs[0]].astype(np.float64)
            stood = values[op.outputs[0]].astype(np.float64) * float(values[op.outputs[1]])
            digits = {"float8_e4m3fn": 3, "float8_e5m2": 2}[str(op.attrs["dtype"])]
            large = np.abs(given) > np.abs(given).max() * 2.0**-7
            np.testing.assert_allclose(stood[large], given[large], rtol=1.02 * 2.0 ** -(digits + 1), err_msg=op.name)


def test_what_is_evaluated_is_in_halves() -> None:
    graph = evaluation_graph(CONFIG, Training(4, precision=Precision.FP8_DELAYED))
    assert not any(value.spec.dtype.is_code for value in graph.values.values())


def test_a_model_without_layers_is_refused() -> None:
    with pytest.raises(InputError, match="no linear map to multiply in 8 bits"):
        training_graph(find_model("resnet-tiny"), Training(4, precision=Precision.FP8_CURRENT))


def test_no_history_is_refused() -> None:
    with pytest.raises(InputError, match="amax_history"):
        Training(4, amax_history=0)
