"""Sharing: what data-parallel ranks hold once between them instead of once each, as SBP along the data axis.

ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054) is a choice of layouts, and no runtime knows of it:

    stage 1   optimiser state and parameters S(d) where they are updated, gathered once per step;
              gradients accumulated as P, reduce-scattered once per step
    stage 2   gradients accumulated S(d): those of every micro-batch are reduce-scattered
    stage 3   parameters S(d) up to where they are used: gathered per micro-batch and pass, by way of a `repeat`

Small tensors stay whole. Other axes are free, so a tensor axis may split the same tensor again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from strategy.config import PlanConfig
from strategy.graph import Graph, Op, Phase, Role, act_rate
from strategy.sbp import B, P, Sbp, Split
from strategy.signature import Signature, op_signatures
from strategy.tensor import Rate, Shape

DATA = 0
"""The mesh axis along which is shared."""


def shared_dim(shape: Shape, config: PlanConfig, *, among: Collection[int] | None = None) -> int | None:
    """The dim in which ranks share out a tensor: the largest of those that divide evenly, else the largest.

    Args:
        shape: of the logical tensor.
        config: degrees and the least number of elements.
        among: the dims that may be taken; without it, all.

    Returns:
        None where the tensor stays whole: it is small, or no dim is long enough to be cut by the tensor axis as well.
    """
    size = 1
    for rows in shape:
        size *= rows
    if size < config.zero_min_size:
        return None
    dims = [d for d, rows in enumerate(shape) if rows >= config.dp * config.tp and (among is None or d in among)]
    return max(dims, key=lambda d: (shape[d] % config.dp == 0, shape[d], -d), default=None)


def persistent(graph: Graph, *, frozen: bool) -> frozenset[str]:
    """Parameters, and what is made of one of them alone once per step before the passes (a cast, say)."""
    variables = (value for value in graph.with_role(Role.VARIABLE) if frozen or value.name in graph.updater)
    found = {value.name for value in variables if value.spec.dtype.is_float}
    for op in graph.ops:
        if _is_derived(graph, op) and op.inputs[0] in found:
            found.update(op.outputs)
    return frozenset(found)


def _is_derived(graph: Graph, op: Op) -> bool:
    alone = len(op.inputs) == 1 and not op.updates
    return alone and op.phase is not Phase.UPDATE and act_rate(graph, op) is Rate.STEP


def sharing(graph: Graph, config: PlanConfig) -> Callable[[Op, Signature], bool]:
    """Whether the ZeRO stage of a config leaves a signature to an op."""
    demands: dict[str, tuple[tuple[int, Sbp], ...]] = {}
    if config.zero_stage:
        used = persistent(graph, frozen=config.zero_stage == 3)
        used |= {op.outputs[0] for op in graph.ops if op.kind == "repeat"}
        demands = {op.name: (*_of_state(graph, op, config), *_of_passes(graph, op, config, used)) for op in graph.ops}

    def keep(op: Op, signature: Signature) -> bool:
        layouts = signature.layouts
        return all(layouts[position][DATA] == sbp for position, sbp in demands.get(op.name, ()))

    return keep


def _of_state(graph: Graph, op: Op, config: PlanConfig) -> Iterator[tuple[int, Sbp]]:
    """What an op must do with what it updates: (position among its layouts, SBP along the data axis)."""
    if not op.updates:
        return
    options = op_signatures(graph, op, (config.dp,))
    first = len(op.inputs) + len(op.outputs)
    for position, name in enumerate(op.updates, first):
        possible = [option.layouts[position][DATA] for option in options]
        among = {sbp.dim for sbp in possible if isinstance(sbp, Split)}
        yield position, _shared(graph, name, config, among)


def _of_passes(graph: Graph, op: Op, config: PlanConfig, used: Collection[str]) -> Iterator[tuple[int, Sbp]]:
    """What an op must do with parameters that it uses and gradients that it adds up."""
    if op.kind == "accumulate" and op.phase is Phase.BACKWARD:
        sbp = _shared(graph, op.outputs[0], config)
        if isinstance(sbp, Split):
            yield 1, sbp if config.zero_stage > 1 else P
    elif op.kind == "repeat" or (_is_derived(graph, op) and op.inputs[0] in used):
        yield from ((position, _shared(graph, name, config)) for position, name in enumerate((*op.inputs, *op.outputs)))
    elif op.phase is not Phase.UPDATE:
        yield from ((position, B) for position, name in enumerate(op.inputs) if name in used)


def _shared(graph: Graph, name: str, config: PlanConfig, among: Collection[int] | None = None) -> Sbp:
    dim = shared_dim(graph.values[name].spec.shape, config, among=among)
    return B if dim is None else Split(dim)
