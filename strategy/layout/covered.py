"""Covered: collectives of a backward pass that products for gradients of weights are computed beside.

    compute | op:dx   op:dw             | op before        d_in is exchanged along the tensor axis; the op before waits
    inter   |         exchange of d_in  |                  for it, but the gradient of the weight comes first

A conversion is covered for as long as the products take that stand between the op that writes its value and the first
that reads it, with each of their operations shared out evenly among the ranks of a stage, at the best rate that there
is: that is the same for all layouts. Schedules that make a pass of their own of gradients of weights have nothing
there. Megatron-LM hides the same (`async_tensor_model_parallel_allreduce`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import cast

import numpy as np

from strategy.base.identity import Identity
from strategy.base.units import to_ns
from strategy.cost.cost import CostModel, op_features
from strategy.cost.measurement import Features
from strategy.graph.graph import Graph, Op, Phase
from strategy.graph.signature import op_signatures
from strategy.graph.weight_gradients import weight_gradients
from strategy.layout.arrangement import Arrangement
from strategy.sbp.tensor import Rate


def covering_products(graph: Graph) -> Mapping[str, tuple[Features, ...]]:
    """Value -> the products that cover its conversion, whole, of one micro-batch; of values that have any."""
    return _known(Identity(graph))


@lru_cache(maxsize=8)
def _known(known: Identity) -> Mapping[str, tuple[Features, ...]]:
    graph = cast(Graph, known.held)
    apart, place = weight_gradients(graph), {op.name: at for at, op in enumerate(graph.ops)}
    whole = {at: _whole(graph, op) for at, op in enumerate(graph.ops) if op.name in apart}
    products = [(at, each) for at, each in whole.items() if each.product is not None]
    before = np.searchsorted([at for at, _ in products], np.arange(len(graph.ops) + 1)).tolist()
    found = {}
    for name, value in graph.values.items():
        writer, reader = graph.producer.get(name), next(iter(graph.consumers[name]), None)
        if writer is None or reader is None or value.rate is not Rate.MICRO_BATCH:
            continue
        if {writer.phase, reader.phase} != {Phase.BACKWARD} or apart.intersection((writer.name, reader.name)):
            continue
        between = products[before[place[writer.name]] : before[place[reader.name]]]
        if between:
            found[name] = tuple(each for _, each in between)
    return found


def _whole(graph: Graph, op: Op) -> Features:
    """Of an op on one rank."""
    (signature, *_) = op_signatures(graph, op, (1, 1))
    return op_features(graph, op, signature, (1, 1))


def products_ns(products: Sequence[Features], cost: CostModel, ranks: int) -> int:
    """For how long these cover, among so many ranks."""
    return to_ns(sum(whole.flop // ranks * cost.least_of(whole).s_per_flop for whole in products))


def covers_ns(graph: Graph, value: str, cost: CostModel, ranks: int) -> int:
    """For how long the conversion of a value is covered on the stage that writes it, of so many ranks."""
    return products_ns(covering_products(graph).get(value, ()), cost, ranks)


def covered_acts(
    graph: Graph, arrangement: Arrangement, took_ns: Sequence[int], cost: CostModel, ranks: int
) -> Iterator[tuple[int, int]]:
    """(number, nanoseconds) of the acts of which so much is covered.

    Args:
        graph: that is arranged.
        arrangement: all acts.
        took_ns: of each.
        cost: prices.
        ranks: of a stage.
    """
    products, left = covering_products(graph), dict[int, int]()
    by_op = {action.op: action for action in arrangement.actions if action.op} if products else {}
    for at, action in enumerate(arrangement.actions):
        if action.step is None:
            continue
        value, source = arrangement.tensors[action.writes[0]].value, action.reads[0]
        if value not in products:
            continue
        writer, reader = by_op[graph.producer[value].name], by_op[graph.consumers[value][0].name]
        if any((one.stage, one.phase, one.lap) != (action.stage, action.phase, action.lap) for one in (writer, reader)):
            continue
        if source not in left:  # the first step of a conversion
            left[source] = covers_ns(graph, value, cost, ranks)
        covered = min(took_ns[at], left[source])
        left[action.writes[0]] = left[source] - covered
        if covered:
            yield at, covered
