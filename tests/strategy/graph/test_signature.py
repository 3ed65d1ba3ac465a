"""Signatures over meshes: their order, and the pieces that they leave. `tests/test_signatures.py` runs them."""

from __future__ import annotations

import itertools
import math

from strategy.graph.signature import op_signatures, piece_specs
from strategy.sbp.sbp import B, P, Sbp, Split, is_legal_layout, local_box
from strategy.sbp.tensor import Shape, TensorSpec, box_shape
from tests.strategy.graph.single_op_graphs import SingleOpGraph, single_op_graphs

MESHES: tuple[Shape, ...] = ((2,), (3,), (2, 2))


def test_all_broadcast_comes_first_and_order_is_fixed() -> None:
    for case, mesh in itertools.product(single_op_graphs(), MESHES):
        graph = case.graph()
        found = op_signatures(graph, graph.ops[0], mesh)
        assert all(nd == (B,) * len(mesh) for nd in found[0].layouts)
        assert len(set(found)) == len(found)


def test_an_axis_of_one_rank_is_broadcast() -> None:
    graph = SingleOpGraph("matmul", ((4, 4), (4, 4))).graph()
    narrow = op_signatures(graph, graph.ops[0], (1, 2))
    assert [tuple(nd[1:] for nd in s.layouts) for s in narrow] == [
        s.layouts for s in op_signatures(graph, graph.ops[0], (2,))
    ]


def test_listed_signatures_never_leave_a_rank_empty() -> None:
    for case in single_op_graphs():
        graph = case.graph()
        (op,) = graph.ops
        specs = graph.specs((*op.inputs, *op.outputs, *op.updates))
        for mesh in ((4,), (2, 2), (3,)):
            for signature in op_signatures(graph, op, mesh):
                for spec, nd in zip(specs, signature.layouts, strict=True):
                    assert all(
                        math.prod(box_shape(local_box(spec.shape, nd, mesh, rank))) > 0
                        for rank in itertools.product(*map(range, mesh))
                    )


def test_piece_specs_are_those_of_the_busiest_rank() -> None:
    spec = TensorSpec((7, 5))
    options: tuple[Sbp, ...] = (B, P, Split(0), Split(1))
    for nd in itertools.product(options, repeat=2):
        if is_legal_layout(spec.shape, nd, (2, 2)):
            boxes = [local_box(spec.shape, nd, (2, 2), rank) for rank in itertools.product(range(2), repeat=2)]
            largest = max((box_shape(box) for box in boxes), key=math.prod)
            assert piece_specs((spec,), (nd,), (2, 2)) == (TensorSpec(largest),)
