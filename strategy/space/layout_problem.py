"""The search for signatures as a `Problem`: which signature for each op, so that acts and conversions cost least.

Every class of ops is a node whose choices are its signatures, and whose costs are summed over its ops. A conversion is
paid once however many readers share the copy, so a copy is a node of its own:

    op that writes x --- copy of x in layout b --- ops that read x

Without a memory limit a copy is `unused` or `used`, at a price on the edge to the writer; a copy that one class alone
can want needs no node, only an edge from writer to reader. With a limit, the copy's choices name the layout that it
comes from, so that its own choice says which tensors its conversion holds. All of this is exact: the cost of a choice
is the length of the space's paths under `objective.pipeline_times`, its peak that of `lifetime_peak`, but for what
owners hold (`layout_memory`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.units import to_ns
from strategy.cost.cost import by_groups
from strategy.graph.graph import Graph
from strategy.graph.signature import Signature, piece_specs
from strategy.ilp.problem import FORBIDDEN, Problem
from strategy.layout.layout import Home
from strategy.layout.objective import load_features
from strategy.sbp.sbp import NdSbp
from strategy.sbp.tensor import TensorSpec
from strategy.space.bundles import Bundle, Move, Weights, bundles, in_parts
from strategy.space.classes import Classes, OpClass, Writer, classify
from strategy.space.counts import IntArray
from strategy.space.layout_memory import LayoutMemory
from strategy.space.problem_builder import LinearProblem, ProblemBuilder, Table, Weighing, weighed
from strategy.space.restriction import complete
from strategy.space.space import Keep, Keeping, SearchSpace, Weight

BoolArray = npt.NDArray[np.bool_]
Reading = tuple[tuple[OpClass, tuple[int, ...]], ...]
"""Classes that read a value, each with its positions."""

_USED = Table(np.array([False, True]))
"""Whether the price of a copy is paid where it is unused, and where it is used."""


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


@dataclass(frozen=True, slots=True)
class LinearLayoutProblem:
    """A layout problem whose costs are linear in weights; `classes` as of a `LayoutProblem`."""

    linear: LinearProblem
    classes: tuple[tuple[tuple[str, ...], tuple[Signature, ...]], ...]

    def at(self, weighing: Weighing) -> LayoutProblem:
        """The problem under weights."""
        return LayoutProblem(self.linear.at(weighing), self.classes)


def layout_problem(space: SearchSpace, *, limit: int | None = None, budget: Budget = UNLIMITED) -> LayoutProblem:
    """The problem of a search space; with `limit`, memory per rank is bounded at every time.

    Raises:
        InfeasibleError: `keep` leaves an op without signature.
        OutOfTimeError: the time is up.
    """
    builder, classes = _built(space, limit, budget)
    return LayoutProblem(builder.problem("layout", limit), classes)


def linear_layout_problem(space: SearchSpace, weights: int, *, budget: Budget = UNLIMITED) -> LinearLayoutProblem:
    """The problem of a space that counts for so many weights.

    Raises:
        InfeasibleError: `keep` leaves an op without signature.
        OutOfTimeError: the time is up.
    """
    builder, classes = _built(space, None, budget)
    return LinearLayoutProblem(builder.linear("layout", weights), classes)


def _built(
    space: SearchSpace, limit: int | None, budget: Budget
) -> tuple[ProblemBuilder, tuple[tuple[tuple[str, ...], tuple[Signature, ...]], ...]]:
    classes, builder = classify(space), ProblemBuilder()
    _add_classes(builder, classes)
    found = bundles(classes)
    memory = None if limit is None else LayoutMemory.of(classes, found)
    if memory is not None:
        for name, stage, writer in classes.homes():
            for usage in memory.of_home(name, stage, writer):
                builder.add_usage(writer.found.index, usage)
    copies = _Copies(space, builder, memory, budget)
    for bundle in found:
        copies.add(bundle)
    known = (*classes.of_ops, *classes.held.values())
    return builder, tuple((tuple(op.name for op in one.ops), one.options) for one in known)


def _add_classes(builder: ProblemBuilder, classes: Classes) -> None:
    """The node of every class has its index; all that it costs here is the acts of its ops."""
    space, weights = classes.space, list[dict[tuple[int, ...], Weight]]()
    groups = [space.cost.cluster.groups_of(placement.devices) for placement in space.stages.placements]
    priced: dict[tuple[int, ...], dict[int, OpClass]] = {each: {} for each in groups}
    for found in classes.of_ops:
        weight: dict[tuple[int, ...], Weight] = {groups[space.stages.stage_of[op.name]]: 0 for op in found.ops}
        for op in found.ops:
            weight[groups[space.stages.stage_of[op.name]]] += space.act_weight(op)
        weights.append(weight)
        for each, counted in weight.items():
            if np.any(counted):
                priced[each].setdefault(found.kind, found)
    op_ns: dict[tuple[tuple[int, ...], int], list[int]] = {}
    for each, kinds in priced.items():
        acts = [(found.ops[0], found.options) for found in kinds.values()]
        seconds = space.cost.all_op_seconds(space.graph, acts, space.mesh, each)
        op_ns |= {(each, kind): [to_ns(s) for s in those] for kind, those in zip(kinds, seconds, strict=True)}
    for found, weight in zip(classes.of_ops, weights, strict=True):
        first, nothing = found.ops[0], [0] * len(found.options)
        name = first.template if first.template and len(found.ops) > 1 else first.name
        costs = [weighed(op_ns.get((each, found.kind), nothing), w) for each, w in weight.items()]
        builder.add_node(name, sum(costs[1:], start=costs[0]))
    for name in classes.held:
        builder.add_node(f"{name}@home", [0])
    _add_kept(builder, classes)
    _add_handed(builder, classes)


def _add_kept(builder: ProblemBuilder, classes: Classes) -> None:
    """What it counts to hold values where they live, and to keep them for ops that read them later."""
    space = classes.space
    homes: dict[tuple[int, int, TensorSpec], tuple[Writer, Weight]] = {}
    for name, _, writer in classes.homes() if space.home_weights else ():
        if name in space.home_weights:
            key = (*writer.identity, space.graph.values[name].spec)
            _, known = homes.get(key, (writer, 0))
            homes[key] = writer, known + space.home_weights[name]
    for (index, _, spec), (writer, weight) in homes.items():
        sizes = [_nbytes(space, spec, home) for home in writer.homes]
        builder.add_costs(index, np.multiply.outer(sizes, weight))
    groups: dict[object, _Readers] = {}
    for name, kept in space.kept.items():
        spec = space.graph.values[name].spec
        first, readers = (_reading(classes, name, each) for each in (kept.first, kept.readers))
        either = None if kept.keeping in (Keeping.AS_READ, Keeping.BOTH) else classes.writer(name)
        readers_of = tuple(tuple((one.index, positions) for one, positions in each) for each in (first, readers))
        alike = spec, kept.keeping, either and either.identity, readers_of
        least = _least_home_nbytes(space, spec, classes.writer(name)) if kept.keeping is Keeping.BOTH else 0
        group = groups.setdefault(alike, _Readers(name, spec, kept.keeping, either, readers, first, least))
        group.weight = group.weight + kept.weight
        group.first_weight = group.first_weight + kept.first_weight
    for group in groups.values():
        group.add(space, builder)


def _add_handed(builder: ProblemBuilder, classes: Classes) -> None:
    """What it costs to hand values on to other stages: a message for every layout that is read there."""
    for name, handed in classes.space.handed.items():
        spec, writer = classes.space.graph.values[name].spec, classes.writer(name)
        if writer is None:
            continue
        sources = tuple(dict.fromkeys(writer.homes))
        places = [sources.index(home) for home in writer.homes]
        wanted = _wanted(_reading(classes, name, handed.readers))
        asked = (spec, handed.source, sources, handed.target, tuple(wanted))
        prices = [converter.all_prices_ns(*asked).sum(axis=0)[:, places] for _, converter in handed.ways]
        for (layout, among), each_ns in zip(wanted.items(), np.stack(prices, 1), strict=True):
            weights = np.array([weight for weight, _ in handed.ways])
            costs = np.tensordot(np.where(np.isinf(each_ns), 0, each_ns).astype(np.int64), weights, (0, 0))
            costs[np.isinf(each_ns).any(0)] = FORBIDDEN
            title = f"{name} handed on in {'.'.join(map(str, layout))}"
            node = builder.add_node(title, np.zeros((2, *costs.shape[1:])))
            builder.add_edge(writer.found.index, node, Table(np.stack([0 * costs, costs], axis=1)))
            for index, wants in among:
                builder.add_edge(index, node, Table(_needs(wants, 2)))


def _reading(classes: Classes, value: str, readers: Sequence[str]) -> Reading:
    """The classes of some ops that read a value, each with its positions."""
    found: dict[int, tuple[OpClass, set[int]]] = {}
    for name in readers:
        op, reader = classes.space.graph.by_name[name], classes.of_op[name]
        positions = found.setdefault(reader.index, (reader, set()))[1]
        positions.update(i for i, read in enumerate(op.inputs) if read == value)
    return tuple((reader, tuple(sorted(positions))) for reader, positions in found.values())


def _wanted(reading: Reading) -> dict[NdSbp, list[tuple[int, BoolArray]]]:
    """Layout -> (class, which of its choices read the value in it) of every class for which some do."""
    wanted: dict[NdSbp, list[tuple[int, BoolArray]]] = {}
    for reader, positions in reading:
        each = [{option.inputs[position] for position in positions} for option in reader.options]
        for layout in dict.fromkeys(layout for layouts in each for layout in sorted(layouts, key=str)):
            wants = np.array([layout in layouts for layouts in each])
            wanted.setdefault(layout, []).append((reader.index, wants))
    return wanted


@dataclass(slots=True)
class _Readers:
    """Values that the same classes read later: what every layout counts that some of these want."""

    name: str
    spec: TensorSpec
    keeping: Keeping
    writer: Writer | None
    readers: Reading
    first: Reading = ()
    least_nbytes: int = 0
    """Where the value lives, at least."""
    weight: Weight = 0
    first_weight: Weight = 0

    def add(self, space: SearchSpace, builder: ProblemBuilder) -> None:
        """Count each layout once; where one class alone may want it, as a part of its own cost.

        A layout is kept for nobody, for the first readers alone, or for all.
        """
        if self.writer is not None:
            (reader, (position, *_)), *_ = self.readers
            layouts = [option.inputs[position] for option in reader.options]
            kept = _kept_nbytes(space, self.spec, self.keeping, self.writer.homes, layouts)
            if kept.any():
                table = Table(np.multiply.outer(kept, self.weight))
                builder.add_edge(self.writer.found.index, reader.index, table)
            return
        if self.keeping is Keeping.BOTH:
            self._add_both(space, builder)
            return
        first, later = _wanted(self.first), _wanted(self.readers)
        for layout in dict.fromkeys((*first, *later)):
            nbytes, ways = _nbytes(space, self.spec, layout), (first.get(layout, []), later.get(layout, []))
            prices = [np.multiply(nbytes, weight) for weight in (self.first_weight, self.weight)]
            among = [(index, wants, way) for way, each in enumerate(ways) for index, wants in each]
            if len(among) == 1:
                ((index, wants, way),) = among
                builder.add_costs(index, np.multiply.outer(wants.astype(np.int64), prices[way]))
                continue
            said = [prices[way] for way, each in enumerate(ways) if each]
            costs = np.array([0 * said[0], *said])
            node = builder.add_node(f"{self.name} kept in {'.'.join(map(str, layout))}", costs)
            for index, wants, way in among:
                builder.add_edge(index, node, Table(_needs(wants, len(costs), len(said) - 1 if way else 0)))

    def _add_both(self, space: SearchSpace, builder: ProblemBuilder) -> None:
        """Count what the first of both readers read alike, as they do; what they do not, at its least."""
        ((first, (at, *_)), *_), ((reader, (position, *_)), *_) = self.first, self.readers
        earlier = [option.inputs[at] for option in first.options]
        later = [option.inputs[position] for option in reader.options]
        nbytes = np.array([_nbytes(space, self.spec, layout) for layout in later])
        alike = np.array([[one == layout for layout in later] for one in earlier])
        kept = np.where(alike, nbytes, np.minimum(nbytes, self.least_nbytes))
        if first.index == reader.index:
            builder.add_costs(reader.index, np.multiply.outer(kept.diagonal(), self.weight))
        else:
            builder.add_edge(first.index, reader.index, Table(np.multiply.outer(kept, self.weight)))


def _least_home_nbytes(space: SearchSpace, spec: TensorSpec, writer: Writer | None) -> int:
    """What the fullest rank holds at least of a value where it lives; nothing is said of what lives nowhere."""
    return 0 if writer is None else min(_nbytes(space, spec, home) for home in dict.fromkeys(writer.homes))


@dataclass(slots=True)
class _Copies:
    """Adds the copies of bundles; what alike classes want and pay is found once, as one table."""

    space: SearchSpace
    builder: ProblemBuilder
    memory: LayoutMemory | None
    budget: Budget
    reads: dict[tuple[int, tuple[int, ...]], dict[NdSbp, Table]] = field(default_factory=dict)
    prices: dict[object, dict[NdSbp, Table]] = field(default_factory=dict)
    nobody: dict[int, Table] = field(default_factory=dict)
    homes: dict[tuple[int, int], tuple[tuple[NdSbp, ...], IntArray]] = field(default_factory=dict)
    times: dict[object, dict[NdSbp, npt.NDArray[np.float64]]] = field(default_factory=dict)
    """What was asked of the converter."""

    def add(self, bundle: Bundle) -> None:
        """Add a copy for every layout that some reader may want."""
        self.budget.check()
        reads = [self._reads(reader, positions) for reader, positions in bundle.readers]
        layouts = list(dict.fromkeys(layout for found in reads for layout in found))
        if bundle.writer is None:
            for layout in layouts:
                self._share(bundle, layout, reads, self._loaded(bundle, layout))
        elif self.memory is not None:
            for layout in layouts:
                self._share(bundle, layout, reads, self._converted(bundle, bundle.writer, self.memory, layout))
        elif len(bundle.readers) == 1:
            ((reader, _),) = bundle.readers
            paid = ((prices, reads[0][layout]) for layout, prices in self._prices(bundle, bundle.writer, layouts))
            table = self.builder.once(_paid, *itertools.chain.from_iterable(paid))
            self.builder.add_edge(bundle.writer.found.index, reader.index, table)
        else:
            for layout, prices in self._prices(bundle, bundle.writer, layouts):
                node = self.builder.add_node(_name(bundle, layout), [0, 0])
                self.builder.add_edge(bundle.writer.found.index, node, self.builder.once(_paid, prices, _USED))
                self._share(bundle, layout, reads, node)

    def _reads(self, reader: OpClass, positions: tuple[int, ...]) -> dict[NdSbp, Table]:
        """Layout that some choice of a reader wants at its positions -> which of its choices do."""
        key = (reader.kind, positions)
        if key not in self.reads:
            found: dict[NdSbp, BoolArray] = {}
            for choice, option in enumerate(reader.options):
                for position in positions:
                    layout = option.inputs[position]
                    if layout not in found:
                        found[layout] = np.zeros(len(reader.options), bool)
                    found[layout][choice] = True
            self.reads[key] = {layout: Table(wants) for layout, wants in found.items()}
        return self.reads[key]

    def _share(self, bundle: Bundle, layout: NdSbp, reads: Sequence[Mapping[NdSbp, Table]], node: int) -> None:
        """An edge from the node of a shared copy to every reader, who needs it used."""
        width = self.builder.width(node)
        for (reader, _), found in zip(bundle.readers, reads, strict=True):
            wants = found.get(layout)
            if wants is None:
                wants = self.nobody.setdefault(len(reader.options), Table(np.zeros(len(reader.options), bool)))
            self.builder.add_edge(reader.index, node, self.builder.once(_needs, wants, width))

    def _loaded(self, bundle: Bundle, layout: NdSbp) -> int:
        """A copy that nobody writes: it is loaded where it is used."""
        space, loading = self.space, load_features(bundle.spec, layout, self.space.mesh)
        costs: Weight = 0
        for (_, stage, _), (_, _, arriving) in bundle.moves.items():
            groups = space.cost.cluster.groups_of(space.stages.placements[stage].devices)
            costs = costs + weighed(to_ns(space.cost.seconds(by_groups(loading, groups))), arriving)
        usages = () if self.memory is None else self.memory.of_loaded(bundle, layout)
        costs = np.minimum(costs, FORBIDDEN)
        return self.builder.add_node(_name(bundle, layout), np.multiply.outer([0, 1], costs), usages)

    def _converted(self, bundle: Bundle, writer: Writer, memory: LayoutMemory, layout: NdSbp) -> int:
        """A copy whose choices are the layouts that it may come from, at what it costs and holds."""
        homes, (sources, _) = writer.homes, self._sources(writer)
        prices = self._prices_ns(bundle, writer, (layout,))[0].tolist()
        legal = [source for source, price in zip(sources, prices, strict=True) if price < FORBIDDEN]
        usages = memory.of_copies(bundle, legal, layout)
        costs = [0, *(price for price in prices if price < FORBIDDEN)]
        node = self.builder.add_node(_name(bundle, layout), costs, usages)
        place = {source: i for i, source in enumerate(legal, 1)}
        origins, homes_at = np.arange(len(legal) + 1), np.array([place.get(home, -1) for home in homes])
        matches = (origins[None, :] == 0) | (origins[None, :] == homes_at[:, None])
        self.builder.add_edge(writer.found.index, node, Table(np.where(matches, 0, FORBIDDEN)))
        return node

    def _prices(self, bundle: Bundle, writer: Writer, layouts: Sequence[NdSbp]) -> Iterator[tuple[NdSbp, Table]]:
        """What copies in some layouts cost under each choice of their writer."""
        by_layout = self.prices.setdefault((*writer.kind, bundle.spec, _moves(bundle)), {})
        new = [layout for layout in layouts if layout not in by_layout]
        if new:
            _, places = self._sources(writer)
            prices = self._prices_ns(bundle, writer, new)[:, places]
            by_layout.update((layout, Table(line)) for layout, line in zip(new, prices, strict=True))
        return ((layout, by_layout[layout]) for layout in layouts)

    def _sources(self, writer: Writer) -> tuple[tuple[NdSbp, ...], IntArray]:
        """(the layouts that a writer may leave, which of them is the home under each of its choices)."""
        if writer.kind not in self.homes:
            place: dict[NdSbp, int] = {}
            places = [place.setdefault(home, len(place)) for home in writer.homes]
            self.homes[writer.kind] = tuple(place), np.array(places)
        return self.homes[writer.kind]

    def _prices_ns(self, bundle: Bundle, writer: Writer, layouts: Sequence[NdSbp]) -> IntArray:
        """(layouts, sources): what copies cost by the layout that they come from, the weighted times of conversions."""
        converter = self.space.converter
        ways: dict[object, tuple[Move, Weights]] = {}
        for move, (leaves, moves, arrives) in bundle.moves.items():
            home, stage, covers = move
            way = converter.way(home, stage), covers
            _, known = ways.get(way, (move, (0, 0, 0)))
            ways[way] = move, (known[0] + leaves, known[1] + moves, known[2] + arrives)
        found = np.zeros((len(layouts), len(self._sources(writer)[0]), *np.shape(leaves)), np.int64)
        for (home, stage, covers), weights in ways.values():
            if not any(np.any(weight) for weight in weights):
                sources, _ = self._sources(writer)
                found[~converter.reaches(bundle.spec, home, sources, stage, layouts)] = FORBIDDEN
                continue
            prices = self._conversions_ns(bundle.spec, writer, home, stage, layouts)
            is_none = np.isinf(prices).any(axis=0)
            whole = in_parts(np.where(is_none, 0, prices).astype(np.int64), covers)
            for each, weight in zip(whole, weights, strict=True):
                if each.any() and np.any(weight):
                    found = np.minimum(found + weighed(each, weight), FORBIDDEN)
            found[is_none] = FORBIDDEN
        return found

    def _conversions_ns(
        self, spec: TensorSpec, writer: Writer, home: int, stage: int, layouts: Sequence[NdSbp]
    ) -> npt.NDArray[np.float64]:
        """(3, layouts, sources): the times of conversions, remembered where they are asked for again."""
        sources, _ = self._sources(writer)
        known = self.times.setdefault((spec, *writer.kind, self.space.converter.way(home, stage)), {})
        new = [layout for layout in layouts if layout not in known]
        if new:
            prices = self.space.converter.all_prices_ns(spec, home, sources, stage, new, self.budget)
            known.update(zip(new, prices.swapaxes(0, 1), strict=True))
        return np.stack([known[layout] for layout in layouts], axis=1)


def _moves(bundle: Bundle) -> object:
    """What a bundle's conversions weigh, as a key."""
    return tuple((ends, *(np.asarray(one).tobytes() for one in each)) for ends, each in bundle.moves.items())


def _name(bundle: Bundle, layout: NdSbp) -> str:
    """Of the node of a copy."""
    return f"{bundle.instances[0][0]}>{'.'.join(map(str, layout))}@{bundle.instances[0][2]}"


def _kept_nbytes(
    space: SearchSpace, spec: TensorSpec, keeping: Keeping, homes: Sequence[NdSbp], layouts: Sequence[NdSbp]
) -> IntArray:
    """(homes, layouts): bytes that are kept of a value that lives in the one and is read in the other."""
    at_home, as_read = (np.array([_nbytes(space, spec, one) for one in each]) for each in (homes, layouts))
    if keeping is Keeping.SMALLER:
        found: IntArray = np.minimum.outer(at_home, as_read)
        return found
    moved: dict[tuple[NdSbp, NdSbp], bool] = {}
    for home, layout in itertools.product(homes, layouts):
        if (home, layout) not in moved:
            moved[home, layout] = _is_moved(space, spec, keeping, home, layout)
    kept: IntArray = at_home[:, None] if keeping is Keeping.EXCHANGED else as_read
    is_moved: IntArray = np.array([[moved[home, layout] for layout in layouts] for home in homes], np.int64)
    return kept * is_moved


def _is_moved(space: SearchSpace, spec: TensorSpec, keeping: Keeping, home: NdSbp, layout: NdSbp) -> bool:
    """Whether a collective reads what lives there, or gives what is read."""
    if home == layout or not space.converter.reaches(spec, 0, [home], 0, [layout]).all():
        return False
    steps = space.converter.steps(spec, Home(0, home), 0, layout)
    return (steps[0] if keeping is Keeping.EXCHANGED else steps[-1]).kind.is_communication


def _nbytes(space: SearchSpace, spec: TensorSpec, layout: NdSbp) -> int:
    """What the fullest rank holds of a tensor; all the room it has, where it is ragged."""
    return piece_specs([spec], [layout], space.mesh)[0].nbytes


def _paid(*parts: npt.NDArray[Any]) -> IntArray:
    """(sources, choices): what each choice pays for all layouts that it wants.

    All of them at once: a table of each layout, and of each sum of some, would take gigabytes on three axes.

    Args:
        parts: the prices of a layout, (sources,), and which choices want it, in turn for all layouts.
    """
    prices, wants = parts[::2], parts[1::2]
    table: IntArray = np.zeros((len(prices[0]), len(wants[0]), *prices[0].shape[1:]), np.int64)
    for each, wanting in zip(prices, wants, strict=True):
        table[:, wanting] = np.minimum(table[:, wanting] + each[:, None], FORBIDDEN)
    return table


def _needs(wants: BoolArray, width: int, least: int = 0) -> IntArray:
    """Who wants a copy may not leave it unused, its choice 0, nor used for `least` others alone, which come next."""
    table = np.zeros((wants.size, width), np.int64)
    table[wants, : least + 1] = FORBIDDEN
    return table
