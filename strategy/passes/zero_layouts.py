"""ZeRO layouts: what data-parallel ranks hold once between them instead of once each, as SBP along the data axis.

ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054) is a choice of layouts, and no runtime knows of it:

    stage 1   optimiser state and parameters S(d) where they are updated, gathered once per step;
              gradients accumulated as P, reduce-scattered once per step
    stage 2   gradients accumulated S(d): those of every micro-batch are reduce-scattered
    stage 3   parameters S(d) up to where they are used: gathered per micro-batch and pass, by way of a `repeat`

With owners, S(d) is O(k) everywhere: rank k holds a tensor whole, gradients are reduced to it, parameters broadcast.
Small tensors stay whole. Other axes are free, so a tensor axis may split the same tensor again. Where experts are
shared out, what they have is split by expert along that axis for good, and along the data axis in another dim as above;
all else is along both axes what it is along the data axis, and so is everything along a context axis. Where groups of
data-parallel ranks hold the same (`zero_group`), an axis of its own says which group: along it parameters and state are
B, and sums of gradients P, so that these are added up between groups once per step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from strategy.graph.experts import weights_of_experts
from strategy.graph.graph import Graph, Op, Phase, Role, act_rate
from strategy.graph.ops import op_definition
from strategy.graph.signature import Signature, op_signatures
from strategy.layout.config import PlanConfig
from strategy.sbp.sbp import B, NdSbp, Owner, P, Sbp, Split
from strategy.sbp.tensor import Rate, Shape

DATA = 0
"""The mesh axis along which owners share, where no group holds the same as another."""
BY_EXPERT = Split(0)
NEARLY_EVEN = 15
"""With more rows than this for each rank, the ranks that have one more hold about as much as the others."""
Along = tuple[tuple[int, Sbp], ...]
"""The SBP along each of several axes."""


def shared_dim(shape: Shape, config: PlanConfig, *, among: Collection[int] | None = None, of: int = 0) -> int | None:
    """The dim in which ranks share out a tensor: the largest of those that divide evenly, else the largest.

    Args:
        shape: of the logical tensor.
        config: degrees and the least number of elements.
        among: the dims that may be taken; without it, all.
        of: so many ranks share; without it, all that use the same parameters.

    Returns:
        None where the tensor stays whole: it is small, or no dim is long enough to be cut by the tensor axis as well.
    """
    if math.prod(shape) < config.zero_min_size:
        return None
    of = of or config.shards * config.cp
    return next(iter(shared_dims(shape, config, among=among, of=of)), None)


def shared_dims(
    shape: Shape, config: PlanConfig, *, among: Collection[int] | None = None, of: int = 0
) -> tuple[int, ...]:
    """The dims in which ranks may share out a tensor, `shared_dim` first: beside a tensor axis, any that is as good.

    What is used split by that axis in one dim is best shared out in another: gathered, it is where it is used.
    """
    if math.prod(shape) < config.zero_min_size:
        return ()
    of = of or config.shards * config.cp
    dims = [d for d, rows in enumerate(shape) if rows >= of * config.tp and (among is None or d in among)]
    dims.sort(key=lambda d: (shape[d] % of != 0, -shape[d], d))
    is_even = bool(dims) and shape[dims[0]] % of == 0
    alike = [d for d in dims if (shape[d] % of == 0 if is_even else shape[d] > NEARLY_EVEN * of)]
    return tuple(alike if config.tp > 1 and alike else dims[:1])


def is_shared(shape: Shape, config: PlanConfig) -> bool:
    """Whether ranks share out a tensor at all."""
    if config.zero_owner:
        return bool(shape) and math.prod(shape) >= config.zero_min_size
    return shared_dim(shape, config) is not None


def persistent(graph: Graph, *, frozen: bool) -> frozenset[str]:
    """Parameters, and what is made of one of them once per step before the passes (a cast, or codes, say)."""
    variables = (value for value in graph.with_role(Role.VARIABLE) if frozen or value.name in graph.updater)
    found = {value.name for value in variables if value.spec.dtype.is_float}
    for op in graph.ops:
        if _is_derived(graph, op) and op.inputs[0] in found:
            found.update(op.outputs[:1])
    return frozenset(found)


def _is_derived(graph: Graph, op: Op) -> bool:
    alone = (len(op.inputs) == 1 or op_definition(op.kind).piecewise) and not op.updates
    return alone and op.phase is not Phase.UPDATE and act_rate(graph, op) is Rate.STEP


def zero_filter(graph: Graph, config: PlanConfig, stage_of: Mapping[str, int]) -> Callable[[Op, Signature], bool]:
    """Whether the ZeRO stage of a config leaves a signature to an op; `stage_of` are the pipeline stages of ops."""
    demands = _Demands(graph, config, owners_of(graph, config, stage_of)) if config.zero_stage else None

    def keep(op: Op, signature: Signature) -> bool:
        return demands is None or demands.met(op, signature.layouts)

    return keep


def owners_of(graph: Graph, config: PlanConfig, stage_of: Mapping[str, int]) -> dict[str, Owner]:
    """The owner of every parameter with its state, where tensors stay in one piece.

    On every pipeline stage the largest goes first, to the rank that holds least (greedy bin packing, as OneFlow).
    """
    if not config.zero_owner:
        return {}
    sizes: dict[tuple[int, str], int] = {}
    for name, op in graph.updater.items():
        if is_shared(graph.values[name].spec.shape, config):
            key = stage_of[op.name], graph.parameter_of(name)
            sizes[key] = sizes.get(key, 0) + graph.values[name].spec.nbytes
    held = {stage: [0] * config.dp for stage, _ in sizes}
    found: dict[str, Owner] = {}
    for stage, name in sorted(sizes, key=lambda key: -sizes[key]):
        least = held[stage].index(min(held[stage]))
        held[stage][least] += sizes[stage, name]
        found[name] = Owner(least)
    return found


@dataclass(frozen=True)
class _Demands:
    """What a stage demands of the layouts of ops along the axes on which parameters are alike."""

    graph: Graph
    config: PlanConfig
    owners: Mapping[str, Owner]

    @cached_property
    def used(self) -> frozenset[str]:
        """Parameters in whatever form the passes read them."""
        found = set(persistent(self.graph, frozen=self.config.zero_stage == 3))
        for op in self.graph.ops:
            if op_definition(op.kind).piecewise and op.inputs[0] in found:
                found.update(op.outputs[:1])
        return frozenset(found)

    @cached_property
    def of_op(self) -> dict[str, tuple[tuple[int, tuple[Along, ...]], ...]]:
        """Op name -> (position among its layouts, what may be there)."""
        return {
            op.name: (
                *(
                    (position, tuple(tuple(self._along(op, position, sbp)) for sbp in several))
                    for position, several in (*self._of_state(op), *self._of_passes(op))
                ),
                *((position, (((0, sbp),),)) for position, sbp in self._between_groups(op)),
            )
            for op in self.graph.ops
        }

    def _between_groups(self, op: Op) -> Iterator[tuple[int, Sbp]]:
        """Of what is whole in every group, or a group's terms: along the axis that says which group."""
        if not self.config.zero_group:
            return
        demanded = (*self._of_state(op), *self._of_passes(op))
        if self._adds_up(op):
            groups = self.config.dp // self.config.shards
            if any(option.outputs[0] == (P,) for option in op_signatures(self.graph, op, (groups,))):
                yield 1, P
        else:
            yield from ((position, B) for position, _ in demanded)

    def met(self, op: Op, layouts: Sequence[NdSbp]) -> bool:
        """Whether layouts are as demanded, and nothing is owned by others than its owner."""
        demanded = self.of_op[op.name]
        for position, several in demanded:
            if not any(all(layouts[position][axis] == sbp for axis, sbp in along) for along in several):
                return False
        owned = {nd_sbp[DATA] for nd_sbp in layouts if isinstance(nd_sbp[DATA], Owner)}
        if owned and op.phase is not Phase.UPDATE:
            owned -= {sbp for _, several in demanded for along in several for _, sbp in along}
        elif owned:
            owned -= {self._owner(name) for name in (*op.inputs, *op.outputs, *op.updates)}
        return not owned

    def _along(self, op: Op, position: int, sbp: Sbp) -> Iterator[tuple[int, Sbp]]:
        """What is demanded along the data axis, as (axis, SBP) of every such axis that has several ranks."""
        name = (*op.inputs, *op.outputs, *op.updates)[position]
        axes, mesh = self.config.axes, self.config.mesh
        for axis in (DATA,) if self.config.zero_owner else self.config.shard_axes:
            if mesh[axis] > 1:
                yield axis, BY_EXPERT if axes[axis] == "expert" and self._is_of_experts(name) else sbp

    def _is_of_experts(self, name: str) -> bool:
        """Whether a value is a parameter, or one's state or gradient, that is shared out by expert."""
        return self.config.ep > 1 and self._parameter_of(name) in self.of_experts

    @cached_property
    def of_experts(self) -> frozenset[str]:
        """Parameters with a weight per expert."""
        read = weights_of_experts(self.graph).values()
        return frozenset(self.graph.parameter_of(name) for name in read if name in self.used)

    def _of_state(self, op: Op) -> Iterator[tuple[int, tuple[Sbp, ...]]]:
        if not op.updates:
            return
        options = op_signatures(self.graph, op, (self.config.shards,))
        for position, name in enumerate(op.updates, len(op.inputs) + len(op.outputs)):
            possible = [option.layouts[position][0] for option in options]
            among = {sbp.dim for sbp in possible if isinstance(sbp, Split)}
            yield position, self._shared(name, among)

    def _of_passes(self, op: Op) -> Iterator[tuple[int, tuple[Sbp, ...]]]:
        """Of what uses parameters or adds up gradients."""
        definition = op_definition(op.kind)
        if self._adds_up(op):
            shared = self._shared(op.outputs[0])
            if shared != (B,):
                yield 1, shared if self.config.zero_stage > 1 else (P,)
        elif op.inputs and op.inputs[0] in self.used and (definition.piecewise or _is_derived(self.graph, op)):
            if self.graph.values[op.outputs[0]].spec.shape:  # a figure of a parameter may be made of any pieces of it
                yield len(op.inputs), self._shared(op.outputs[0], self.possible.get(op.outputs[0]))
        elif op.phase is not Phase.UPDATE:
            yield from ((position, (B,)) for position, name in enumerate(op.inputs) if name in self.used)

    def _adds_up(self, op: Op) -> bool:
        """Whether an op adds up gradients over micro-batches."""
        accumulates = op_definition(op.kind).accumulates and len(op.inputs) == 1
        return accumulates and op.phase in (Phase.BACKWARD, Phase.WEIGHT)

    @cached_property
    def cut(self) -> dict[str, frozenset[int]]:
        """The dims in which parameters are sliced before use: cut there, ranks would lack most slices."""
        found: dict[str, set[int]] = {}
        for op in self.graph.ops:
            if op_definition(op.kind).piecewise and op.inputs[0] in self.used:
                whole, piece = (spec.elements for spec in self.graph.specs((op.inputs[0], op.outputs[0])))
                dims = {d for d, rows in enumerate(whole) if rows != piece[d]}
                found.setdefault(self.graph.parameter_of(op.inputs[0]), set()).update(dims)
        return {name: frozenset(dims) for name, dims in found.items()}

    @cached_property
    def possible(self) -> dict[str, frozenset[int]]:
        """Codes whose blocks may not be cut, and their copies -> the dims in which all ranks can share them."""
        found: dict[str, frozenset[int]] = {}
        for op in self.graph.ops:
            if not op_definition(op.kind).piecewise or op.inputs[0] not in self.used:
                continue
            if op.inputs[0] in found:
                found[op.outputs[0]] = found[op.inputs[0]]
            elif op_definition(op.kind).in_blocks:
                options = op_signatures(self.graph, op, (self.config.shards * self.config.cp * self.config.tp,))
                layouts = [option.layouts[len(op.inputs)][0] for option in options]
                found[op.outputs[0]] = frozenset(sbp.dim for sbp in layouts if isinstance(sbp, Split))
        return found

    def _shared(self, name: str, among: Collection[int] | None = None) -> tuple[Sbp, ...]:
        shape, parameter = self.graph.values[name].spec.shape, self._parameter_of(name)
        if self.config.zero_owner:
            return (self._owner(name) or B,)
        free = set(range(len(shape)) if among is None else among)
        free -= self.cut.get(parameter, frozenset()) if parameter else frozenset()
        if self._is_of_experts(name):
            ranks = self.config.shards // self.config.ep * self.config.cp
            dims = shared_dims(shape, self.config, among=free - {BY_EXPERT.dim}, of=ranks)
        else:
            dims = shared_dims(shape, self.config, among=free)
        return tuple(Split(dim) for dim in dims) or (B,)

    def _owner(self, name: str) -> Owner | None:
        if not is_shared(self.graph.values[name].spec.shape, self.config):
            return None
        return self.owners.get(self._parameter_of(name))

    def _parameter_of(self, name: str) -> str:
        """Whose form, state or gradient on its way to the update a value is; empty where it is nobody's."""
        if parameter := self.graph.parameter_of(name):
            return parameter
        for op in self.graph.consumers[name]:
            if op.updates:
                return self.graph.parameter_of(op.updates[0])
            if op.phase is Phase.UPDATE and self.graph.values[op.outputs[0]].spec.shape:
                return self._parameter_of(op.outputs[0])
        return ""
