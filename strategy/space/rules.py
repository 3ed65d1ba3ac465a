"""Rules: restrictions on the choice of signatures, axis by axis.

They make the plans that people write by hand. Every search starts from those, so its answer is never worse than they
are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import cast

from strategy.base.identity import Identity
from strategy.graph.experts import products_of_experts, weights_of_experts
from strategy.graph.graph import Graph, Op, Phase, Role, act_rate
from strategy.graph.ops import op_definition
from strategy.graph.ops.base import int_attr
from strategy.graph.ops.traits import Attention
from strategy.graph.signature import Listings, SbpFilter, Signature
from strategy.sbp.sbp import B, NdSbp, Sbp, Split, has_partial
from strategy.sbp.tensor import Rate, Shape

AxisRule = Callable[[Op, str, Sbp], bool]
"""(op, value that it reads, writes or updates, SBP of that along the axis) -> whether the rule allows it."""

FIRST_MAPS = {("qkv",), ("q",), ("k",), ("v",), ("fc1",), ("gate",), ("up",)}
SECOND_MAPS = {("proj",), ("fc2",), ("down",)}
_MLP = "mlp"
"""Attributes of the models' blocks: the linear maps that come first in a pair, those that come second, and where."""


def data_parallel(graph: Graph) -> AxisRule:
    """Every rank of the axis has its own samples and all parameters."""

    def rule(op: Op, name: str, sbp: Sbp) -> bool:
        role = graph.values[name].role
        if role is Role.INPUT:
            return sbp == Split(0)
        return sbp == B if role is Role.VARIABLE else True

    return rule


def expert_parallel(graph: Graph) -> AxisRule:
    """As `data_parallel`, but that experts are split by expert (Lepikhin et al. 2021, arXiv:2006.16668)."""
    free, held = data_parallel(graph), staying_with_experts(graph)
    return lambda op, name, sbp: sbp == Split(0) if name in held else free(op, name, sbp)


def tensor_parallel(graph: Graph) -> AxisRule:
    """Megatron: columns, then rows; every rank sees all samples (Shoeybi et al. 2019, arXiv:1909.08053, section 3)."""
    wanted = dict(columns_and_rows(graph))

    def rule(op: Op, name: str, sbp: Sbp) -> bool:
        if graph.values[name].role is Role.INPUT:
            return sbp == B
        return sbp == wanted[name] if name in wanted else True

    return rule


def columns_and_rows(graph: Graph) -> Iterator[tuple[str, Sbp]]:
    """(parameter or its state, how it lies along a tensor axis): of linear maps in pairs columns, then rows."""
    for value in graph.with_role(Role.VARIABLE):
        parameter = graph.values[graph.parameter_of(value.name)]
        if value.spec.shape != parameter.spec.shape:
            continue  # the state of stacked parameters, which follows none of them
        held_by, attribute = parameter.path[1:-1][-1:], parameter.path[-1:]
        if held_by in FIRST_MAPS and attribute in (("weight",), ("bias",)):
            yield value.name, Split(len(value.spec.shape) - 1)
        elif held_by in SECOND_MAPS and attribute == ("weight",):
            yield value.name, Split(0)
        else:
            yield value.name, B


def as_they_lie(graph: Graph) -> AxisRule:
    """As `tensor_parallel`, and products take weights, and give gradients of them, as these lie: what Megatron runs.

    Without it weights may be gathered along the axis, and samples split: what `tensor_parallel` says of inputs and
    parameters alone allows that, and a search makes use of it.
    """
    free, lying = tensor_parallel(graph), dict(_in_all_forms(graph, dict(columns_and_rows(graph))))
    return lambda op, name, sbp: sbp == lying[name] if name in lying else free(op, name, sbp)


def _in_all_forms(graph: Graph, lying: Mapping[str, Sbp]) -> Iterator[tuple[str, Sbp]]:
    """What is cast from parameters that are split, and their gradients from the products on that make them."""
    for value in graph.with_role(Role.VARIABLE):
        split = lying.get(value.name, B)
        if value.parameter or split == B:
            continue
        shape = value.spec.shape
        for op in graph.consumers[value.name]:
            yield from ((out, split) for out in op.outputs if graph.values[out].spec.shape == shape)
        updates = (op for op in graph.ops if op.phase is Phase.UPDATE and value.name in op.updates)
        gradients = [name for op in updates for name in op.inputs if graph.values[name].spec.shape == shape]
        while gradients:
            name = gradients.pop()
            maker = graph.producer.get(name)
            if maker is not None and maker.phase is not Phase.UPDATE:
                yield name, split
                gradients += [one for one in maker.inputs if graph.values[one].spec.shape == shape]


def half_and_half(graph: Graph) -> AxisRule:
    """Attention data-parallel, MLP tensor-parallel, on the same axis: signatures mixed op by op."""
    megatron = dict(columns_and_rows(graph))

    def rule(op: Op, name: str, sbp: Sbp) -> bool:
        value = graph.values[name]
        if value.role is Role.INPUT:
            return sbp == Split(0)
        if value.role is Role.VARIABLE:
            inside = graph.values[graph.parameter_of(name)].path[1:-1]
            return sbp == (megatron.get(name, B) if _MLP in inside else B)
        return True

    return rule


def sample_axis(graph: Graph) -> AxisRule:
    """Samples are split along the axis; everything else is free. This is what makes an axis a data axis."""
    return lambda op, name, sbp: graph.values[name].role is not Role.INPUT or sbp == Split(0)


def expert_axis(graph: Graph) -> AxisRule:
    """As `sample_axis`, but that experts are split by expert."""
    free, held = sample_axis(graph), staying_with_experts(graph)
    return lambda op, name, sbp: sbp == Split(0) if name in held else free(op, name, sbp)


def sample_flow(graph: Graph, parts: int) -> AxisRule:
    """Samples are split along the axis, and in layers everything follows from that, op after op.

    Activations are split by samples, gradients of weights are terms; whatever is done once per step is free, and so is
    what is outside of layers. This is what data parallelism means where layers repeat; it leaves a tenth of the
    choices of `sample_axis`.
    """
    fixed, free = following_samples(graph, parts), sample_axis(graph)

    def rule(op: Op, name: str, sbp: Sbp) -> bool:
        return fixed[op.name][name] == sbp if op.name in fixed else free(op, name, sbp)

    return rule


def expert_flow(graph: Graph, parts: int) -> AxisRule:
    """As `sample_flow`, but that experts are split by expert: tokens go to them along the axis, and back.

    What hands tokens to experts, or takes them, may be split by sample or by expert.
    """
    samples, by_sample = sample_flow(graph, parts), following_samples(graph, parts)
    by_expert, beside, held = following_experts(graph, parts), beside_experts(graph), staying_with_experts(graph)
    products = products_of_experts(graph)

    def rule(op: Op, name: str, sbp: Sbp) -> bool:
        if name in held:
            return sbp == Split(0)
        if op.name not in beside or op.name not in by_sample:
            return samples(op, name, sbp)
        return sbp == by_expert[op.name][name] or (op.name not in products and sbp == by_sample[op.name][name])

    return rule


def following_samples(graph: Graph, parts: int) -> Mapping[str, Mapping[str, Sbp]]:
    """Op of a layer that samples say all of -> value -> its SBP along the axis."""
    return _following(Identity(graph), parts)


@lru_cache(maxsize=8)
def _following(known: Identity, parts: int) -> Mapping[str, Mapping[str, Sbp]]:
    graph = cast(Graph, known.held)
    found = {
        name: sbps
        for name, sbps in _all_following(known, parts).items()
        if graph.by_name[name].any_layer is not None and any(isinstance(sbp, Split) for sbp in sbps.values())
    }
    return MappingProxyType(found)


@lru_cache(maxsize=8)
def _all_following(known: Identity, parts: int) -> Mapping[str, Mapping[str, Sbp]]:
    return _followed(cast(Graph, known.held), parts)


def following_experts(graph: Graph, parts: int) -> Mapping[str, Mapping[str, Sbp]]:
    """Op -> value -> its SBP along the axis where experts are split, and what is not beside them follows samples."""
    beside = beside_experts(graph)
    others = {name: sbps for name, sbps in _all_following(Identity(graph), parts).items() if name not in beside}
    return _followed(graph, parts, others, split=staying_with_experts(graph))


def staying_with_experts(graph: Graph) -> frozenset[str]:
    """What stays with its expert: parameters, in whatever form they are read, their gradients and sums, their state.

    Codes of which a byte holds two are shorter than what they are of.
    """
    weights, products = tuple(weights_of_experts(graph).values()), products_of_experts(graph)
    parameters = {name for weight in weights if (name := graph.parameter_of(weight))}
    shapes = {spec.shape for spec in graph.specs((*weights, *sorted(parameters)))}
    left = [value.name for value in graph.with_role(Role.VARIABLE) if graph.parameter_of(value.name) in parameters]
    left += [out for name in products for out in graph.by_name[name].outputs]
    found: set[str] = set()
    while left:
        name = left.pop()
        if name not in found and graph.values[name].spec.shape in shapes:
            found.add(name)
            left += [out for op in graph.consumers[name] for out in op.outputs]
    return frozenset(found)


def _followed(
    graph: Graph,
    parts: int,
    known: Mapping[str, Mapping[str, Sbp]] = MappingProxyType({}),
    *,
    split: frozenset[str] = frozenset(),
) -> dict[str, Mapping[str, Sbp]]:
    """Op -> value -> SBP along one axis, where samples are split and variables whole.

    It is what mismatches in fewest inputs, and of that what writes fewest terms: where samples are cut out of a tensor,
    a rank could leave those of others zero. Some ops are `known`; what reads or writes values that are `split` in their
    first dim has them so.
    """
    held: dict[str, Sbp] = {value.name: Split(0) for value in graph.with_role(Role.INPUT)}
    held.update((value.name, B) for value in graph.with_role(Role.VARIABLE))
    found: dict[str, Mapping[str, Sbp]] = {}
    listings, alike = Listings(graph, (parts,)), dict[object, Signature | None]()
    for op in graph.ops:
        if op.name in known:
            found[op.name] = known[op.name]
        else:
            wanted = tuple([Split(0) if name in split else held[name] for name in op.inputs])
            is_split = tuple([name in split for name in (*op.inputs, *op.outputs, *op.updates)])
            options = listings.of(op)
            key = Identity(options), wanted, is_split  # ops alike have the same
            if key not in alike:
                alike[key] = _nearest(options, wanted, is_split)
            best = alike[key]
            if best is not None:
                found[op.name] = {name: nd[0] for name, nd in named_layouts(op, best)}
        held.update((name, found[op.name][name]) for name in op.outputs if op.name in found)
    return found


def _nearest(options: Sequence[Signature], wanted: Sequence[Sbp], is_split: Sequence[bool]) -> Signature | None:
    """What mismatches in fewest inputs, and of that what writes fewest terms; `is_split` says of all values."""
    best: tuple[tuple[int, int], Signature] | None = None
    for option in options:
        if any(nd != (B,) for nd in option.updates):
            continue
        if any(cut and nd[0] != Split(0) for cut, nd in zip(is_split, option.layouts, strict=True)):
            continue
        mismatches = sum(one != nd[0] for one, nd in zip(wanted, option.inputs, strict=True))
        badness = mismatches, sum(has_partial(nd) for nd in option.outputs)
        if best is None or badness < best[0]:
            best = badness, option
        if badness == (0, 0):
            break
    return best and best[1]


def beside_experts(graph: Graph) -> frozenset[str]:
    """Ops that read weights of experts or make their gradients, and those that these exchange activations with."""
    among = [graph.by_name[name] for name in products_of_experts(graph)]
    found = {op.name for op in among}
    for op in among:
        read = (graph.producer[name] for name in op.inputs if name in graph.producer)
        found.update(one.name for one in read if act_rate(graph, one) is Rate.MICRO_BATCH)
        found.update(one.name for name in op.outputs for one in graph.consumers[name])
    return frozenset(found)


def shared_samples_axis(graph: Graph) -> AxisRule:
    """Every rank of the axis sees all samples; everything else is free. This is what makes an axis a tensor axis."""
    return lambda op, name, sbp: graph.values[name].role is not Role.INPUT or sbp == B


def head_axis(graph: Graph, parts: int) -> AxisRule:
    """As `shared_samples_axis`, but that attention is split by heads; what else a layer does is free.

    Split by samples or positions along the axis, attention would make a data or a context axis of it, and a plan that
    another mesh has, too.
    """
    free, by_heads = shared_samples_axis(graph), frozenset(_split_by_heads(graph, parts))

    def rule(op: Op, name: str, sbp: Sbp) -> bool:
        return sbp == Split(2) if op.name in by_heads and name == op.inputs[0] else free(op, name, sbp)

    return rule


def _split_by_heads(graph: Graph, parts: int) -> Iterator[str]:
    """Attention and its gradients, where heads can be split."""
    listings = Listings(graph, (parts,))
    for op in graph.ops:
        is_attention = isinstance(op_definition(op.kind).cost, Attention)
        if is_attention and any(option.inputs[0] == (Split(2),) for option in listings.of(op)):
            yield op.name


def position_axis(graph: Graph) -> AxisRule:
    """Positions are split along the axis; everything else is free. This is what makes an axis a context axis.

    Where the graph has attention in blocks, keys and values go round a ring, and what arrives for a
    block has been on its way since the one before; else positions are exchanged for heads.
    """

    def rule(op: Op, name: str, sbp: Sbp) -> bool:
        value = graph.values[name]
        if value.role is Role.INPUT and len(value.spec.shape) > 1:
            return isinstance(sbp, Split) and sbp.dim == 1
        if value.role is Role.INPUT:
            return sbp == B
        definition = op_definition(op.kind)
        if _is_attention(op, block=True) and name in op.inputs[:2]:
            return isinstance(sbp, Split) and sbp.dim == 1
        if definition.rearranges and "shift" in op.attrs:
            return sbp == Split(1, int_attr(op.attrs, "shift"))
        return not _is_attention(op, block=False) or name != op.inputs[0] or sbp == Split(2)

    return rule


def position_flow(graph: Graph) -> AxisRule:
    """As `position_axis`, and so is all that has positions, but for what attention exchanges for heads.

    Gradients of weights are terms; parameters, and what is done once per step, are free. Without it layers may be laid
    out along the axis as along a tensor axis, too: plans that another mesh has, by tables of a hundred times the size.
    """
    free, split = position_axis(graph), frozenset(_by_position(graph))

    def rule(op: Op, name: str, sbp: Sbp) -> bool:
        if name in split and not _is_attention(op, block=False) and not (isinstance(sbp, Split) and sbp.dim == 1):
            return False
        return free(op, name, sbp)

    return rule


def context_parallel(graph: Graph) -> AxisRule:
    """Every rank of the axis has its own positions of all that flows between the layers, and all parameters."""
    flow = position_flow(graph)
    return lambda op, name, sbp: sbp == B if name in op.updates else flow(op, name, sbp)


def _is_attention(op: Op, *, block: bool) -> bool:
    """Whether an op is attention or its gradient: in one block of a ring, or all of it."""
    cost = op_definition(op.kind).cost
    return isinstance(cost, Attention) and cost.block is block


def _by_position(graph: Graph) -> Iterator[str]:
    """Values [samples, positions, ...], as long as some input."""
    leading = {value.spec.shape[:2] for value in graph.with_role(Role.INPUT)}
    costs = ((op, op_definition(op.kind).cost) for op in graph.ops)
    statistics = {op.outputs[1] for op, cost in costs if isinstance(cost, Attention) and not cost.gradient}
    for value in graph.with_role(Role.COMPUTED):
        shape = value.spec.shape
        flows = value.rate is Rate.MICRO_BATCH and len(shape) > 2 and shape[:2] in leading
        if flows and value.name not in statistics:
            yield value.name


RULES: Mapping[str, Callable[[Graph, int], AxisRule]] = {
    "replica": lambda graph, parts: data_parallel(graph),
    "data": lambda graph, parts: data_parallel(graph),
    "expert": lambda graph, parts: expert_parallel(graph),
    "tensor": lambda graph, parts: tensor_parallel(graph),
    "tensor as it lies": lambda graph, parts: as_they_lie(graph),
    "mixed": lambda graph, parts: half_and_half(graph),
    "samples": sample_flow,
    "experts": expert_flow,
    "experts split": lambda graph, parts: expert_axis(graph),
    "samples split": lambda graph, parts: sample_axis(graph),
    "samples shared": lambda graph, parts: shared_samples_axis(graph),
    "heads split": head_axis,
    "context": lambda graph, parts: context_parallel(graph),
    "positions": lambda graph, parts: position_flow(graph),
    "positions split": lambda graph, parts: position_axis(graph),
}
"""Name -> what makes the rule of a graph, along an axis of so many ranks."""


@dataclass(frozen=True, slots=True)
class AlongAxes:
    """Named rules of a graph, by mesh axis; an axis of one rank has nothing to rule."""

    rules: Mapping[int, AxisRule]

    def __call__(self, op: Op, signature: Signature) -> bool:
        """Whether a signature satisfies all of them."""
        layouts = list(named_layouts(op, signature))
        return all(rule(op, name, nd_sbp[axis]) for axis, rule in self.rules.items() for name, nd_sbp in layouts)

    def wanted(self, op: Op) -> SbpFilter:
        """Whether layouts of an op's values satisfy them along an axis."""
        names = (*op.inputs, *op.outputs, *op.updates)

        def satisfies(axis: int, position: int, sbp: Sbp) -> bool:
            rule = self.rules.get(axis)
            return rule is None or rule(op, names[position], sbp)

        return satisfies


def along_axes(graph: Graph, mesh: Shape, rules: Sequence[str]) -> AlongAxes:
    """One named rule per mesh axis."""
    found = {axis: RULES[name](graph, mesh[axis]) for axis, name in enumerate(rules) if mesh[axis] > 1}
    return AlongAxes(MappingProxyType(found))


def named_layouts(op: Op, signature: Signature) -> Iterator[tuple[str, NdSbp]]:
    """Every value that an op reads, writes or updates, with its layout under a signature."""
    return zip((*op.inputs, *op.outputs, *op.updates), signature.layouts, strict=True)
