"""Tied messages: what the two ends of a pipeline hand each other once per step, under layouts (`bounds.tied`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from strategy.bounds.tied import NOT_TIED, TiedMessages, tied_values
from strategy.cost.cost import CostModel
from strategy.graph.signature import Signature
from strategy.layout.convert import Converter
from strategy.layout.layout import Home, home_of
from strategy.sbp.placement import Placement
from strategy.space.space import SearchSpace


def tied_messages(
    space: SearchSpace, signatures: Mapping[str, Signature], cost: CostModel, placements: Sequence[Placement]
) -> TiedMessages:
    """Between the first and the last of several stages.

    Args:
        space: of the short model on one stage.
        signatures: of its ops.
        cost: prices of conversions.
        placements: of the stages.
    """
    if len(placements) < 2:
        return NOT_TIED
    converter = Converter(cost, (placements[0], placements[-1]))
    return TiedMessages(*(_crossing_ns(space, signatures, converter, end) for end in range(2)))


def _crossing_ns(space: SearchSpace, signatures: Mapping[str, Signature], converter: Converter, end: int) -> int:
    """Of what one end of the model has once per step, and the other reads: 0 is the first stage, 1 the last."""
    graph, total = space.graph, 0.0
    for name, readers in tied_values(graph, end):
        wanted = dict.fromkeys(
            layout
            for op in readers
            for read, layout in zip(op.inputs, signatures[op.name].inputs, strict=True)
            if read == name
        )
        home = home_of(graph, space.stages, signatures, name)
        if home is not None:
            for layout in wanted:
                spec = graph.values[name].spec
                total += sum(converter.prices_ns(spec, Home(end, home.layout), 1 - end, layout))
    return int(total)
