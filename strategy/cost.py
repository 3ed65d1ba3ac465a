"""Cost: seconds of an act from its features and a calibration.

    seconds = fixed + s_per_flop * FLOPs + s_per_byte * bytes                 computation
    seconds = latency * hops + s_per_byte * (most bytes that one rank sends)  communication

Both are linear in their constants, so that measurements fix them by a least-squares fit (`calibrate`), and each
constant is monotone: more bytes never cost less. Without measurements the constants come from the data sheet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from strategy.boxing import BoxingStep, Price, boxing_task, sent_nbytes, transfer_task
from strategy.cluster import Cluster
from strategy.graph import Graph, Op
from strategy.measurement import Features
from strategy.ops import op_definition
from strategy.placement import Placement
from strategy.program import ActKind, TransferTask, Work, time_alone_ns
from strategy.sbp import NdSbp
from strategy.signature import Signature, piece_specs
from strategy.tensor import TensorSpec
from strategy.units import to_ns

FLOP_BOUND = frozenset(
    {
        *("matmul", "matmul_nt", "matmul_tn", "batch_matmul", "conv2d", "conv2d_dx", "conv2d_dw"),
        *("attention", "attention_grad", "attention_max", "attention_terms", "attention_terms_grad"),
        *("grouped_matmul", "grouped_matmul_tn", "muon_direction"),
    }
)
"""Kinds whose data-sheet time counts FLOPs at the matrix rate; the others are bound by memory."""


@dataclass(frozen=True, slots=True)
class Coefficients:
    """Constants of one kind (and level): seconds fixed (per hop for communication), per FLOP, per byte."""

    fixed_s: float
    s_per_flop: float
    s_per_byte: float


@dataclass(frozen=True, slots=True)
class CostModel:
    """Prices acts on one cluster. `coefficients` override the data sheet per kind (communication: `kind@level`)."""

    cluster: Cluster
    coefficients: Mapping[str, Coefficients]
    act_overhead_s: float = 0.0

    def seconds(self, features: Features) -> float:
        """Price of one act."""
        found = self.coefficients_of(features)
        fixed = found.fixed_s * (features.hops or 1)
        return fixed + found.s_per_flop * features.flop + found.s_per_byte * features.nbytes + self.act_overhead_s

    def coefficients_of(self, features: Features) -> Coefficients:
        """The constants that price an act: measured ones, else those of the data sheet."""
        return self.coefficients.get(coefficient_key(features)) or data_sheet(self.cluster, features)

    def work(self, features: Features, rank: int, sent_nbytes: int) -> Work:
        """The price of an act as latency, and bytes through the port of a `rank` that sends `sent_nbytes` in it.

        The bytes demanded are those that the port's nominal rate carries in the priced time. Alone, the act takes what
        `seconds` says on the rank that sends the most (`features.nbytes`); beside another on the same port, longer.
        """
        price_ns = to_ns(self.seconds(features))
        if not features.level:
            return Work(price_ns)
        bytes_per_s = self.cluster.link(features.level).bytes_per_s
        nominal = self.coefficients_of(features).s_per_byte * bytes_per_s
        longest_ns = time_alone_ns(round(features.nbytes * nominal), bytes_per_s)
        demand = (port_name(features.level, rank), round(sent_nbytes * nominal))
        return Work(max(0, price_ns - longest_ns), (demand,) if demand[1] else ())

    def op_seconds(self, graph: Graph, op: Op, signature: Signature, mesh: tuple[int, ...]) -> float:
        """Price of one act of an op on the rank with the largest pieces."""
        return self.seconds(op_features(graph, op, signature, mesh))

    def step_price(self, placement: Placement) -> Price:
        """The price function of boxing steps on `placement`."""

        def price(kind: ActKind, axis: int, spec: TensorSpec, source: NdSbp, target: NdSbp) -> float:
            step = BoxingStep(kind, axis, target)
            return self.seconds(step_features(self.cluster, spec, source, step, placement, placement.devices[0]))

        return price

    def transfer_seconds(
        self, spec: TensorSpec, source: NdSbp, sender: Placement, target: NdSbp, receiver: Placement
    ) -> float:
        """Price of moving a tensor between placements."""
        task = transfer_task(spec, source, sender, target, receiver)
        return self.seconds(transfer_features(self.cluster, task, spec.dtype.nbytes))


def port_name(level: str, rank: int) -> str:
    """The resource through which a rank sends at a level of the network."""
    return f"{level}:{rank}"


def port_rates(cluster: Cluster, ranks: int) -> dict[str, float]:
    """Bytes per second of the ports of all ranks."""
    return {
        port_name(level, rank): cluster.link(level).bytes_per_s for level in ("intra", "inter") for rank in range(ranks)
    }


def coefficient_key(features: Features) -> str:
    """The name under which the constants of an act's kind are kept."""
    return f"{features.kind}@{features.level}" if features.level else features.kind


def op_features(graph: Graph, op: Op, signature: Signature, mesh: tuple[int, ...]) -> Features:
    """Features of an op's act on the rank with the largest pieces."""
    definition = op_definition(op.kind)
    inputs = piece_specs(graph.specs(op.inputs), signature.inputs, mesh)
    outputs = piece_specs(graph.specs(op.outputs), signature.outputs, mesh)
    updates = piece_specs(graph.specs(op.updates), signature.updates, mesh)
    if definition.nbytes is not None:
        nbytes = definition.nbytes(inputs, outputs, op.attrs)
    else:
        nbytes = sum(spec.nbytes for spec in (*inputs, *outputs)) + 2 * sum(spec.nbytes for spec in updates)
    return Features(op.kind, definition.flop(inputs, outputs, op.attrs), nbytes)


def step_features(
    cluster: Cluster, spec: TensorSpec, source: NdSbp, step: BoxingStep, placement: Placement, rank: int
) -> Features:
    """Features of a boxing step in the group of `rank`; the first rank of a placement has the largest pieces."""
    task = boxing_task(spec, source, step, placement, rank)
    itemsize = spec.dtype.nbytes
    if step.kind is ActKind.SLICE:
        local = [piece_specs([spec], [layout], placement.mesh)[0].nbytes for layout in (source, step.target)]
        return Features(step.kind, 0, min(local) + local[1])
    most = max(sent_nbytes(step.kind, task, member, itemsize) for member in task.group)
    return Features(step.kind, 0, most, len(task.group) - 1, cluster.level(task.group))


def transfer_features(cluster: Cluster, task: TransferTask, itemsize: int) -> Features:
    """Features of a transfer between placements: its busiest sender's bytes."""
    ranks = tuple(sorted({m.source for m in task.messages} | {m.target for m in task.messages}))
    most = max(sent_nbytes(ActKind.TRANSFER, task, rank, itemsize) for rank in ranks)
    return Features(ActKind.TRANSFER, 0, most, 1, cluster.level(ranks))


def data_sheet(cluster: Cluster, features: Features) -> Coefficients:
    """Constants without measurements: rates of the data sheet, at face value."""
    device = cluster.device
    if features.level:
        link = cluster.link(features.level)
        return Coefficients(link.latency_s, 0.0, 1 / link.bytes_per_s)
    s_per_flop = 1 / device.flop_per_s if features.kind in FLOP_BOUND else 0.0
    return Coefficients(device.launch_s, s_per_flop, 1 / device.memory_bytes_per_s)
