"""Priced points: the objective and the memory of every combination of signatures of one candidate.

Written apart from `strategy.layout.objective`, `makespan` and `lowering.lifetime_peak`, from their definitions:

    times       every act counts in the chunk (stage, lap, phase) that it belongs to, or once, before the first chunk of
                its stage or after the last; a transfer of a micro-batch to the next place of its pass is the message
                between the two. Where weight gradients have no chunks of their own they follow the backward pass at
                once. Where communication overlaps, conversions that no layer waits for are counted apart: all that are
                done once, each for its lap, of what is made of variables alone, and of what only the update needs. Of
                those in a backward pass, what goes on beside products that only the update needs is covered, up to the
                time of these, evenly shared out at the best rate.
    objective   every stage runs its chunks in the order of the schedule, each as soon as the stage is free and its
                message has arrived; a message keeps its sender busy unless messages overlap. A chunk lasts as long as
                its own acts, which what is counted apart or covered (by a 64th at least) and messages slow down, or as
                what is counted apart, which conversions that are waited for or covered hold up on the same links; one
                that waits for its message is not slowed down by that, nor any by those of a single micro-batch. What is
                done once ahead comes lap by lap, and the first chunk of a lap ends behind it; what is done once behind
                goes when the last chunk of its lap has begun, one lap after the other; what goes on beside later chunks
                goes behind it, and is there when the chunk after that ends. Both slow down what computes; so what the
                last backward passes of all laps send leaves later, by half of each share
    memory      every tensor of the device takes its largest piece, in whole lines of 64 bytes, in all its blocks, while
                it lives

What an act costs is the cost model's to say, which acts there are and how long tensors live is the arrangement's.

An act of an op follows from the signature of the op alone, a conversion and a copy of a value from those of the op that
decides its home and of its readers. So layouts are arranged until every such part has been seen once; all points are
then sums of parts. `Points.check` compares sums with whole layouts.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from strategy.base.errors import SbpError
from strategy.base.units import to_ns
from strategy.cost.cost import op_features
from strategy.cost.measurement import Features
from strategy.graph.graph import Graph, Op, Phase, Role, deciding_op
from strategy.graph.ops import op_definition
from strategy.graph.signature import Signature, op_signatures, piece_specs
from strategy.layout.arrangement import Action, Arrangement, Held, arrange
from strategy.layout.convert import Converter, lay_out
from strategy.layout.layout import Layout, home_of, wanted_copies
from strategy.layout.schedule import at_position, chunk_order, position_of
from strategy.program.program import ActKind
from strategy.sbp.placement import Space
from strategy.sbp.tensor import Rate
from tests.support.listed_plans import Listed

IntArray = npt.NDArray[np.int64]
Picks = tuple[int, ...]
Key = tuple[object, ...]
"""("before" | "after", stage), ("chunk", phase, stage, lap), ("message", phase, place) or ("held", stage, time); what
is counted apart ends with "apart", once per step behind its lap, conversions that are waited for end with "waited",
"covered" what is covered of these, and "copied" what moves between a device and its host."""
NOMINAL_BYTES = 1 << 22
"""Of each rank, in an exchange whose time tells how long exchanges are on which links."""
PARTS_OF_NS = 1024
"""What is slowed down is counted in whole parts of a nanosecond."""
LINE = 64
"""Bytes in whole numbers of which blocks are held."""
IMPOSSIBLE = 2**62
"""The objective where a conversion does not exist."""
AT_ONCE = 2**14
"""Points that are summed up at once."""
TRIES = 200
"""Layouts that are drawn to see one part."""


@dataclass(frozen=True, slots=True, eq=False)
class Points:
    """All points of a candidate, in the order of `itertools.product` of its groups' signatures.

    Attributes:
        listed: the candidate.
        objective_ns: (points,).
        peak_nbytes: (points,), of the stage that holds most.
    """

    listed: Listed
    objective_ns: IntArray
    peak_nbytes: IntArray

    def picks(self, point: int) -> Picks:
        """The choice of every group at a point."""
        return tuple(int(pick) for pick in np.unravel_index(point, self.listed.sizes))

    def among(self, keep: Callable[[Op, Signature], bool]) -> Points:
        """The same, without those at which some op has a signature that is not kept."""
        options = [
            [all(keep(op, one) for op in ops) for one in self.listed.options[ops[0].name]] for ops in self.listed.groups
        ]
        kept = np.ones(len(self.objective_ns), bool)
        for allowed, picks in zip(options, np.unravel_index(np.arange(len(kept)), self.listed.sizes), strict=True):
            kept &= np.array(allowed)[picks]
        return replace(self, objective_ns=np.where(kept, self.objective_ns, IMPOSSIBLE))

    def layout(self, point: int) -> Layout:
        """The layout at a point."""
        return laid_out(self.listed, self.picks(point))

    def check(self, rng: random.Random, count: int) -> Iterator[str]:
        """Where sums of parts are not what whole layouts say, at some random points."""
        for point in (rng.randrange(len(self.objective_ns)) for _ in range(count)):
            if self.objective_ns[point] < IMPOSSIBLE:
                found = priced(self.listed, self.layout(point))
                if found != (self.objective_ns[point], self.peak_nbytes[point]):
                    yield f"{self.listed.config}: parts of point {point} do not add up to {found}"


def laid_out(listed: Listed, picks: Picks) -> Layout:
    """The layout of one choice per group.

    Raises:
        SbpError: some conversion does not exist.
    """
    converter = Converter(listed.cost, listed.stages.placements)
    return lay_out(listed.graph, listed.stages, listed.picked(picks), converter)


def priced(listed: Listed, layout: Layout) -> tuple[int, int]:
    """(objective in ns, peak in bytes) of one layout."""
    parts = _Arranged(listed).parts(layout)
    total: dict[Key, int] = defaultdict(int)
    for found in parts.values():
        for key, amount in found.items():
            total[key] += amount
    columns = {key: np.array([amount], np.int64) for key, amount in total.items()}
    return int(_step_ns(listed, columns)[0]), max((a for key, a in total.items() if key[0] == "held"), default=0)


def all_points(listed: Listed) -> Points:
    """Every combination of signatures, priced."""
    tables = _Tables(listed)
    tables.fill()
    objective, peak = np.empty(listed.points, np.int64), np.empty(listed.points, np.int64)
    for begin in range(0, listed.points, AT_ONCE):
        some = slice(begin, min(begin + AT_ONCE, listed.points))
        objective[some], peak[some] = tables.priced(np.arange(some.start, some.stop))
    return Points(listed, objective, peak)


@dataclass(slots=True)
class _Arranged:
    """What the parts of layouts take and hold; prices are remembered."""

    listed: Listed
    converter: Converter = field(init=False)
    seconds: dict[object, int] = field(default_factory=dict)
    group_of: dict[str, int] = field(init=False)
    decides: dict[str, Picks] = field(init=False)
    """Value -> the groups that its conversions follow from, ascending."""
    not_waited_for: frozenset[str] = field(init=False)
    """Values that no layer waits for."""
    covers: dict[str, int] = field(init=False)
    """Value -> the nanoseconds of products for the update alone between the op that writes it and the first reader."""
    ends: dict[str, tuple[str, str]] = field(init=False)
    """These two."""

    def __post_init__(self) -> None:
        graph = self.listed.graph
        self.converter = Converter(self.listed.cost, self.listed.stages.placements)
        self.group_of = {op.name: group for group, ops in enumerate(self.listed.groups) for op in ops}
        self.decides = {}
        for name in graph.values:
            ops = [*graph.consumers[name], *filter(None, [deciding_op(graph, name)])]
            self.decides[name] = tuple(sorted({self.group_of[op.name] for op in ops}))
        self.not_waited_for = _not_waited_for(graph)
        self.covers, self.ends = {}, {}
        products = self._products_for_the_update()
        for name, writer in graph.producer.items():
            ends = [writer, *graph.consumers[name][:1]]
            names, phases = {op.name for op in ends}, {op.phase for op in ends}
            if len(ends) == 2 and phases == {Phase.BACKWARD} and not names & products:
                begin, end = (graph.ops.index(op) for op in ends)
                between = [op for op in graph.ops[begin:end] if op.name in products]
                if between:
                    self.ends[name] = writer.name, ends[1].name
                    self.covers[name] = to_ns(sum(self._evenly_s(op) for op in between))

    def _products_for_the_update(self) -> set[str]:
        """Ops of backward passes that no backward pass of another op waits for."""
        graph, known = self.listed.graph, dict[str, bool]()

        def is_apart(op: Op) -> bool:
            if op.name not in known:
                readers = [r for name in op.outputs for r in (*graph.consumers[name], *graph.followers.get(name, ()))]
                passes = [r for r in readers if r.phase is Phase.BACKWARD and not op_definition(r.kind).accumulates]
                alone = all((r.parameter or r.root) == (op.parameter or op.root) for r in passes)
                known[op.name] = alone and all(map(is_apart, passes))
            return known[op.name]

        backward = [op for op in graph.ops if op.phase is Phase.BACKWARD and not op_definition(op.kind).accumulates]
        return {op.name for op in backward if is_apart(op)}

    def _evenly_s(self, op: Op) -> float:
        """Seconds of a product, evenly shared out; nothing of what is none."""
        listed = self.listed
        ranks = math.prod(listed.config.mesh)
        whole = op_features(listed.graph, op, op_signatures(listed.graph, op, (1, 1))[0], (1, 1))
        return whole.flop // ranks * listed.cost.least_of(whole).s_per_flop if whole.product else 0.0

    def parts(self, layout: Layout) -> dict[Picks, dict[Key, int]]:
        """Groups -> what follows from their choice alone: nanoseconds by account, bytes by stage and time."""
        listed = self.listed
        arrangement = arrange(listed.graph, layout, listed.pipeline)
        found: dict[Picks, dict[Key, int]] = defaultdict(lambda: defaultdict(int))
        left: dict[int, int] = {}
        at = {action.op: (action.phase, action.stage, action.lap) for action in arrangement.actions if action.op}
        for action in arrangement.actions:
            value = "" if action.op else _written(arrangement, action).value
            groups = (self.group_of[action.op],) if action.op else self.decides[value]
            account, took = self._account(arrangement, action), self._act_ns(layout, arrangement, action)
            if account[-1] == "waited" and {at[one] for one in self.ends.get(value, ())} == {account[1:4]}:
                remains = left.get(action.reads[0], self.covers[value])
                covered = min(took, remains)
                left[action.writes[0]] = remains - covered
                found[groups][(*account[:-1], "covered")] += covered
                took -= covered
            found[groups][account] += took
        for tensor in arrangement.tensors:
            if listed.graph.values[tensor.value].space is Space.HOST:
                continue
            nbytes = self._nbytes(tensor)
            for time in range(tensor.lifetime.begin, tensor.lifetime.end):
                found[self.decides[tensor.value]]["held", tensor.stage, time] += nbytes
        return found

    def impossible(self, picks: Picks) -> Iterator[Picks]:
        """The groups whose choice wants a conversion that does not exist."""
        listed, signatures = self.listed, self.listed.picked(picks)
        for copy in wanted_copies(listed.graph, listed.stages, signatures):
            home = home_of(listed.graph, listed.stages, signatures, copy.value)
            if home is not None and (home.stage, home.layout) != (copy.stage, copy.layout):
                try:
                    self.converter.steps(listed.graph.values[copy.value].spec, home, copy.stage, copy.layout)
                except SbpError:
                    yield self.decides[copy.value]

    def _account(self, arrangement: Arrangement, action: Action) -> Key:
        """Where an act counts."""
        found = self._place(action)
        if action.op and self.listed.pipeline.overlaps and self._changes_space(action.op):
            return (*found, "copied") if found[0] == "chunk" else (*found, action.lap, "apart")
        converts = not action.op and action.step is not None and action.kind is not ActKind.TRANSFER
        if not (converts and self.listed.pipeline.overlaps):
            return found
        if found[0] in ("before", "after"):
            return (*found, action.lap, "apart")
        return (*found, "apart" if _written(arrangement, action).value in self.not_waited_for else "waited")

    def _changes_space(self, op: str) -> bool:
        """Whether what it makes is in another memory than what it is made of."""
        graph, found = self.listed.graph, self.listed.graph.by_name[op]
        spaces = {graph.values[name].space for name in (*found.inputs, *found.outputs)}
        return len(found.inputs) == len(found.outputs) == 1 and len(spaces) == 2

    def _place(self, action: Action) -> Key:
        if action.phase is Phase.UPDATE:
            return "after", action.stage
        if action.rate is Rate.STEP:
            return "before", action.stage
        if action.kind is ActKind.TRANSFER and action.phase is not Phase.WEIGHT:
            pipeline, stages = self.listed.pipeline, self.listed.config.pp
            place = position_of(pipeline.schedule, stages, action.stage, action.lap)
            target = place + 1 if action.phase is Phase.FORWARD else place - 1
            exists = 0 <= target < stages * pipeline.laps
            if exists and at_position(pipeline.schedule, stages, target)[0] != action.stage:
                return "message", action.phase, place
        return "chunk", action.phase, action.stage, action.lap

    def _act_ns(self, layout: Layout, arrangement: Arrangement, action: Action) -> int:
        graph, cost, placements = self.listed.graph, self.listed.cost, self.listed.stages.placements
        placement = placements[action.stage]
        if action.op:
            signature = layout.signatures[action.op]
            key: object = action.op, signature
            if key not in self.seconds:
                op = graph.by_name[action.op]
                self.seconds[key] = to_ns(cost.op_seconds(graph, op, signature, placement.mesh))
            return self.seconds[key]
        written = _written(arrangement, action)
        spec = graph.values[written.value].spec
        if action.step is None:
            nbytes = piece_specs([spec], [written.layout], placement.mesh)[0].nbytes
            return to_ns(cost.seconds(Features(ActKind.LOAD, 0, nbytes)))
        source = arrangement.tensors[action.reads[0]].layout
        key = written.value, source, written.layout, action.step, action.stage, written.stage
        if key not in self.seconds:
            if action.kind is ActKind.TRANSFER:
                receiver = placements[written.stage]
                found = cost.transfer_seconds(spec, source, placement, written.layout, receiver)
            else:
                found = cost.seconds(cost.step_features(spec, source, action.step, placement))
            self.seconds[key] = to_ns(found)
        return self.seconds[key]

    def _nbytes(self, tensor: Held) -> int:
        mesh = self.listed.stages.placements[tensor.stage].mesh
        piece = piece_specs([self.listed.graph.values[tensor.value].spec], [tensor.layout], mesh)[0]
        return -(-piece.nbytes // LINE) * LINE * tensor.lifetime.blocks


def _not_waited_for(graph: Graph) -> frozenset[str]:
    """What is made of variables alone, and what backward passes make of what no layer reads, for none to read.

    What an earlier pass leaves is handed on by layers: it waits between the two.
    """
    constant = {name for name, value in graph.values.items() if value.role is Role.VARIABLE}
    for op in graph.ops:
        if op.inputs and op.phase is not Phase.UPDATE and set(op.inputs) <= constant:
            constant |= set(op.outputs)
    often = {name for name, value in graph.values.items() if value.rate is Rate.MICRO_BATCH}
    backward = [op for op in graph.ops if op.phase in (Phase.BACKWARD, Phase.WEIGHT)]
    made = {name: op.phase for op in backward for name in op.outputs}
    layers = {op.name for op in graph.ops if op.phase is Phase.FORWARD}
    layers |= {op.name for op in backward if not op.inputs or not {*op.inputs, *op.outputs, *op.updates} & often}
    while True:
        read = {name for op in graph.ops if op.name in layers for name in op.inputs}
        more = {
            op.name
            for op in backward
            if set(op.outputs) & read
            or any(name in often and (name in read or made.get(name) is not op.phase) for name in op.inputs)
        }
        if more <= layers:
            return frozenset(constant | {name for name in made if name in often and name not in read})
        layers |= more


def _written(arrangement: Arrangement, action: Action) -> Held:
    return arrangement.tensors[action.writes[0]]


@dataclass(slots=True, eq=False)
class _Table:
    """What the choice of a few groups takes and holds: (choices, columns)."""

    groups: Picks
    sizes: Picks
    rows: IntArray
    is_known: npt.NDArray[np.bool_]
    is_impossible: npt.NDArray[np.bool_]


class _Tables:
    """The parts of all points of a candidate."""

    def __init__(self, listed: Listed) -> None:
        self.listed, self.arranged = listed, _Arranged(listed)
        config, pipeline = listed.config, listed.pipeline
        places, stages = range(config.pp * pipeline.laps), range(config.pp)
        keys: list[Key] = [(when, stage) for when in ("before", "after") for stage in stages]
        chunks = [("chunk", phase, stage, lap) for phase in Phase for stage in stages for lap in range(pipeline.laps)]
        keys += [(*key, *more) for key in chunks for more in ((), ("apart",), ("waited",), ("covered",), ("copied",))]
        keys += [(*key, lap, "apart") for key in keys[: 2 * config.pp] for lap in range(pipeline.laps)]
        keys += [("message", phase, place) for phase in (Phase.FORWARD, Phase.BACKWARD) for place in places]
        self.times = len(keys)
        keys += [("held", stage, time) for stage in stages for time in range(len(listed.graph.ops))]
        self.column = {key: column for column, key in enumerate(keys)}
        found = {*self.arranged.decides.values(), *((group,) for group in range(len(listed.groups)))} - {()}
        self.tables = {groups: self._empty(groups) for groups in sorted(found)}

    def _empty(self, groups: Picks) -> _Table:
        sizes = tuple(self.listed.sizes[group] for group in groups)
        count = math.prod(sizes)
        rows = np.zeros((count, len(self.column)), np.int64)
        return _Table(groups, sizes, rows, np.zeros(count, bool), np.zeros(count, bool))

    def fill(self) -> None:
        """Arrange random layouts until every part is known, or known to be impossible."""
        rng, sizes = random.Random(0), self.listed.sizes
        for table in self.tables.values():
            for row in range(len(table.rows)):
                for _ in range(TRIES):
                    if table.is_known[row] or table.is_impossible[row]:
                        break
                    picks = [rng.randrange(size) for size in sizes]
                    for group, pick in zip(table.groups, np.unravel_index(row, table.sizes), strict=True):
                        picks[group] = int(pick)
                    self._learn(tuple(picks))
                else:  # whatever goes with it is impossible, as far as was seen
                    table.is_impossible[row] = True

    def _learn(self, picks: Picks) -> None:
        try:
            layout = lay_out(self.listed.graph, self.listed.stages, self.listed.picked(picks), self.arranged.converter)
        except SbpError:
            for groups in self.arranged.impossible(picks):
                table = self.tables[groups]
                table.is_impossible[self._row(table, picks)] = True
            return
        parts = self.arranged.parts(layout)
        for groups, table in self.tables.items():
            row = self._row(table, picks)
            if not table.is_known[row]:
                table.is_known[row] = True
                for key, amount in parts.get(groups, {}).items():
                    table.rows[row, self.column[key]] = amount

    def _row(self, table: _Table, picks: Sequence[int]) -> int:
        return int(np.ravel_multi_index([picks[group] for group in table.groups], table.sizes))

    def priced(self, points: IntArray) -> tuple[IntArray, IntArray]:
        """(objective in ns, peak in bytes) of some points."""
        picks = np.unravel_index(points, self.listed.sizes)
        total = np.zeros((len(points), len(self.column)), np.int64)
        is_impossible = np.zeros(len(points), bool)
        for table in self.tables.values():
            rows = np.ravel_multi_index([picks[group] for group in table.groups], table.sizes)
            total += table.rows[rows]
            is_impossible |= table.is_impossible[rows]
        columns = {key: total[:, column] for key, column in self.column.items() if column < self.times}
        objective = np.where(is_impossible, IMPOSSIBLE, _step_ns(self.listed, columns))
        return objective, total[:, self.times :].max(axis=1)


def _step_ns(listed: Listed, columns: dict[Key, IntArray]) -> IntArray:
    """The recurrence of the schedule, of all points at once: (points,)."""
    pipeline, p = listed.pipeline, listed.config.pp
    splits, laps = pipeline.schedule.splits_backward, pipeline.laps
    zero = np.zeros_like(next(iter(columns.values())))
    slow = round(PARTS_OF_NS * listed.cost.cluster.device.slowdown) if pipeline.overlaps else 0
    slow_beside_messages = slow if pipeline.num_micro_batches > 1 else 0
    shared, of_messages = _shared(listed), _taken_by_messages(listed)

    def handed_on(phase: Phase, place: int) -> IntArray:
        """What a message takes from that which is beside its sender."""
        return of_messages.get((phase, place), 0) * columns.get(("message", phase, place), zero)

    def taken(*key: object) -> IntArray:
        phases = (Phase.BACKWARD, Phase.WEIGHT) if key[1] is Phase.BACKWARD and not splits else (key[1],)
        return sum((columns.get((key[0], phase, *key[2:]), zero) for phase in phases), zero)

    def chunk(phase: Phase, stage: int, lap: int) -> tuple[IntArray, IntArray]:
        """How long it lasts, and how much of that something is done beside it."""
        own, apart, waited = (taken("chunk", phase, stage, lap, *more) for more in ((), ("apart",), ("waited",)))
        place = position_of(pipeline.schedule, p, stage, lap)
        sent = {Phase.FORWARD: (place, place - 1), Phase.BACKWARD: (place, place + 1)}.get(phase, ())
        messages = sum((columns.get(("message", phase, one), zero) for one in sent), zero)
        covered = taken("chunk", phase, stage, lap, "covered")
        busy = PARTS_OF_NS * apart + shared * (waited + covered) + handed_on(phase, place)
        copied = PARTS_OF_NS * taken("chunk", phase, stage, lap, "copied")
        own = PARTS_OF_NS * (own + waited) + slow * apart + slow_beside_messages * messages
        own = own + max(slow, PARTS_OF_NS // 64) * covered
        return np.maximum(np.maximum(own, busy), copied), busy

    def once(when: str, stage: int) -> tuple[IntArray, IntArray, list[IntArray]]:
        """What is done once itself, how much what is beside it slows down, and that, lap by lap."""
        apart = [columns.get((when, stage, lap, "apart"), zero) for lap in range(laps)]
        share = laps if when == "after" and not splits else 1
        own = PARTS_OF_NS * columns.get((when, stage), zero)
        return own, slow // share * sum(apart, zero), [PARTS_OF_NS * each for each in apart]

    order = [list(chunk_order(pipeline.schedule, p, s, pipeline.num_micro_batches, laps)) for s in range(p)]
    ahead_of = [once("before", stage) for stage in range(p)]
    behind = [once("after", stage) for stage in range(p)]
    free, sent, given = [own + slows for own, slows, _ in ahead_of], [zero] * p, [zero] * p
    left = [zero] * p
    arrival: dict[Key, IntArray] = {}
    while any(order):
        for stage in range(p):
            while order[stage]:
                phase, k, lap = order[stage][0].phase, order[stage][0].micro_batch, order[stage][0].lap
                place, ahead = position_of(pipeline.schedule, p, stage, lap), phase is Phase.FORWARD
                begins = place == (0 if ahead else p * laps - 1) or phase is Phase.WEIGHT
                if not begins and (phase, place, k) not in arrival:
                    break
                order[stage].pop(0)
                took, busy = chunk(phase, stage, lap)
                begin = free[stage] if begins else np.maximum(free[stage], arrival[phase, place, k])
                end = begin + took
                if ahead and k == 0:
                    own, _, gathers = ahead_of[stage]
                    end = np.maximum(end, own + sum(gathers[: lap + 1], zero) + busy + left[stage])
                if ahead:
                    left[stage] = left[stage] + handed_on(phase, place)
                waits = (busy > 0) & (sent[stage] > begin)
                end = np.maximum(end, given[stage])
                sent[stage] = sent[stage] + np.where(waits, busy, 0)
                given[stage] = np.where(waits, sent[stage], given[stage])
                if phase is (Phase.WEIGHT if splits else Phase.BACKWARD) and k == pipeline.num_micro_batches - 1:
                    free_at = np.where(waits, sent[stage], np.maximum(sent[stage], begin + busy))
                    sent[stage] = free_at + behind[stage][2][lap]
                message = (PARTS_OF_NS - slow_beside_messages) * columns.get(("message", phase, place), zero)
                crosses = place and at_position(pipeline.schedule, p, place - 1)[0] != stage
                if phase is Phase.BACKWARD and k == pipeline.num_micro_batches - 1 and crosses and not splits:
                    late = slow // (2 * laps)
                    message = message + late * sum(behind[stage][2], zero) // PARTS_OF_NS
                arrival[phase, place + (1 if ahead else -1), k] = end + message
                free[stage] = end if pipeline.overlaps else end + message
    ends = [np.maximum(free[s] + slows, sent[s]) + own for s, (own, slows, _) in enumerate(behind)]
    return -(-np.asarray(np.max(ends, axis=0)) // PARTS_OF_NS)


def _shared(listed: Listed) -> int:
    """In parts of a nanosecond, how much of one that is waited for what is counted apart is on the same links."""
    sizes = dict(zip(listed.config.axes, listed.config.mesh, strict=True))
    waited_for = next((name for name in ("tensor", "expert", "context") if sizes.get(name, 1) > 1), None)
    apart = [name for name in ("replica", "data", "expert", "context") if sizes.get(name, 1) > 1]
    if waited_for is None or not apart or not listed.pipeline.overlaps:
        return 0
    one, other = _on_levels(listed, [waited_for]), _on_levels(listed, apart)
    return round(PARTS_OF_NS * sum(one[level] * other[level] for level in one))


def _taken_by_messages(listed: Listed) -> dict[tuple[Phase, int], int]:
    """(pass, place) -> in parts of a nanosecond, how much of one of its message what is apart stands still."""
    config, pipeline, per_node = listed.config, listed.pipeline, listed.cost.cluster.devices_per_node
    sizes = dict(zip(config.axes, config.mesh, strict=True))
    apart = [name for name in ("replica", "data", "expert", "context") if sizes.get(name, 1) > 1]
    if not apart or not pipeline.overlaps:
        return {}
    shares, found = _on_levels(listed, apart), {}
    for place in range(config.pp * pipeline.laps - 1):
        here, there = (
            listed.stages.placements[at_position(pipeline.schedule, config.pp, at)[0]].devices
            for at in (place, place + 1)
        )
        if here != there:
            crosses = any(a // per_node != b // per_node for a, b in zip(here, there, strict=True))
            ticks = round(PARTS_OF_NS * shares["inter" if crosses else "intra"])
            found[Phase.FORWARD, place] = found[Phase.BACKWARD, place + 1] = ticks
    return found


def _on_levels(listed: Listed, names: Sequence[str]) -> dict[str, float]:
    """Shares of the time that a large all-gather along axes is inside of nodes and between them."""
    placement, cost = listed.stages.placements[0], listed.cost
    ranks = placement.group(placement.devices[0], *(placement.axes.index(name) for name in names))
    nodes = len({rank // cost.cluster.devices_per_node for rank in ranks})
    inside = len(ranks) // nodes

    def taken(level: str, pieces: int, hops: int) -> float:
        return cost.seconds(Features(ActKind.ALL_GATHER, 0, pieces * NOMINAL_BYTES, hops, level)) if hops else 0.0

    if nodes == 1:
        return {"intra": 1.0, "inter": 0.0}
    flat = taken("inter", len(ranks) - 1, len(ranks) - 1)
    between, within = taken("inter", nodes - 1, nodes - 1), taken("intra", nodes * (inside - 1), inside - 1)
    if inside == 1 or between + within >= flat:
        return {"intra": 0.0, "inter": 1.0}
    return {"intra": within / (between + within), "inter": between / (between + within)}
