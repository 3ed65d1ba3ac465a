"""The search for signatures as a `Problem`: which signature for each op, so that acts and conversions cost least.

Every op is a node whose choices are its signatures. Repeated layers are tied: the ops of one template are one node
whose costs are summed over the layers; what computes an op again is laid out like it. A conversion is paid once however
many readers share the copy, so a copy is a node of its own:

    op that writes x --- copy of x in layout b --- ops that read x

Without a memory limit a copy is `unused` or `used`, at a price on the edge to the writer; a copy that one op alone can
want needs no node, only an edge from writer to reader. With a limit, the copy's choices name the layout that it comes
from, so that its own choice says which tensors its conversion holds. All of this is exact: the cost of a choice is the
weighted sum of `objective.stage_times_ns`, its peak that of `lifetime_peak`. Except that what an owner holds counts as
the share of every rank, for owners are chosen so that ranks are about equally full.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import numpy.typing as npt

from strategy.boxing import BoxingStep
from strategy.convert import Converter
from strategy.cost import CostModel
from strategy.errors import InfeasibleError
from strategy.graph import Graph, Op, act_rate, deciding_op, template_name
from strategy.layout import Copy, Home, Stages, home_position
from strategy.lowering.arrangement import Lifetime, Lifetimes, Pipeline, held_by_conversion
from strategy.lowering.memory import aligned
from strategy.objective import load_features, rate_weight
from strategy.placement import Space
from strategy.problem import FORBIDDEN, Edge, Node, Problem, Usage
from strategy.program import ActKind
from strategy.sbp import NdSbp, Owner
from strategy.search.binding_stages import Tenancy, binding_stages, copy_lifetimes
from strategy.search.restriction import complete
from strategy.signature import Signature, op_signatures, piece_specs
from strategy.tensor import Rate, TensorSpec
from strategy.units import to_ns

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

# Kinds of tables that are made of parts: prices where a copy is read, or used; what needs it; a sum.
_LINK, _USE, _SUM, _NEED = range(4)

Keep = Callable[[Op, Signature], bool]
"""Whether a signature of an op may be chosen: how pins and rules restrict the search."""


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """One graph on one pipeline of equal meshes; `weights` say how much each stage's time counts."""

    graph: Graph
    stages: Stages
    pipeline: Pipeline
    cost: CostModel
    converter: Converter
    weights: tuple[int, ...]
    keep: Keep
    owned: bool = False
    """Whether tensors may be with one rank of the data axis."""
    folded: bool = True
    """Whether repeated layers share their decisions; else every op has its own, which costs time and may gain some."""
    by_hand: Keep | None = None
    """Which signatures a person would choose from: where a solver begins."""
    known: dict[str, tuple[Signature, ...]] = field(default_factory=dict, compare=False)
    """The options of ops by their names, found once for all weights."""

    def options(self, op: Op) -> tuple[Signature, ...]:
        """The signatures that an op may have."""
        if op.name not in self.known:
            legal = op_signatures(self.graph, op, self.mesh, owned=self.owned)
            self.known[op.name] = tuple(signature for signature in legal if self.keep(op, signature))
        return self.known[op.name]

    @property
    def mesh(self) -> tuple[int, ...]:
        """The mesh of every stage."""
        return self.stages.placements[0].mesh

    def weight(self, stage: int, rate: Rate) -> int:
        """What one act of a stage counts in the weighted objective."""
        return self.weights[stage] * rate_weight(rate, self.pipeline, len(self.stages.placements))


@dataclass(frozen=True, slots=True)
class LayoutProblem:
    """A problem, and how to read its answer: `classes[i]` are the ops that node i decides, with their signatures."""

    problem: Problem
    classes: tuple[tuple[tuple[str, ...], tuple[Signature, ...]], ...]

    def signatures(self, choice: Sequence[int]) -> dict[str, Signature]:
        """Op name -> chosen signature."""
        return {
            name: options[pick] for (names, options), pick in zip(self.classes, choice, strict=False) for name in names
        }

    def kept_by(self, keep: Keep, graph: Graph) -> list[list[int]]:
        """The choices of every class that a rule keeps, by what it says of the first op; all where it keeps none."""
        found = []
        for names, options in self.classes:
            op = graph.by_name[names[0]]
            few = [choice for choice, option in enumerate(options) if keep(op, option)]
            found.append(few or list(range(len(options))))
        return found

    def choice_of(self, signatures: Mapping[str, Signature]) -> tuple[int, ...]:
        """The choice in which every class has the signature of its first op, and copies are made as these want."""
        return complete(self.problem, [few[0] for few in self.choices_in([signatures])])

    def choices_in(self, known: Sequence[Mapping[str, Signature]]) -> list[list[int]]:
        """The choices of every class that are the signature of its first op in one of several answers."""
        return [
            sorted({options.index(signatures[names[0]]) for signatures in known}) for names, options in self.classes
        ]


@dataclass(slots=True)
class _Class:
    """Ops that share one decision. Those of one `kind` have the same choices at the same cost."""

    index: int
    kind: int
    ops: list[Op]
    options: tuple[Signature, ...]


@dataclass(frozen=True, slots=True)
class _Writer:
    """The class that decides a value's home; the position is among the layouts of its signatures."""

    found: _Class
    position: int

    @property
    def homes(self) -> list[NdSbp]:
        """The home layout under each choice."""
        return [option.layouts[self.position] for option in self.found.options]

    @property
    def key(self) -> tuple[int, int]:
        """What writers with the same homes have in common."""
        return self.found.kind, self.position


@dataclass(slots=True)
class _Bundle:
    """Values of one template with alike writers and readers: where each instance is and goes."""

    writer: _Writer | None
    readers: tuple[tuple[_Class, tuple[int, ...]], ...]
    spec: TensorSpec
    instances: list[tuple[str, int, int]] = field(default_factory=list)
    moves: dict[tuple[int, int], int] = field(default_factory=dict)
    """(home stage, reader's stage) -> how often a step of the pipeline makes that conversion."""


@dataclass(slots=True)
class _Alike:
    """Conversions whose tensors live alike: one of them, and what every step holds, by position of the source."""

    source: Home
    steps: tuple[BoxingStep, ...]
    held: dict[int, tuple[int, ...]] = field(default_factory=dict)


def layout_problem(space: SearchSpace, *, limit: int | None = None, deadline: float = math.inf) -> LayoutProblem:
    """The problem of a search space; with `limit`, memory per rank is bounded at every time.

    Raises:
        InfeasibleError: `keep` leaves an op without signature.
        TimeoutError: `deadline` (time.monotonic) has passed.
    """
    return _Builder(space, limit, deadline).build()


class _Builder:
    def __init__(self, space: SearchSpace, limit: int | None, deadline: float) -> None:
        self.space, self.limit, self.deadline = space, limit, deadline
        self.graph = space.graph
        self.lifetimes = Lifetimes(space.graph, space.stages, space.pipeline)
        self.classes: list[_Class] = []
        self.class_of: dict[str, _Class] = {}
        self.held: dict[str, _Class] = {}
        self.costs: list[list[int]] = []
        self.usages: list[list[Usage]] = []
        self.names: list[str] = []
        self.edges: dict[tuple[int, int], IntArray] = {}
        self.sizes: dict[tuple[TensorSpec, NdSbp], int] = {}
        # What alike classes have in common is made once, and is then told by its identity: repeated layers are.
        self.op_ns: dict[int, list[int]] = {}
        self.reads: dict[tuple[int, tuple[int, ...]], dict[NdSbp, BoolArray]] = {}
        self.prices: dict[object, dict[NdSbp, IntArray]] = {}
        self.tables: dict[tuple[int, ...], tuple[IntArray, tuple[object, ...]]] = {}
        self.nobody: dict[int, BoolArray] = {}
        self.wants: dict[tuple[int, tuple[int, ...]], int] = {}
        self.numbers: dict[tuple[frozenset[NdSbp], ...], int] = {}
        self.binding: frozenset[int] = frozenset()  # stages whose memory is bounded

    def build(self) -> LayoutProblem:
        """Nodes for ops, then copies with their edges."""
        self._classify()
        for found in self.classes:
            self._price_ops(found)
        for name, home in self.space.stages.homes.items():
            self._hold(name, home)
        bundles = self._bundles()
        if self.limit is not None:
            self.binding = self._binding(bundles)
            self._occupy_homes()
        for bundle in bundles:
            self._copies(bundle)
        nodes = tuple(
            Node(name, tuple(costs), tuple(usages))
            for name, costs, usages in zip(self.names, self.costs, self.usages, strict=True)
        )
        written = {id(table): tuple(table.ravel().tolist()) for table in self.edges.values()}
        edges = tuple(Edge(tail, head, written[id(table)]) for (tail, head), table in self.edges.items())
        classes = tuple((tuple(op.name for op in c.ops), c.options) for c in self.classes)
        return LayoutProblem(Problem("layout", nodes, edges, self.limit), classes)

    def _classify(self) -> None:
        by_template: dict[str, list[_Class]] = {}
        for op in self.graph.ops:
            options = self.space.options(op)
            if not options:
                raise InfeasibleError(f"no legal signature of op {op.name} satisfies the pins", hint="relax a pin")
            known = by_template.setdefault(template_name(op.repeats or op.name, op.layer), [])
            alike = [c for c in known if c.options == options and self._alike(c.ops[0], op)]
            found = next((c for c in alike if self.space.folded or _decided(c.ops[0]) == _decided(op)), None)
            if found is None:
                index = len(self.classes)
                found = _Class(index, alike[0].kind if alike else index, [], alike[0].options if alike else options)
                known.append(found)
                self.classes.append(found)
            found.ops.append(op)
            self.class_of[op.name] = found

    def _alike(self, one: Op, other: Op) -> bool:
        """Whether two ops of a template cost the same under every signature; layers may differ in width.

        Which random numbers an op draws does not matter.
        """
        shapes = [self.graph.specs((*op.inputs, *op.outputs, *op.updates)) for op in (one, other)]
        attrs = [{name: value for name, value in op.attrs.items() if name != "seed"} for op in (one, other)]
        return (one.kind, attrs[0], shapes[0]) == (other.kind, attrs[1], shapes[1])

    def _add_node(self, name: str, costs: list[int], usages: list[Usage]) -> int:
        self.names.append(name)
        self.costs.append(costs)
        self.usages.append(usages)
        return len(self.names) - 1

    def _price_ops(self, found: _Class) -> None:
        space, first = self.space, found.ops[0]
        if found.kind not in self.op_ns:
            seconds = [space.cost.op_seconds(self.graph, first, option, space.mesh) for option in found.options]
            self.op_ns[found.kind] = [to_ns(s) for s in seconds]
        weight = sum(space.weight(space.stages.stage_of[op.name], act_rate(self.graph, op)) for op in found.ops)
        template = template_name(first.name, first.layer) if len(found.ops) > 1 else first.name
        self._add_node(template, [weight * ns for ns in self.op_ns[found.kind]], [])

    def _hold(self, name: str, home: Home) -> None:
        """What lives where it lives: a node of one choice."""
        self.held[name] = _Class(len(self.names), len(self.names), [], (Signature((home.layout,), ()),))
        self.classes.append(self.held[name])
        self._add_node(f"{name}@home", [0], [])

    def _homes(self) -> Iterator[tuple[str, int, _Class, int]]:
        """(value, stage, the class that decides its home, position among the layouts of its signatures)."""
        for op in self.graph.ops:
            stage = self.space.stages.stage_of[op.name]
            for position, name in enumerate((*op.inputs, *op.outputs, *op.updates)):
                decides = deciding_op(self.graph, name) is op and name not in self.held
                if decides and position == home_position(op, name):
                    yield name, stage, self.class_of[op.name], position
        for name, home in self.space.stages.homes.items():
            yield name, home.stage, self.held[name], 0

    def _occupy_homes(self) -> None:
        """What values hold where they live."""
        for name, stage, found, position in self._homes():
            if stage in self.binding:
                layouts = [option.layouts[position] for option in found.options]
                usage = self._usage(name, stage, self.lifetimes.home(name, stage), layouts)
                self.usages[found.index].append(usage)

    def _binding(self, bundles: Sequence[_Bundle]) -> frozenset[int]:
        """The stages whose memory has to be bounded."""
        times: dict[int, list[int]] = {stage: [] for stage in range(len(self.space.stages.placements))}
        for moment, op in enumerate(self.graph.ops):
            times[self.space.stages.stage_of[op.name]].append(moment)
        tenancies: dict[int, list[Tenancy]] = {stage: [] for stage in times}
        for name, stage, found, position in self._homes():
            value = self.graph.values[name]
            tenancy = Tenancy((found.index, position, value.spec, value.space), self.lifetimes.home(name, stage))
            tenancies[stage].append(tenancy)
        for bundle in bundles:
            writer = None if bundle.writer is None else (bundle.writer.found.index, bundle.writer.position)
            wants = tuple((reader.index, self._wants(reader, positions)) for reader, positions in bundle.readers)
            for name, home, stage in bundle.instances:
                way = None if bundle.writer is None else self.space.converter.way(home, stage)
                for at, role, lifetime in copy_lifetimes(self.lifetimes, name, home, stage):
                    key = writer, wants, bundle.spec, way, role, self.graph.values[name].space
                    tenancies[at].append(Tenancy(key, lifetime))
        return binding_stages(tenancies, times, self.lifetimes.horizon)

    def _usage(self, value: str, stage: int, lifetime: Lifetime, layouts: Sequence[NdSbp | None]) -> Usage:
        spec = self.graph.values[value].spec
        begin, end = self._on_axis(stage, lifetime)
        blocks = 0 if self.graph.values[value].space is Space.HOST else lifetime.blocks
        return Usage(begin, end, tuple(self._nbytes(spec, nd) * blocks for nd in layouts))

    def _on_axis(self, stage: int, lifetime: Lifetime) -> tuple[int, int]:
        """Stages lie one after another on the problem's time axis."""
        offset = stage * self.lifetimes.horizon
        return offset + lifetime.begin, offset + lifetime.end

    def _nbytes(self, spec: TensorSpec, layout: NdSbp | None) -> int:
        if layout is None:
            return 0
        if (spec, layout) not in self.sizes:
            owned = (parts for sbp, parts in zip(layout, self.space.mesh, strict=True) if isinstance(sbp, Owner))
            nbytes = piece_specs([spec], [layout], self.space.mesh)[0].nbytes
            self.sizes[spec, layout] = aligned(-(-nbytes // math.prod(owned)))
        return self.sizes[spec, layout]

    def _bundles(self) -> list[_Bundle]:
        bundles: dict[object, _Bundle] = {}
        stage_of = self.space.stages.stage_of
        for name, value in self.graph.values.items():
            writer = self._writer(name)
            by_stage: dict[int, dict[int, tuple[_Class, tuple[int, ...]]]] = {}
            for op in self.graph.consumers[name]:
                reader = self.class_of[op.name]
                found = by_stage.setdefault(stage_of[op.name], {})
                known = found[reader.index][1] if reader.index in found else ()
                positions = {i for i, read in enumerate(op.inputs) if read == name}
                found[reader.index] = (reader, tuple(sorted(positions.union(known))))
            decider = deciding_op(self.graph, name)
            home = -1 if decider is None else stage_of[decider.name]
            if name in self.held:
                home = self.space.stages.homes[name].stage
            for stage, readers in by_stage.items():
                wanted = tuple((index, positions) for index, (_, positions) in readers.items())
                source = None if writer is None else (writer.found.index, writer.position)
                key = (source, wanted, home == stage, value.spec, value.role)
                bundle = bundles.setdefault(key, _Bundle(writer, tuple(readers.values()), value.spec))
                bundle.instances.append((name, home, stage))
                times = rate_weight(value.rate, self.space.pipeline, len(self.space.stages.placements))
                bundle.moves[home, stage] = bundle.moves.get((home, stage), 0) + times
        return list(bundles.values())

    def _writer(self, name: str) -> _Writer | None:
        if name in self.held:
            return _Writer(self.held[name], 0)
        op = deciding_op(self.graph, name)
        return None if op is None else _Writer(self.class_of[op.name], home_position(op, name))

    def _copies(self, bundle: _Bundle) -> None:
        reads = [self._reads(reader, positions) for reader, positions in bundle.readers]
        for layout in dict.fromkeys(layout for found in reads for layout in found):
            if time.monotonic() > self.deadline:
                raise TimeoutError("the layout problem was not built in time")
            if self.limit is None and bundle.writer is not None and len(bundle.readers) == 1:
                self._link(bundle, bundle.writer, layout, reads[0][layout])
            else:
                self._copy_node(bundle, layout, reads)

    def _priced(self, bundle: _Bundle, sources: Sequence[NdSbp], layout: NdSbp) -> list[int]:
        """What a copy costs by the layout that it comes from."""
        totals, weights, converter = [0] * len(sources), self.space.weights, self.space.converter
        ways: dict[tuple[int, int], tuple[int, int, int, int]] = {}
        for (home, stage), times in bundle.moves.items():
            way = converter.way(home, stage)
            *_, leaves, arrives = ways.get(way, (0, 0, 0, 0))
            ways[way] = home, stage, leaves + times * weights[home], arrives + times * weights[stage]
        for home, stage, leaves, arrives in ways.values():
            for i, (leaving, arriving) in enumerate(converter.all_prices_ns(bundle.spec, home, sources, stage, layout)):
                if totals[i] == FORBIDDEN or leaving + arriving == math.inf:
                    totals[i] = FORBIDDEN
                else:
                    totals[i] += leaves * int(leaving) + arrives * int(arriving)
        return totals

    def _reads(self, reader: _Class, positions: tuple[int, ...]) -> dict[NdSbp, BoolArray]:
        """Layout that some choice of a reader wants at its positions -> which of its choices do."""
        found = self.reads.get((reader.kind, positions))
        if found is None:
            found = self.reads[reader.kind, positions] = {}
            for choice, option in enumerate(reader.options):
                for position in positions:
                    layout = option.inputs[position]
                    if layout not in found:
                        found[layout] = np.zeros(len(reader.options), bool)
                    found[layout][choice] = True
        return found

    def _wants(self, reader: _Class, positions: tuple[int, ...]) -> int:
        """A number for the layouts that a reader wants at its positions under each choice."""
        if (reader.kind, positions) not in self.wants:
            layouts = tuple(frozenset(option.inputs[i] for i in positions) for option in reader.options)
            self.wants[reader.kind, positions] = self.numbers.setdefault(layouts, len(self.numbers))
        return self.wants[reader.kind, positions]

    def _prices(self, bundle: _Bundle, writer: _Writer, layout: NdSbp) -> IntArray:
        """What a copy costs under each choice of its writer."""
        key = (*writer.key, bundle.spec, tuple(bundle.moves.items()))
        by_layout = self.prices.setdefault(key, {})
        if layout not in by_layout:
            homes = writer.homes
            sources = list(dict.fromkeys(homes))
            known = dict(zip(sources, self._priced(bundle, sources, layout), strict=True))
            by_layout[layout] = np.array([known[source] for source in homes], np.int64)
        return by_layout[layout]

    def _once(self, kind: int, made: Callable[[], IntArray], *parts: object) -> IntArray:
        """A table made of parts; the same parts give the same table."""
        key = (kind, *map(id, parts))
        if key not in self.tables:
            self.tables[key] = made(), parts
        return self.tables[key][0]

    def _link(self, bundle: _Bundle, writer: _Writer, layout: NdSbp, reads: BoolArray) -> None:
        """A copy that one class alone can want: an edge from its writer."""
        reader, _ = bundle.readers[0]
        prices = self._prices(bundle, writer, layout)
        table = self._once(_LINK, partial(np.outer, prices, reads), prices, reads)
        self._add_edge(writer.found.index, reader.index, table)

    def _copy_node(self, bundle: _Bundle, layout: NdSbp, reads: Sequence[Mapping[NdSbp, BoolArray]]) -> None:
        """A shared copy: its choices, the edge to its writer, and one to every reader, who needs it used."""
        name = f"{bundle.instances[0][0]}>{'.'.join(map(str, layout))}@{bundle.instances[0][2]}"
        if bundle.writer is None:
            node = self._loaded(bundle, layout, name)
        elif self.limit is None:
            prices = self._prices(bundle, bundle.writer, layout)
            node = self._add_node(name, [0, 0], [])
            self._add_edge(bundle.writer.found.index, node, self._once(_USE, partial(np.outer, prices, [0, 1]), prices))
        else:
            node = self._copy_with_memory(bundle, bundle.writer, layout, name)
        width = len(self.costs[node])
        for (reader, _), found in zip(bundle.readers, reads, strict=True):
            wants = found.get(layout)
            if wants is None:
                wants = self.nobody.setdefault(len(reader.options), np.zeros(len(reader.options), bool))
            self._add_edge(reader.index, node, self._once(_NEED + width, partial(_needs, wants, width), wants))

    def _loaded(self, bundle: _Bundle, layout: NdSbp, name: str) -> int:
        cost, usages = 0, []
        for value, _, stage in bundle.instances:
            seconds = self.space.cost.seconds(load_features(bundle.spec, layout, self.space.mesh))
            cost += self.space.weight(stage, Rate.MICRO_BATCH) * to_ns(seconds)
            if stage in self.binding:
                lifetime = self.lifetimes.copy(value, stage, arrives=True)
                usages.append(self._usage(value, stage, lifetime, [None, layout]))
        return self._add_node(name, [0, cost], usages)

    def _copy_with_memory(self, bundle: _Bundle, writer: _Writer, layout: NdSbp, name: str) -> int:
        homes = writer.homes
        sources = list(dict.fromkeys(homes))
        prices = self._priced(bundle, sources, layout)
        legal = [(s, p) for s, p in zip(sources, prices, strict=True) if p < FORBIDDEN]
        usages: list[Usage] = []
        conversions: dict[tuple[int, int], list[_Alike]] = {}
        for value, home, stage in bundle.instances:
            if self.graph.values[value].space is Space.HOST or not self.binding & {home, stage}:
                continue
            if (home, stage) not in conversions:
                conversions[home, stage] = self._conversions(bundle, [s for s, _ in legal], home, stage, layout)
            amounts: dict[tuple[int, int], list[int]] = {}
            for alike in conversions[home, stage]:
                chain = held_by_conversion(self.lifetimes, Copy(value, stage, layout), alike.source, alike.steps)
                for step, (at, _, lifetime, _) in enumerate(chain):
                    if at not in self.binding:
                        continue
                    held = amounts.setdefault(self._on_axis(at, lifetime), [0] * (len(legal) + 1))
                    for position, nbytes in alike.held.items():
                        held[position + 1] += nbytes[step] * lifetime.blocks
            usages += [Usage(begin, end, tuple(held)) for (begin, end), held in amounts.items()]
        node = self._add_node(name, [0, *(price for _, price in legal)], usages)
        place = {source: i for i, (source, _) in enumerate(legal, 1)}
        origins, homes_at = np.arange(len(legal) + 1), np.array([place.get(home, -1) for home in homes])
        matches = (origins[None, :] == 0) | (origins[None, :] == homes_at[:, None])
        self._add_edge(writer.found.index, node, np.where(matches, 0, FORBIDDEN))
        return node

    def _conversions(
        self, bundle: _Bundle, sources: Sequence[NdSbp], home: int, stage: int, layout: NdSbp
    ) -> list[_Alike]:
        """The conversions to one copy; those whose transfers lie at the same steps hold memory at the same times."""
        found: dict[tuple[bool, ...], _Alike] = {}
        for position, source in enumerate(sources):
            if (home, source) == (stage, layout):
                continue
            steps = self.space.converter.steps(bundle.spec, Home(home, source), stage, layout)
            shape = tuple(step.kind is ActKind.TRANSFER for step in steps)
            alike = found.setdefault(shape, _Alike(Home(home, source), steps))
            alike.held[position] = tuple(self._nbytes(bundle.spec, step.target) for step in steps)
        return list(found.values())

    def _add_edge(self, tail: int, head: int, table: IntArray) -> None:
        """Add a table to the pair; an edge from a node to itself is part of the node's own cost."""
        if tail == head:
            own = np.minimum(np.array(self.costs[tail]) + np.diagonal(table), FORBIDDEN)
            self.costs[tail] = own.tolist()
            return
        known = self.edges.get((tail, head))
        if known is not None:
            table = self._once(_SUM, lambda: np.minimum(known + table, FORBIDDEN), known, table)
        self.edges[tail, head] = table


def _decided(op: Op) -> str:
    """The op whose decision it is how an op is laid out: what computes an op again is laid out like it."""
    return op.repeats or op.name


def _needs(wants: BoolArray, width: int) -> IntArray:
    """Who wants a copy may not leave it unused, its choice 0."""
    table = np.zeros((wants.size, width), np.int64)
    table[wants, 0] = FORBIDDEN
    return table


def free(op: Op, signature: Signature) -> bool:
    """Keep every signature."""
    return True


def all_of(rules: Mapping[str, Keep]) -> Keep:
    """Keep what every rule keeps."""
    return lambda op, signature: all(rule(op, signature) for rule in rules.values())
