"""Cost: seconds of an act from its features and a calibration.

    seconds = fixed + s_per_flop * FLOPs + s_per_byte * bytes                 computation
    seconds = latency * hops + s_per_byte * (most bytes that one rank sends)  communication

A collective over several nodes with several ranks each goes inside the nodes and between them where that is cheaper
(`levels`); it costs what its parts cost. Where it goes at once, and every rank sends each other as much, the bytes for
ranks of its own node pass links inside while those for others pass links between nodes: of p ranks, q on a node,
(p - q) / (p - 1) of them.

Both are linear in their constants, so that measurements fix them by a least-squares fit (`calibrate`), and each
constant is monotone: more bytes never cost less. Without measurements the constants come from the data sheet, and on
GPUs from what published runs make of it (`data_sheet`).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import chain

import numpy as np
import numpy.typing as npt

from strategy.base.errors import InputError, present
from strategy.base.identity import Identity
from strategy.base.units import to_ns
from strategy.comm.boxing import BoxingStep
from strategy.comm.busiest_rank import busiest_position, node_groups
from strategy.comm.hierarchical import PARTS
from strategy.cost.communication import (
    collectives,
    crossing_features,
    largest_nbytes,
    step_features,
    two_level_features,
)
from strategy.cost.data_sheet import Coefficients, data_sheet, data_sheets, least_of_sheet
from strategy.cost.kernel_prices import product_seconds
from strategy.cost.measurement import CostKey, Features
from strategy.graph.graph import Attr, Graph, Op
from strategy.graph.ops import cost_class, op_definition
from strategy.graph.ops.copy import TO_DEVICE, TO_HOST
from strategy.graph.ops.traits import Attention, Gemm, Movement, Product
from strategy.graph.signature import Signature, piece_specs
from strategy.hardware.cluster import Cluster
from strategy.program.program import ActKind, Work, time_alone_ns
from strategy.sbp.placement import MOVES, Placement, Space
from strategy.sbp.sbp import NdSbp
from strategy.sbp.tensor import Shape, TensorSpec

Specs = tuple[TensorSpec, ...]
Attributes = tuple[tuple[str, Attr], ...]


@dataclass(frozen=True, slots=True)
class CostModel:
    """Prices acts on one cluster. `coefficients` override the data sheet; they are of devices that are all alike.

    `on_any_link`: whether every collective takes what its bytes would on the fastest link, and the latency of one hop.
    """

    cluster: Cluster
    coefficients: Mapping[CostKey, Coefficients]
    act_overhead_s: float = 0.0
    on_any_link: bool = False

    def __post_init__(self) -> None:
        if self.cluster.groups and self.coefficients:
            where = f"cluster {self.cluster.name}"
            raise InputError("measured constants do not say of which type of nodes they are", where=where)

    def seconds(self, features: Features) -> float:
        """Price of one act."""
        seconds = 0.0
        for part in features.parts or (features,):
            seconds += _seconds(part, self.coefficients_of(part))  # in order, as `step_prices` adds them
        return seconds + self.act_overhead_s

    def coefficients_of(self, features: Features) -> Coefficients:
        """The constants that price an act: measured ones, else those of the data sheet."""
        if self.on_any_link and features.level:
            return _on_fastest_link(self.cluster, tuple(sorted(self.coefficients.items())), features.hops)
        found = self.coefficients.get(features.key) or data_sheet(self.cluster, features)
        if not features.near:
            return found
        inside = self.coefficients_of(replace(features, level="intra", hops=features.near, near=0)).s_per_byte
        at_once = max(features.crossing * found.s_per_byte, (1 - features.crossing) * inside)
        return replace(found, s_per_byte=at_once)

    def wherever_axes_lie(self, *, in_order: bool = True) -> CostModel:
        """What prices no collective of inner axes higher than it takes wherever these lie.

        Itself, where axes lie in the order of their names, the inner ones inside of nodes, and links are faster there.
        """
        return self if in_order and self.is_faster_inside() else replace(self, on_any_link=True)

    def is_faster_inside(self) -> bool:
        """Whether no collective takes longer inside of nodes than one of as many bytes and hops takes between them."""
        cluster = self.cluster
        if 1 in (cluster.nodes, cluster.devices_per_node):
            return True
        for hops in range(1, cluster.devices_per_node):
            within, between = (
                [self.coefficients_of(one) for one in collectives(cluster, hops, level)] for level in ("intra", "inter")
            )
            if max(one.fixed_s for one in within) > min(one.fixed_s for one in between):
                return False
            if max(one.s_per_byte for one in within) > min(one.s_per_byte for one in between):
                return False
        return True

    def least_of(self, features: Features) -> Coefficients:
        """Constants by which no part of an act is priced lower, whatever its shape: measured ones, else the least."""
        return self.coefficients.get(features.key) or least_of_sheet(self.cluster, features)

    def work(self, features: Features, rank: int, sent_nbytes: Sequence[int], *, passes_inside: bool = False) -> Work:
        """The price of an act as latency, and bytes through the ports of a `rank` that sends so many in its parts.

        The bytes demanded are those that the slowest port on the way carries, at its nominal rate, in the priced time.
        Alone, the act takes what `seconds` says on the rank that sends the most (`features.nbytes`); beside another on
        the same port, longer. A copy between a device and its host has one part, and every rank the largest piece.
        Of a flat collective between nodes that also `passes_inside` them, the port inside carries as many.

        Where computation slows down beside communication, both use the rank's device: computation for all its time,
        communication for that share of its price, since its kernel is there from the first hop to the last.
        """
        price_ns = to_ns(self.seconds(features))
        here = self.cluster.around(rank)
        slowdown = here.device.slowdown
        if not ports_on_the_way(here, features):
            return (
                Work(0, ((port_name(DEVICE, rank), price_ns),)) if slowdown and computes(features) else Work(price_ns)
            )
        most: dict[str, int] = {}
        demands: dict[str, int] = {}
        for part, nbytes in zip(features.parts or (features,), sent_nbytes or (features.nbytes,), strict=True):
            ports = ports_on_the_way(here, part)
            if passes_inside and not features.parts and part.level == "inter":
                ports = (*ports, "intra")
            nominal = self.coefficients_of(part).s_per_byte * min(port_rate(here, port) for port in ports)
            for port in ports:
                most[port] = most.get(port, 0) + round(part.nbytes * nominal)
                demands[port] = demands.get(port, 0) + round(nbytes * nominal)
        longest_ns = max(time_alone_ns(n, port_rate(here, port)) for port, n in most.items())
        if features.level and slowdown:
            demands[DEVICE] = int(slowdown * price_ns)
            longest_ns = max(longest_ns, demands[DEVICE])
        used = tuple((port_name(port, rank), nbytes) for port, nbytes in demands.items() if nbytes)
        return Work(max(0, price_ns - longest_ns), used)

    def op_seconds(self, graph: Graph, op: Op, signature: Signature, mesh: tuple[int, ...]) -> float:
        """Price of one act of an op on the rank with the largest pieces."""
        ((found,),) = self.all_op_seconds(graph, [(op, (signature,))], mesh)
        return found

    def all_op_seconds(
        self,
        graph: Graph,
        acts: Sequence[tuple[Op, Sequence[Signature]]],
        mesh: tuple[int, ...],
        groups: tuple[int, ...] = (),
    ) -> list[list[float]]:
        """`op_seconds` of several ops, each under each of some signatures, on nodes of these groups."""
        features = []
        for op, signatures in acts:
            act = _act_of(graph, op, mesh)
            features.append([by_groups(act.features(signature), groups) for signature in signatures])
        kinds = {Identity(one): one for each in features for one in each}
        seconds = dict(zip(kinds, self.all_seconds(list(kinds.values())), strict=True))
        return [[seconds[Identity(one)] for one in each] for each in features]

    def all_seconds(self, features: Sequence[Features]) -> list[float]:
        """`seconds` of acts on one level; what products and attention take by their shapes is found of all at once."""
        measured = [self.coefficients.get(one.key) for one in features]
        sheets = data_sheets(self.cluster, [one for one, known in zip(features, measured, strict=True) if not known])
        rest = iter(sheets)
        found = [known or next(rest) for known in measured]
        return [_seconds(one, known) + self.act_overhead_s for one, known in zip(features, found, strict=True)]

    def product_seconds(self, like: Features, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """Seconds of products like one, but of other sizes: (products, 4), rows, columns, depth, how many."""
        if self.cluster.device.backend != "numpy" and like.key not in self.coefficients:
            types = self.cluster.types
            among = [types[group] for group in like.groups] or types
            each = np.array([product_seconds(one.device, like.kind, like.half, sizes) for one in among])
            slowest: npt.NDArray[np.float64] = each.max(axis=0) if like.groups else each.min(axis=0)
            return slowest + self.act_overhead_s
        found = self.coefficients_of(like)
        fixed = found.fixed_s + self.act_overhead_s
        flop: npt.NDArray[np.float64] = 2.0 * sizes.astype(float).prod(axis=1)
        return fixed + found.s_per_flop * flop

    def step_features(self, spec: TensorSpec, source: NdSbp, step: BoxingStep, placement: Placement) -> Features:
        """Features of a boxing step, done on two levels where that may be and is cheaper."""
        flat = step_features(self.cluster, spec, source, step, placement)
        if flat.level != "inter" or step.kind not in PARTS or spec.ragged is not None:
            return flat
        position = busiest_position(source, step, placement.mesh)
        levels = node_groups(self.cluster, placement, step.axes, position)
        if levels is None:
            return flat
        parted = two_level_features(spec, source, step, placement.mesh, levels)
        return min(flat, by_groups(parted, flat.groups), key=self.seconds)

    def transfer_seconds(
        self, spec: TensorSpec, source: NdSbp, sender: Placement, target: NdSbp, receiver: Placement
    ) -> float:
        """Price of moving a tensor between placements."""
        return self.seconds(crossing_features(self.cluster, spec, source, sender, target, receiver))

    def copy_seconds(self, spec: TensorSpec, layout: NdSbp, placement: Placement, target: Space) -> float:
        """Price of bringing the pieces of a layout to the `target` memory of their ranks."""
        groups = self.cluster.groups_of(placement.devices)
        return self.seconds(Features(f"to_{target}", 0, largest_nbytes(spec, layout, placement.mesh), groups=groups))


def by_groups(features: Features, groups: tuple[int, ...]) -> Features:
    """An act of nodes of these groups."""
    if not groups:
        return features
    return replace(features, parts=tuple(by_groups(part, groups) for part in features.parts), groups=groups)


def _seconds(features: Features, constants: Coefficients) -> float:
    """Price of an act on one level, but for its overhead."""
    fixed = constants.fixed_s * (features.hops or 1)
    return fixed + constants.s_per_flop * features.flop + constants.s_per_byte * features.nbytes


PORTS = ("intra", "inter", *MOVES)
"""What bytes of a rank pass through: the links of a level, to its host, and from it."""


_PACKED_DIMS = 5
"""Of one operand that holds queries, keys and values."""

DEVICE = "device"
"""What computes, as a resource: of a byte per nanosecond, so that its bytes are nanoseconds."""


def computes(features: Features) -> bool:
    """Whether an act occupies the device's processors."""
    return features.kind not in (ActKind.SLICE, ActKind.LOAD) and features.space is Space.DEVICE


def ports_on_the_way(cluster: Cluster, features: Features) -> tuple[str, ...]:
    """The ports that an act's bytes pass through at once, piece by piece; none of what computes."""
    if features.level == "inter" and not cluster.gpu_direct:
        return (TO_HOST, "inter", TO_DEVICE)
    if features.level:
        return (features.level,)
    return (features.kind,) if isinstance(cost_class(features.kind), Movement) else ()


def port_rate(cluster: Cluster, port: str) -> float:
    """Bytes per second through a port of one rank."""
    if port in MOVES:
        return present(cluster.host, "a host that bytes are copied to").link_bytes_per_s
    return cluster.link(port).bytes_per_s


def port_name(port: str, rank: int) -> str:
    """The resource that a port of a rank is."""
    return f"{port}:{rank}"


def port_rates(cluster: Cluster, ranks: int) -> dict[str, float]:
    """Bytes per second of the ports of all ranks, and of their devices where computation slows down."""
    found: dict[str, dict[int, float]] = {}
    for here, alike in itertools.groupby(range(ranks), cluster.around):
        rates = {port: port_rate(here, port) for port in PORTS if here.host is not None or port not in MOVES}
        if here.device.slowdown:
            rates[DEVICE] = 1e9
        members = tuple(alike)
        for port, rate in rates.items():
            found.setdefault(port, {}).update(dict.fromkeys(members, rate))
    return {port_name(port, rank): rate for port, rates in found.items() for rank, rate in rates.items()}


def op_features(graph: Graph, op: Op, signature: Signature, mesh: tuple[int, ...]) -> Features:
    """Features of an op's act on the rank with the largest pieces, ragged ones as large as expected."""
    return _act_of(graph, op, mesh).features(signature)


def _act_of(graph: Graph, op: Op, mesh: Shape) -> _Act:
    values = tuple(graph.specs(names) for names in (op.inputs, op.outputs, op.updates))
    return _known_act(op.kind, *values, tuple(op.attrs.items()), mesh, on_host=graph.on_host(op))


@lru_cache(maxsize=1 << 11)
def _known_act(
    kind: str, read: Specs, written: Specs, updated: Specs, attributes: Attributes, mesh: Shape, *, on_host: bool
) -> _Act:
    """The act of an op, whatever it is called: repeated layers have the same."""
    return _Act(kind, (read, written, updated), dict(attributes), mesh, Space.HOST if on_host else Space.DEVICE)


@dataclass(slots=True, eq=False)
class _Act:
    """Features of an op by its signature; they depend on the largest pieces alone, and are found once of each."""

    kind: str
    operands: tuple[Specs, Specs, Specs]
    attrs: Mapping[str, Attr]
    mesh: Shape
    space: Space
    pieces: list[dict[NdSbp, TensorSpec]] = field(init=False)
    """Of every operand, by its layout."""
    known: dict[tuple[Shape, ...], Features] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pieces = [{} for specs in self.operands for _ in specs]

    def features(self, signature: Signature) -> Features:
        """`op_features` under a signature."""
        found = []
        for layout, known, spec in zip(signature.layouts, self.pieces, chain(*self.operands), strict=True):
            if layout not in known:
                (known[layout],) = piece_specs([spec], [layout], self.mesh)
            found.append(known[layout])
        shapes = tuple([piece.shape for piece in found])
        if shapes not in self.known:
            self.known[shapes] = self._features(found)
        return self.known[shapes]

    def _features(self, pieces: Sequence[TensorSpec]) -> Features:
        read, written = len(self.operands[0]), len(self.operands[0]) + len(self.operands[1])
        inputs, outputs, updates = expected(pieces[:read]), expected(pieces[read:written]), pieces[written:]
        definition = op_definition(self.kind)
        if definition.nbytes is not None:
            nbytes = definition.nbytes(inputs, outputs, self.attrs)
        else:
            nbytes = sum(spec.nbytes for spec in (*inputs, *outputs)) + 2 * sum(spec.nbytes for spec in updates)
        half = next((str(spec.dtype) for spec in inputs if spec.dtype.is_half or spec.dtype.is_code), "")
        flop = definition.flop(inputs, outputs, self.attrs)
        cost = definition.cost
        product = product_of(cost, outputs[0].shape, flop) if isinstance(cost, Product) else None
        if isinstance(cost, Product) and cost.gemm is Gemm.GROUPED and not cost.batch_dims:
            product = _in_groups(product, inputs[1].shape[0])
        attention = attention_of(inputs) if isinstance(cost, Attention) and flop else None
        every_pair = (isinstance(cost, Attention) and cost.block) or not self.attrs.get("causal", 1)
        return Features(
            self.kind, flop, nbytes, half=half, product=product, attention_shape=attention, every_pair=every_pair,
            space=self.space,
        )  # fmt: skip


def product_of(cost: Product, shape: Shape, flop: int) -> tuple[int, int, int, int] | None:
    """(rows, columns, depth, how many) of a product that writes `shape`; None of an empty one."""
    many = len(shape) - 2 if cost.batch_dims else 0
    count, rows = math.prod(shape[:many]), math.prod(shape[many:-1])
    columns = shape[-1]
    size = 2 * count * rows * columns
    return (rows, columns, -(-flop // size), count) if size and flop else None


def _in_groups(product: tuple[int, int, int, int] | None, groups: int) -> tuple[int, int, int, int] | None:
    """A product whose rows are those of all groups, with those of each."""
    if product is None:
        return None
    rows, columns, depth, _ = product
    return -(-rows // groups), columns, depth, groups


def attention_of(operands: Sequence[TensorSpec]) -> tuple[int, int, int, int, int]:
    """(sequences, queries, heads, key heads, head dim) of what attention reads: qkv[b, s, g, r + 2, d], or q and k."""
    first = operands[0].shape
    if len(first) == _PACKED_DIMS:
        sequences, queries, kv_heads, columns, head_dim = first
        return sequences, queries, kv_heads * (columns - 2), kv_heads, head_dim
    sequences, queries, heads, head_dim = first
    return sequences, queries, heads, operands[1].shape[2], head_dim


def expected(specs: Sequence[TensorSpec]) -> tuple[TensorSpec, ...]:
    """Specs as ops are priced by them: as many rows of ragged tensors as are expected."""
    return tuple(spec.expected for spec in specs)


@lru_cache(maxsize=256)
def _on_fastest_link(cluster: Cluster, measured: tuple[tuple[CostKey, Coefficients], ...], hops: int) -> Coefficients:
    """Constants by which no collective of so many hops takes longer than it does wherever its ranks lie.

    In parts inside of nodes and between them, as many bytes are sent as at once, in fewer hops: one counts.
    """
    cost = CostModel(cluster, dict(measured))
    each = [
        cost.coefficients_of(one)
        for some in range(1, max(hops, 1) + 1)
        for level in ["intra"] * (some < cluster.devices_per_node) + ["inter"] * (cluster.nodes > 1)
        for one in collectives(cluster, some, level)
    ]
    return Coefficients(min(one.fixed_s for one in each) / max(hops, 1), 0.0, min(one.s_per_byte for one in each))
