"""Least copies: what moves between a device and its host in a micro-batch, where activations wait there.

Copies have streams of their own and go on beside the passes (`layout.objective`). Every rank of a layer moves its part
of what waits, there and back; no layout makes that less than an even part.
"""

from __future__ import annotations

from strategy.bounds.least_work import NEGLIGIBLE, EvenOp, LeastWork
from strategy.graph.graph import act_rate
from strategy.layout.arrangement import act_kind
from strategy.layout.config import Offload, PlanConfig, Recompute
from strategy.program.program import ActKind
from strategy.sbp.tensor import Rate
from strategy.space.short_model import MIDDLE


def least_copies_ns(work: LeastWork, config: PlanConfig) -> int:
    """Of a layer, in a micro-batch."""
    if not config.offload.of_activations or not work.cost.cluster.overlaps or work.unusual:
        return 0
    if config.recompute not in work.copies:
        work.copies[config.recompute] = _copies_of_layer(work, config.recompute)
    parts, more, copies = config.tp * config.cp, config.micro_batch - 1, work.copies[config.recompute]
    total_s = sum(one.seconds(parts) + more * (two.seconds(parts) - one.seconds(parts)) for one, two in copies)
    return max(int(total_s * 1e9 * (1 - NEGLIGIBLE)) - len(copies), 0)  # a rounded price is no more than 1 ns off


def _copies_of_layer(work: LeastWork, recompute: Recompute) -> tuple[tuple[EvenOp, EvenOp], ...]:
    """With one sample, and with two."""
    one, two = work.graphs(recompute, Offload.ACTIVATIONS)
    ops = (op for op in one.ops if op.layer == MIDDLE and act_kind(op) is ActKind.COPY)
    names = [op.name for op in ops if act_rate(one, op) is Rate.MICRO_BATCH]
    return tuple((work.even_op(one, one.by_name[name]), work.even_op(two, two.by_name[name])) for name in names)
