"""What a transformer layer holds between its forward and its backward pass, against the published formulas.

Korthikanti et al. 2022, arXiv:2205.05198, two bytes an element; sequence s, micro-batch b, width h, a heads, t ranks:

    equation 1, one device          s b h (34 + 5 a s / h)
    equation 2, tensor parallel     s b h (10 + 24 / t + 5 a s / (h t))
    equation 4, sequence parallel   s b h (34 + 5 a s / h) / t
    section 5, selective            without the terms with a

They hold a mask of one byte an element for every dropout; ours are drawn again. Values are counted where they are
written: a copy that is gathered for a product in the forward pass is here kept for the one in the backward pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from strategy.graph.graph import Graph, Op, Phase, Role
from strategy.graph.signature import Signature
from strategy.layout.arrangement import Pipeline, arrange
from strategy.layout.config import Recompute
from strategy.layout.convert import Converter, lay_out
from strategy.layout.layout import Layout, assign_stages
from strategy.passes.recompute import recompute
from strategy.passes.training import Training, training_graph
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import B, Sbp, Split, local_shape
from strategy.space.deduce import deduce
from strategy.space.rules import named_layouts, tensor_parallel
from strategy.space.space import free
from tests.support.megatron import MegatronConfig
from tests.support.small_plans import request

GPT3 = MegatronConfig(layers=3, width=12288, heads=96, sequence=2048, vocabulary=1024)
MIDDLE = 1
SBH = GPT3.sequence * GPT3.width
SCORES = GPT3.heads * GPT3.sequence**2
BETWEEN_PRODUCTS = ("norm.norm", "residual1", "residual2", "dropout1.dropout", "dropout2.dropout")
"""What is neither in attention nor in the MLP: whole on every rank, or split along the sequence."""


def megatron(graph: Graph, between: Sbp) -> Callable[[Op, Signature], bool]:
    """Columns, then rows, and one layout for what is between."""
    rule = tensor_parallel(graph)

    def keep(op: Op, signature: Signature) -> bool:
        if op.phase is not Phase.FORWARD:
            return True
        written = zip(op.outputs, signature.outputs, strict=True)
        placed = all(nd == (between,) for name, nd in written if name.endswith(BETWEEN_PRODUCTS))
        weights = ((n, nd[0]) for n, nd in named_layouts(op, signature) if graph.values[n].role is Role.VARIABLE)
        return placed and all(rule(op, name, sbp) for name, sbp in weights)

    return keep


def laid_out(graph: Graph, ranks: int, between: Sbp) -> Layout:
    placements = (Placement(tuple(range(ranks)), (ranks,), ("tensor",)),)
    stages = assign_stages(graph, placements)
    converter = Converter(request(ranks, Training(1)).cost, placements)
    keep = megatron(graph, between) if ranks > 1 else free
    return lay_out(graph, stages, deduce(graph, stages, converter, keep), converter)


def held_elements(ranks: int, between: Sbp, kind: Recompute) -> int:
    """Elements of the middle layer's activations on rank 0 when the backward pass begins; statistics of norms aside."""
    graph = recompute(training_graph(GPT3, Training(1)), kind)
    layout = laid_out(graph, ranks, between)
    begins = next(time for time, op in enumerate(graph.ops) if op.phase is Phase.BACKWARD)
    total = 0
    for tensor in arrange(graph, layout, Pipeline(1)).tensors:
        producer, shape = graph.producer.get(tensor.value), graph.values[tensor.value].spec.shape
        of_layer = producer is not None and producer.phase is Phase.FORWARD and producer.layer == MIDDLE
        held = tensor.lifetime.begin < begins < tensor.lifetime.end and tensor.name == tensor.value
        if of_layer and held and len(shape) > 2 and shape[-1] > 1:
            total += math.prod(local_shape(shape, tensor.layout, (ranks,), (0,)))
    return total


@pytest.mark.parametrize(
    ("ranks", "between", "kind", "published_mb"),
    [
        (1, B, Recompute.NONE, 2869),
        (8, B, Recompute.NONE, 579),
        (8, Split(1), Recompute.NONE, 359),
        (8, Split(1), Recompute.SELECTIVE, 107),
    ],
    ids=["one device", "tensor parallel", "sequence parallel", "selective"],
)
def test_a_layer_holds_what_the_paper_says(ranks: int, between: Sbp, kind: Recompute, published_mb: int) -> None:
    scores = 0 if kind is Recompute.SELECTIVE else SCORES // ranks
    apart = 1 if between == B else ranks
    published = 10 * SBH // apart + 24 * SBH // ranks + 5 * scores
    masks = 2 * SBH // apart + scores
    assert round(published / 1e6) == published_mb
    assert 2 * held_elements(ranks, between, kind) + masks == published


def test_full_recompute_holds_the_input_of_the_layer() -> None:
    assert held_elements(1, B, Recompute.FULL) == SBH
