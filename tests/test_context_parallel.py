"""Context parallelism: attention over split positions in three ways, each of which computes what one device computes.

gather   queries stay split, keys and values are gathered; their gradients are reduced and scattered
ring     keys and values stay split; the rows' maxima are reduced, then the sums of terms below them
ulysses  positions are exchanged for heads before attention, and back after it
"""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from strategy.builder import GraphBuilder
from strategy.convert import Converter, lay_out
from strategy.cost import CostModel
from strategy.graph import Attrs, Graph, Phase, Role, Value
from strategy.layout import Layout, assign_stages
from strategy.lowering.arrangement import Pipeline
from strategy.lowering.schedule import Schedule
from strategy.placement import Placement
from strategy.program import ActKind
from strategy.sbp import B, P, Partial, Reduce, Sbp, Split
from strategy.signature import Signature, op_signatures
from strategy.tensor import DType, Rate, Shape, TensorSpec
from tests.campaigns.layouts import check
from tests.small_plans import cluster
from tests.whole_graphs import Operand, WholeCase

BATCH, SEQUENCE, HEADS, WIDTH = 2, 7, 6, 4
SEQ = Split(1)
LSE_SEQ = Split(2)
P_MAX = Partial(Reduce.MAX)
Chosen = Mapping[str, tuple[tuple[Sbp, ...], tuple[Sbp, ...]]]
"""Op -> SBPs of inputs and outputs."""
ENDS: Chosen = {name: ((SEQ,), (SEQ,)) for name in ("q", "k", "v", "do", "y", "gq", "gk", "gv")}
GATHER: Chosen = {
    **ENDS,
    "attention": ((SEQ, B, B), (SEQ, LSE_SEQ)),
    "grad": ((SEQ, B, B, SEQ, LSE_SEQ, SEQ), (SEQ, P, P)),
}
RING: Chosen = {
    **ENDS,
    "top": ((B, SEQ), (P_MAX,)),
    "attention": ((B, SEQ, SEQ, B), (P,)),
    "grad": ((B, SEQ, SEQ, B, B), (P, SEQ, SEQ)),
}
HEAD = Split(2)
ULYSSES: Chosen = {
    **ENDS,
    "attention": ((HEAD, HEAD, HEAD), (HEAD, SEQ)),
    "grad": ((HEAD, HEAD, HEAD, HEAD, SEQ, HEAD), (HEAD, HEAD, HEAD)),
}


def graph_of(way: str, key_heads: int) -> tuple[Graph, dict[str, Operand]]:
    """Queries, keys and values of split positions, attention, and its gradient, of split positions again."""
    builder = GraphBuilder()
    q: Shape = (BATCH, SEQUENCE, HEADS, WIDTH)
    k: Shape = (BATCH, SEQUENCE, key_heads, WIDTH)
    terms: Shape = (BATCH, SEQUENCE, HEADS, WIDTH + 1)
    shapes = {"q": q, "k": k, "v": k, "do": terms if way == "ring" else q}
    operands = {}
    for name, shape in shapes.items():
        spec = TensorSpec(shape, DType.FLOAT64)
        operands[f"{name}0"] = Operand(spec, None, 0)
        builder.declare(Value(f"{name}0", spec, Rate.MICRO_BATCH, Role.INPUT))
        builder.add(name, "gelu", (f"{name}0",))
    attrs: Attrs = {"causal": 1, "group": HEADS // key_heads}
    if way == "ring":
        builder.add("top", "attention_max", ("q", "k"), attrs=attrs)
        read, kind = ("q", "k", "v", "top"), "attention_terms"
    else:
        read, kind = ("q", "k", "v"), "attention"
    written = builder.add("attention", kind, read, labels=("lse",), attrs=attrs)
    builder.add("y", "gelu", ("attention",))
    inputs = (*read, *(written if way != "ring" else ()), "do")
    builder.add("grad", f"{kind}_grad", inputs, labels=("dk", "dv"), attrs=attrs, phase=Phase.BACKWARD)
    for name, gradient in (("gq", "grad"), ("gk", "grad.dk"), ("gv", "grad.dv")):
        builder.add(name, "gelu", (gradient,), phase=Phase.BACKWARD)
    return builder.build(), operands


def laid_out(graph: Graph, chosen: Chosen, ranks: int) -> tuple[Layout, CostModel]:
    placements = (Placement(tuple(range(ranks)), (ranks,), ("context",)),)
    stages, cost = assign_stages(graph, placements), CostModel(cluster(ranks), {})
    signatures = {}
    for op in graph.ops:
        reads, writes = chosen[op.name]
        signatures[op.name] = Signature(tuple((s,) for s in reads), tuple((s,) for s in writes))
        assert signatures[op.name] in op_signatures(graph, op, (ranks,)), op.name
    return lay_out(graph, stages, signatures, Converter(cost, placements)), cost


def steps_of(layout: Layout) -> dict[str, list[ActKind]]:
    return {c.copy.value: [step.kind for step in c.steps] for c in layout.conversions if c.steps}


WAYS = {"gather": GATHER, "ring": RING, "ulysses": ULYSSES}
GATHERED = [ActKind.ALL_GATHER]
EXCHANGED = [ActKind.ALL_TO_ALL]
SCATTERED = [ActKind.REDUCE_SCATTER]
STEPS = {
    "gather": {"k": GATHERED, "v": GATHERED, "grad.dk": SCATTERED, "grad.dv": SCATTERED},
    "ring": {
        **{"q": GATHERED, "do": GATHERED},
        **{"top": [ActKind.ALL_REDUCE], "attention": SCATTERED, "grad": SCATTERED},
    },
    "ulysses": {
        **dict.fromkeys(("q", "k", "v", "do"), EXCHANGED),
        **dict.fromkeys(("attention", "grad", "grad.dk", "grad.dv"), EXCHANGED),
    },
}


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize(("way", "key_heads"), [("gather", 2), ("gather", 6), ("ring", 3), ("ring", 6), ("ulysses", 6)])
def test_attention_over_split_positions(way: str, key_heads: int, ranks: int) -> None:
    """Seven positions, so that the pieces are uneven; grouped heads where positions alone are split."""
    graph, operands = graph_of(way, key_heads)
    layout, cost = laid_out(graph, WAYS[way], ranks)
    pipeline = Pipeline(1, Schedule("1f1b"), False)
    case = WholeCase(5, graph, (), {}, operands, layout, pipeline, cost, DType.FLOAT64)
    assert list(check(case)) == []
    assert steps_of(layout) == STEPS[way]
