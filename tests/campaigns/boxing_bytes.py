"""Conversions carried out: every byte that a loopback carries is one that `boxing` states, and the tensor stays.

All pairs of layouts over one axis, on one placement and between two that are disjoint, overlap, contain one another or
order the same ranks otherwise, in one memory and from devices to hosts and back; then random pairs over two and three
axes, some between two meshes of the same ranks. Some of the chains are cheapest in bytes, the others in seconds on a
cluster of small nodes with slow links between. Where cuts are even, pairs over one axis send what the table of
OneFlow's boxing costs says. What changes memory is copied once; by all ranks together one tensor, unless every rank is
to have all of it.
"""

from __future__ import annotations

import itertools
import math
import random
import threading
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from executor.runtime.collectives import prepare
from executor.runtime.transport.base import HostArray, Transport, wait
from executor.runtime.transport.loopback import SentMessage
from strategy.comm.boxing import BoxingStep, layouts_of
from strategy.comm.chains import Boxing
from strategy.comm.hierarchical import PARTS, box_size, nodes_of
from strategy.comm.rank_parts import boxing_task, transfer_task
from strategy.comm.sent_bytes import part_nbytes, sent_nbytes
from strategy.cost.cost import CostModel
from strategy.cost.step_prices import step_price
from strategy.graph.ops.base import Workspace
from strategy.hardware.cluster import Cluster, Device, Host, Link
from strategy.layout.convert import cross
from strategy.program.program import ActKind, BoxingTask, TransferTask
from strategy.sbp.placement import Placement, Space
from strategy.sbp.sbp import (
    B,
    Broadcast,
    NdSbp,
    Owner,
    Partial,
    Reduce,
    Sbp,
    Split,
    format_nd,
    local_boxes,
    owners,
    reductions,
)
from strategy.sbp.tensor import DType, Shape, TensorSpec, box_shape
from tests.campaigns.outcome import Outcome
from tests.executor.random_boxing import on_threads
from tests.support.oracle import close, gather, scatter
from tests.support.step_prices import StepPrice, each

SBPS: tuple[Sbp, ...] = (Split(0), Split(1), Split(1, 1), B, Owner(1), *map(Partial, Reduce))
EVEN, UNEVEN = (12, 24), (7, 5)
PER_NODE = (2, 3, 4)
_DEVICE = Device("core", "numpy", 2**30, 1e10, 1e10, 1e-6)
_HOST = Host(2**30, 1e10, 1e10, 2e8, 1e-7)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two placements. `relation` is what their ranks have to do with each other."""

    relation: str
    here: Placement
    there: Placement


@dataclass(frozen=True, slots=True)
class Case:
    """One conversion. `per_node` ranks share a node where seconds decide; 0 where bytes do."""

    spec: TensorSpec
    pair: Pair
    source: NdSbp
    target: NdSbp
    per_node: int

    def __str__(self) -> str:
        ends = (f"{format_nd(nd)} on {p.mesh} {p.devices}" for nd, p in zip(self.ends, self.placements, strict=True))
        return f"{self.spec.dtype} {self.spec.shape} from {' to '.join(ends)}, {self.per_node} a node"

    @property
    def is_tabled(self) -> bool:
        """Whether it is over one axis, cut evenly, and cheapest in bytes."""
        return self.spec.shape == EVEN and len(self.pair.here.mesh) == 1

    @property
    def ends(self) -> tuple[NdSbp, NdSbp]:
        return self.source, self.target

    @property
    def placements(self) -> tuple[Placement, Placement]:
        return self.pair.here, self.pair.there


@dataclass(frozen=True, slots=True)
class Act:
    """One step of a conversion on all its ranks."""

    kind: ActKind
    tasks: dict[int, BoxingTask | TransferTask]


def placement(mesh: Shape, devices: Iterable[int], space: Space = Space.DEVICE) -> Placement:
    return Placement(tuple(devices), mesh, ("a", "b", "c")[: len(mesh)], space)


def on_hosts(mesh: Shape, devices: Iterable[int]) -> Placement:
    return placement(mesh, devices, Space.HOST)


LINES = (
    Pair("same", placement((2,), range(2)), placement((2,), range(2))),
    Pair("same", placement((3,), range(3)), placement((3,), range(3))),
    Pair("same", placement((4,), range(4)), placement((4,), range(4))),
    Pair("disjoint", placement((3,), range(3)), placement((3,), range(3, 6))),
    Pair("disjoint", placement((2,), range(2)), placement((4,), range(2, 6))),
    Pair("overlapping", placement((3,), range(3)), placement((4,), range(1, 5))),
    Pair("subset", placement((4,), range(4)), placement((2,), (1, 2))),
    Pair("subset", placement((2,), (2, 0)), placement((4,), range(4))),
    Pair("another order", placement((3,), (0, 1, 2)), placement((3,), (2, 0, 1))),
    Pair("the other memory", placement((2,), range(2)), on_hosts((2,), range(2))),
    Pair("the other memory", on_hosts((3,), range(3)), placement((3,), range(3))),
    Pair("disjoint", placement((3,), range(3)), on_hosts((2,), range(3, 5))),
    Pair("disjoint", on_hosts((2,), range(2)), placement((3,), range(2, 5))),
    Pair("overlapping", placement((3,), range(3)), on_hosts((4,), range(1, 5))),
    Pair("subset", on_hosts((4,), range(4)), placement((2,), (2, 0))),
)
"""Pairs of placements of one axis."""

MESHES = (
    Pair("same", placement((2, 4), range(8)), placement((2, 4), range(8))),
    Pair("same", placement((3, 2), range(6)), placement((3, 2), range(6))),
    Pair("same", placement((2, 2, 2), range(8)), placement((2, 2, 2), range(8))),
    Pair("same", placement((2, 1, 3), range(6)), placement((2, 1, 3), range(6))),
    Pair("regrouped", placement((2, 4), range(8)), placement((4, 2), range(8))),
    Pair("regrouped", placement((2, 2, 2), range(8)), placement((8,), range(8))),
    Pair("disjoint", placement((2, 2), range(4)), placement((2, 2), range(4, 8))),
    Pair("disjoint", placement((2, 2, 2), range(8)), placement((2, 2), range(8, 12))),
    Pair("overlapping", placement((2, 2), range(4)), placement((3, 2), range(2, 8))),
    Pair("subset", placement((2, 2, 2), range(8)), placement((2, 2), (5, 4, 1, 0))),
    Pair("the other memory", placement((2, 3), range(6)), on_hosts((2, 3), range(6))),
    Pair("the other memory", on_hosts((2, 2, 2), range(8)), placement((2, 2, 2), range(8))),
    Pair("regrouped", placement((4, 2), range(8)), on_hosts((2, 4), range(8))),
)
"""Pairs of placements of two and three axes."""

QUOTAS = {
    "2-D": 0.3,
    "3-D": 0.3,
    "uneven": 0.3,
    "several axes at once": 0.1,
    "two levels": 0.04,
    "maximum or minimum": 0.25,
    "rotated": 0.1,
    "owner": 0.1,
    "same": 0.2,
    "regrouped": 0.1,
    "disjoint": 0.06,
    "overlapping": 0.03,
    "subset": 0.03,
    "the other memory": 0.06,
    "copied to or from hosts": 0.1,
}
"""Of the random pairs; those over one axis are all there, or too few."""


def run(cases: int, seed: int, *, every: int = 1) -> Outcome:
    """Check every pair over one axis, or one in `every`, and `cases` random ones over several."""
    lines = list(line_cases())[::every]
    total = len(lines) + cases
    quotas = {key: share * cases / total for key, share in QUOTAS.items()}
    wanted = Counter(f"1-D {case.pair.relation}" for case in lines)
    outcome = Outcome(quotas | {key: count / total for key, count in wanted.items()})
    rng = random.Random(seed)
    for case in itertools.chain(lines, (random_case(rng) for _ in range(cases))):
        acts = conversion(case)
        outcome.add(str(case), check(case, acts, rng.randrange(2**32)), exercised(case, acts))
    return outcome


def line_cases() -> Iterator[Case]:
    """Every pair of layouts over one axis on every pair of placements, even and uneven."""
    for number, (pair, shape, source, target) in enumerate(itertools.product(LINES, (EVEN, UNEVEN), SBPS, SBPS)):
        sums = Partial() in (source, target)
        dtype = DType.INT32 if number % 2 and not sums else DType.FLOAT64
        yield Case(TensorSpec(shape, dtype), pair, (source,), (target,), 0 if shape == EVEN else 2)


def random_case(rng: random.Random) -> Case:
    """A pair of layouts over several axes."""
    pair = rng.choice(MESHES)
    shape = rng.choice(((16, 8), (8, 9), (17, 10)))
    reduces = rng.choice(((Reduce.SUM,), (Reduce.SUM, Reduce.MAX), (Reduce.MIN,)))
    dtype = DType.INT64 if reduces == (Reduce.MIN,) and rng.random() < 0.5 else DType.FLOAT64
    spec = TensorSpec(shape, dtype)
    source, target = (
        rng.choice(layouts_of(spec, p.mesh, reduces=reduces, special=_special(rng, p.mesh)))
        for p in (pair.here, pair.there)
    )
    return Case(spec, pair, source, target, rng.choice((0, *PER_NODE)))


def _special(rng: random.Random, mesh: Shape) -> list[list[Sbp]]:
    """Of two axes, one along which a dim may be rotated, now and then; else, now and then, owners."""
    turning = rng.choice((None, 0, 1)) if len(mesh) == 2 else None
    if turning is None:
        owned: list[Sbp] = [Owner(0), Owner(1)]
        return [owned if rng.random() < 0.4 else [] for _ in mesh]
    return [
        [Split(rng.randrange(2), rng.randrange(1, parts))] if axis == turning else [] for axis, parts in enumerate(mesh)
    ]


def exercised(case: Case, acts: list[Act]) -> Iterator[str]:
    """What a case is good for."""
    axes = max(len(p.mesh) for p in case.placements)
    if axes == 1:
        yield f"1-D {case.pair.relation}"
        return
    yield f"{axes}-D"
    yield case.pair.relation
    if any(act.kind is ActKind.COPY for act in acts):
        yield "copied to or from hosts"
    pieces = (local_boxes(case.spec.shape, nd, p.mesh) for nd, p in zip(case.ends, case.placements, strict=True))
    if any(len(set(map(box_shape, boxes))) > 1 for boxes in pieces):
        yield "uneven"
    if any(reductions(nd) - {Reduce.SUM} for nd in case.ends):
        yield "maximum or minimum"
    if any(map(owners, case.ends)):
        yield "owner"
    if any(isinstance(sbp, Split) and sbp.shift for nd in case.ends for sbp in nd):
        yield "rotated"
    tasks = [next(iter(act.tasks.values())) for act in acts]
    groups = [task for task in tasks if isinstance(task, BoxingTask)]
    if any(task.nodes for task in groups):
        yield "two levels"
    if any(len(task.group) not in (*case.pair.here.mesh, *case.pair.there.mesh) for task in groups):
        yield "several axes at once"


def cost_of(per_node: int) -> CostModel:
    """Nodes of a few ranks, between which links are ten times as slow."""
    return CostModel(Cluster("nodes", 12, per_node, _DEVICE, Link(1e9, 1e-8), Link(1e8, 1e-7), _HOST), {})


@cache
def boxing_on(where: Placement, per_node: int) -> Boxing:
    """Conversions that are cheapest in seconds; in bytes where nothing is known of nodes."""
    return Boxing(where, step_price(cost_of(per_node), where) if per_node else each(bytes_on(where)))


def bytes_on(where: Placement) -> StepPrice:
    """Bytes that all ranks send in a step."""

    def price(spec: TensorSpec, source: NdSbp, step: BoxingStep) -> float:
        total = 0
        for group in where.groups(*step.axes):
            task = boxing_task(spec, source, step, where, group[0])
            total += sum(sent_nbytes(step.kind, task, rank, spec) for rank in group)
        return float(total)

    return price


def conversion(case: Case) -> list[Act]:
    """The acts of the cheapest conversion."""
    (here, there), spec, cost = case.placements, case.spec, cost_of(case.per_node or 1)
    home, away = boxing_on(here, case.per_node), boxing_on(there, case.per_node)
    if here == there:
        steps = home.chain(spec, case.source, case.target)
    else:

        def moving(left: NdSbp, right: NdSbp) -> float:
            if case.per_node:
                return cost.transfer_seconds(spec, left, here, right, there)
            task = transfer_task(spec, left, here, right, there)
            return float(sum(sent_nbytes(ActKind.TRANSFER, task, rank, spec) for rank in here.devices))

        def copying(layout: NdSbp, ranks: Placement) -> float:
            if case.per_node:
                return cost.copy_seconds(spec, layout, ranks, there.space)
            return sum(map(box_size, local_boxes(spec.shape, layout, ranks.mesh))) * spec.dtype.nbytes / 2

        steps = cross(spec, case.source, home, case.target, away, moving, copying).steps
    acts, where, layout = [], here, case.source
    for step in steps:
        tasks: dict[int, BoxingTask | TransferTask] = {}
        if step.kind is ActKind.TRANSFER:
            task = transfer_task(spec, layout, here, step.target, there)
            tasks = dict.fromkeys(sorted({*here.devices, *there.devices}), task)
            where = there
        else:
            for rank in where.devices:
                part = boxing_task(spec, layout, step, where, rank)
                if case.per_node and cost.step_features(spec, layout, step, where).parts:
                    part = replace(part, nodes=nodes_of(cost.cluster, part.group))
                tasks[rank] = part
        acts.append(Act(step.kind, tasks))
        layout = step.target
    return acts


def check(case: Case, acts: list[Act], seed: int) -> Iterator[str]:
    """Carry the acts out on threads, and compare bytes and values."""
    rng, spec = np.random.default_rng(seed), case.spec
    whole = rng.integers(-99, 99, spec.shape).astype(str(spec.dtype))
    (here, there), (source, target) = case.placements, case.ends
    pieces = dict(zip(here.devices, scatter(whole, source, here.mesh, rng), strict=True))
    carried = Carried(case.per_node or 1)
    ranks = max(*here.devices, *there.devices) + 1
    after: dict[int, HostArray] = {}
    transports = on_threads(ranks, lambda t: after.update(play(acts, pieces, t)), tamper=carried)
    for number, act in enumerate(acts):
        for rank, task in act.tasks.items():
            stated = part_nbytes(act.kind, task, rank, spec)
            found = carried.levels(number, rank)
            if sum(found.values()) != sum(stated):
                yield f"{act.kind} of rank {rank} sends {sum(found.values())} bytes, not {sum(stated)}"
            if isinstance(task, BoxingTask) and task.nodes:
                levels = Counter({"intra": 0, "inter": 0})
                for (_, level), nbytes in zip(PARTS[act.kind], stated, strict=True):
                    levels[level] += nbytes
                if levels != found:
                    yield f"{act.kind} of rank {rank} sends {dict(found)} by level, not {dict(levels)}"
    if sum(carried.nbytes.values()) != sum(sum(t.bytes_sent.values()) for t in transports):
        yield "the transports count other bytes than they carry"
    if not close(gather([after[rank] for rank in there.devices], target, there.mesh), whole):
        yield "the tensor is another one"
    wanted = table_nbytes(case)
    if wanted is not None and sum(carried.nbytes.values()) != wanted:
        yield f"{sum(carried.nbytes.values())} bytes, the table says {wanted}"
    copied = [sum(box_size(task.target_boxes[0]) for task in act.tasks.values()) for act in copies(acts)]
    if len(copied) != (here.space is not there.space):
        yield f"{len(copied)} copies from {here.space} to {there.space}"
    if case.is_tabled and case.pair.relation == "the other memory":
        whole_each = source == target and isinstance(source[0], Broadcast | Partial)
        most = math.prod(spec.shape) * (len(here.devices) if whole_each else 1)
        if copied != [most]:
            yield f"{copied} elements are copied, not {most}"


def copies(acts: list[Act]) -> list[Act]:
    """The acts that bring pieces to the other memory of their ranks."""
    return [act for act in acts if act.kind is ActKind.COPY]


class Carried:
    """Bytes that a loopback carries between different ranks, by rendezvous, sender and level."""

    def __init__(self, per_node: int) -> None:
        self.per_node = per_node
        self.nbytes: Counter[tuple[int, int, str]] = Counter()
        self.lock = threading.Lock()

    def __call__(self, message: SentMessage) -> Iterable[SentMessage]:
        source, target = message.channel.source, message.channel.target
        if source != target:
            level = "intra" if source // self.per_node == target // self.per_node else "inter"
            with self.lock:
                self.nbytes[message.number, source, level] += len(message.payload)
        return [message]

    def levels(self, number: int, rank: int) -> Counter[str]:
        """Bytes that a rank sent in one act."""
        return Counter({level: self.nbytes[number, rank, level] for level in ("intra", "inter")})


def play(acts: list[Act], pieces: dict[int, HostArray], transport: Transport) -> dict[int, HostArray]:
    """One rank's part of a conversion; gives what it then holds."""
    rank = transport.rank
    held = pieces.get(rank)
    for number, act in enumerate(acts):
        task = act.tasks.get(rank)
        if task is None:
            continue
        before, after = _ends(task, rank)
        kept = held if before else None
        held = np.empty(after, next(iter(pieces.values())).dtype) if after is not None else None
        scratch = Workspace(np)
        for request in prepare(act.kind, task, rank, number, transport, kept, held, scratch)():
            wait(request, transport, timeout_s=30)
    return {} if held is None else {rank: held}


def _ends(task: BoxingTask | TransferTask, rank: int) -> tuple[bool, Shape | None]:
    """Whether a rank has a piece before an act, and the shape of what it has after."""
    if isinstance(task, BoxingTask):
        return True, box_shape(task.target_boxes[task.group.index(rank)])
    return rank in task.source_boxes, box_shape(task.target_boxes[rank]) if rank in task.target_boxes else None


def table_nbytes(case: Case) -> int | None:
    """What OneFlow's table says of a pair over one axis that is cut evenly and cheapest in bytes; None of others.

    Into terms it says penalties, not bytes, and of ranks on both sides it does not say what they keep.
    """
    (here, there), (source, target) = case.placements, (nd[0] for nd in case.ends)
    if not case.is_tabled or isinstance(target, Partial):
        return None
    total, parts, others = case.spec.nbytes, len(here.devices), len(there.devices)
    if case.pair.relation == "disjoint":
        return total * ((others if target == B else 1) + (parts - 1 if isinstance(source, Partial) else 0))
    if case.pair.relation not in ("same", "the other memory"):
        return None
    if source in (target, B):
        return 0
    if isinstance(source, Split) and isinstance(target, Split) and source.dim == target.dim:
        return total
    if isinstance(source, Partial):
        return total * (parts - 1) * (2 if target == B else 1)
    return total * (parts - 1) if target == B else total * (parts - 1) // parts
