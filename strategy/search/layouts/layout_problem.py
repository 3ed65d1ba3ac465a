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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from strategy.base.budget import UNLIMITED, Budget
from strategy.base.errors import OutOfTimeError
from strategy.base.units import to_ns
from strategy.cost.cost import largest_nbytes
from strategy.graph.graph import Graph, act_rate
from strategy.graph.signature import Signature
from strategy.ilp.problem import FORBIDDEN, Problem
from strategy.layout.objective import account_of, load_features
from strategy.sbp.sbp import NdSbp
from strategy.sbp.tensor import TensorSpec
from strategy.search.layouts.bundles import Bundle, Weights, bundles
from strategy.search.layouts.classes import Classes, OpClass, Writer, classify
from strategy.search.layouts.layout_memory import LayoutMemory
from strategy.search.layouts.problem_builder import IntArray, LinearProblem, ProblemBuilder, Table
from strategy.search.layouts.restriction import complete
from strategy.search.layouts.space import Keep, SearchSpace, Weight

BoolArray = npt.NDArray[np.bool_]
Reading = tuple[tuple[OpClass, tuple[int, ...]], ...]
"""Classes that read a value, each with its positions."""

_USED = Table(np.array([0, 1]))
"""How often the price of a copy is paid where it is unused, and where it is used."""


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

    def at(self, weights: npt.NDArray[np.float64]) -> LayoutProblem:
        """The problem under weights."""
        return LayoutProblem(self.linear.at(weights), self.classes)


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
    copies = _Copies(space, builder, memory)
    for bundle in found:
        copies.add(bundle, budget)
    known = (*classes.of_ops, *classes.held.values())
    return builder, tuple((tuple(op.name for op in one.ops), one.options) for one in known)


def _add_classes(builder: ProblemBuilder, classes: Classes) -> None:
    """The node of every class has its index; all that it costs here is the acts of its ops."""
    space, op_ns = classes.space, dict[int, list[int]]()
    for found in classes.of_ops:
        first = found.ops[0]
        if found.kind not in op_ns:
            seconds = space.cost.all_op_seconds(space.graph, first, found.options, space.mesh)
            op_ns[found.kind] = [to_ns(s) for s in seconds]
        weight = sum(
            space.weight(
                op,
                account_of(
                    act_rate(space.graph, op), op.phase, space.stages.stage_of[op.name], space.stages.lap_of(op.name)
                ),
            )
            for op in found.ops
        )
        name = first.template if first.template and len(found.ops) > 1 else first.name
        builder.add_node(name, np.multiply.outer(op_ns[found.kind], weight))
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
        spec, readers = space.graph.values[name].spec, _reading(classes, name, kept.readers)
        either = classes.writer(name) if kept.or_home else None
        readers_of = tuple((one.index, positions) for one, positions in readers)
        group = groups.setdefault((spec, either and either.identity, readers_of), _Readers(name, spec, either, readers))
        group.weight = group.weight + kept.weight
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
        for layout, among in _wanted(_reading(classes, name, handed.readers)).items():
            prices = handed.converter.all_prices_ns(spec, handed.source, sources, handed.target, layout)
            each_ns = np.array([sum(prices[place]) for place in places])
            costs = np.multiply.outer(np.where(np.isinf(each_ns), 0, each_ns).astype(np.int64), handed.weight)
            costs[np.isinf(each_ns)] = FORBIDDEN
            node = builder.add_node(
                f"{name} handed on in {'.'.join(map(str, layout))}", np.zeros((2, *costs.shape[1:]))
            )
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
    writer: Writer | None
    readers: Reading
    weight: Weight = 0

    def add(self, space: SearchSpace, builder: ProblemBuilder) -> None:
        """Count each layout once; where one class alone may want it, as a part of its own cost."""
        if self.writer is not None:
            (reader, (position, *_)), *_ = self.readers
            layouts = [option.inputs[position] for option in reader.options]
            sizes = (
                np.array([_nbytes(space, self.spec, one) for one in each]) for each in (self.writer.homes, layouts)
            )
            table = Table(np.multiply.outer(np.minimum.outer(*sizes), self.weight))
            builder.add_edge(self.writer.found.index, reader.index, table)
            return
        for layout, among in _wanted(self.readers).items():
            price = np.multiply(_nbytes(space, self.spec, layout), self.weight)
            if len(among) == 1:
                ((index, wants),) = among
                builder.add_costs(index, np.multiply.outer(wants.astype(np.int64), price))
                continue
            node = builder.add_node(f"{self.name} kept in {'.'.join(map(str, layout))}", np.array([0 * price, price]))
            for index, wants in among:
                builder.add_edge(index, node, Table(_needs(wants, 2)))


@dataclass(slots=True)
class _Copies:
    """Adds the copies of bundles; what alike classes want and pay is found once, as one table."""

    space: SearchSpace
    builder: ProblemBuilder
    memory: LayoutMemory | None
    reads: dict[tuple[int, tuple[int, ...]], dict[NdSbp, Table]] = field(default_factory=dict)
    prices: dict[object, dict[NdSbp, Table]] = field(default_factory=dict)
    nobody: dict[int, Table] = field(default_factory=dict)
    homes: dict[tuple[int, int], tuple[tuple[NdSbp, ...], list[int]]] = field(default_factory=dict)
    times: dict[object, npt.NDArray[np.float64]] = field(default_factory=dict)
    """What was asked of the converter."""

    def add(self, bundle: Bundle, budget: Budget) -> None:
        """Add a copy for every layout that some reader may want."""
        reads = [self._reads(reader, positions) for reader, positions in bundle.readers]
        for layout in dict.fromkeys(layout for found in reads for layout in found):
            if budget.is_over():
                raise OutOfTimeError("the layout problem was not built in time; raise the time limit")
            if self.memory is None and bundle.writer is not None and len(bundle.readers) == 1:
                self._link(bundle, bundle.writer, layout, reads[0][layout])
            else:
                self._share(bundle, layout, reads)

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

    def _link(self, bundle: Bundle, writer: Writer, layout: NdSbp, reads: Table) -> None:
        """A copy that one class alone can want: an edge from its writer."""
        reader, _ = bundle.readers[0]
        prices = self._prices(bundle, writer, layout)
        self.builder.add_edge(writer.found.index, reader.index, self.builder.once(_paid, prices, reads))

    def _share(self, bundle: Bundle, layout: NdSbp, reads: Sequence[Mapping[NdSbp, Table]]) -> None:
        """A shared copy: its choices, the edge to its writer, and one to every reader, who needs it used."""
        name = f"{bundle.instances[0][0]}>{'.'.join(map(str, layout))}@{bundle.instances[0][2]}"
        if bundle.writer is None:
            node = self._loaded(bundle, layout, name)
        elif self.memory is None:
            node = self.builder.add_node(name, [0, 0])
            prices = self._prices(bundle, bundle.writer, layout)
            self.builder.add_edge(bundle.writer.found.index, node, self.builder.once(_paid, prices, _USED))
        else:
            node = self._converted(bundle, bundle.writer, self.memory, layout, name)
        width = self.builder.width(node)
        for (reader, _), found in zip(bundle.readers, reads, strict=True):
            wants = found.get(layout)
            if wants is None:
                wants = self.nobody.setdefault(len(reader.options), Table(np.zeros(len(reader.options), bool)))
            self.builder.add_edge(reader.index, node, self.builder.once(_needs, wants, width))

    def _loaded(self, bundle: Bundle, layout: NdSbp, name: str) -> int:
        """A copy that nobody writes: it is loaded where it is used."""
        ns = to_ns(self.space.cost.seconds(load_features(bundle.spec, layout, self.space.mesh)))
        often = sum(arriving for _, _, arriving in bundle.moves.values())
        usages = () if self.memory is None else self.memory.of_loaded(bundle, layout)
        return self.builder.add_node(name, np.multiply.outer([0, ns], often), usages)

    def _converted(self, bundle: Bundle, writer: Writer, memory: LayoutMemory, layout: NdSbp, name: str) -> int:
        """A copy whose choices are the layouts that it may come from, at what it costs and holds."""
        homes, (sources, _) = writer.homes, self._sources(writer)
        prices = _prices_ns(self.space, bundle, sources, layout, self.times).tolist()
        legal = [source for source, price in zip(sources, prices, strict=True) if price < FORBIDDEN]
        usages = memory.of_copies(bundle, legal, layout)
        node = self.builder.add_node(name, [0, *(price for price in prices if price < FORBIDDEN)], usages)
        place = {source: i for i, source in enumerate(legal, 1)}
        origins, homes_at = np.arange(len(legal) + 1), np.array([place.get(home, -1) for home in homes])
        matches = (origins[None, :] == 0) | (origins[None, :] == homes_at[:, None])
        self.builder.add_edge(writer.found.index, node, Table(np.where(matches, 0, FORBIDDEN)))
        return node

    def _prices(self, bundle: Bundle, writer: Writer, layout: NdSbp) -> Table:
        """What a copy costs under each choice of its writer."""
        key = (*writer.kind, bundle.spec, _moves(bundle))
        by_layout = self.prices.setdefault(key, {})
        if layout not in by_layout:
            sources, places = self._sources(writer)
            prices = _prices_ns(self.space, bundle, sources, layout, self.times)
            by_layout[layout] = Table(prices[places])
        return by_layout[layout]

    def _sources(self, writer: Writer) -> tuple[tuple[NdSbp, ...], list[int]]:
        """(the layouts that a writer may leave, which of them is the home under each of its choices)."""
        if writer.kind not in self.homes:
            sources = tuple(dict.fromkeys(writer.homes))
            place = {source: i for i, source in enumerate(sources)}
            self.homes[writer.kind] = sources, [place[home] for home in writer.homes]
        return self.homes[writer.kind]


def _moves(bundle: Bundle) -> object:
    """What a bundle's conversions weigh, as a key."""
    return tuple((ends, *(np.asarray(one).tobytes() for one in each)) for ends, each in bundle.moves.items())


def _prices_ns(
    space: SearchSpace,
    bundle: Bundle,
    sources: tuple[NdSbp, ...],
    layout: NdSbp,
    times: dict[object, npt.NDArray[np.float64]],
) -> IntArray:
    """What copies cost by the layout that they come from: the weighted times of their conversions.

    `times` are remembered, (sources, 3), by what they depend on.
    """
    converter = space.converter
    ways: dict[tuple[int, int], tuple[int, int, Weights]] = {}
    for (home, stage), (leaves, moves, arrives) in bundle.moves.items():
        way = converter.way(home, stage)
        *_, known = ways.get(way, (home, stage, (0, 0, 0)))
        ways[way] = home, stage, (known[0] + leaves, known[1] + moves, known[2] + arrives)
    _, _, weights = next(iter(ways.values()))
    found = np.zeros((len(sources), *np.shape(weights[0])), np.int64)
    for home, stage, weights in ways.values():
        key = bundle.spec, sources, layout, converter.way(home, stage)
        if key not in times:
            times[key] = np.array(converter.all_prices_ns(bundle.spec, home, sources, stage, layout))
        prices = times[key]
        for column, weight in zip(prices.T, weights, strict=True):
            if column.any() and np.any(weight):
                found += np.multiply.outer(np.where(np.isinf(column), 0, column).astype(np.int64), weight)
        found[np.isinf(prices).any(axis=1)] = FORBIDDEN
    return np.minimum(found, FORBIDDEN)


def _nbytes(space: SearchSpace, spec: TensorSpec, layout: NdSbp) -> int:
    """What the fullest rank holds of a tensor."""
    return largest_nbytes(spec, layout, space.mesh)


def _paid(prices: IntArray, often: IntArray) -> IntArray:
    """(sources, choices): prices, (sources,), where choices want what they are of."""
    table: IntArray = prices[:, None] * (often if prices.ndim == 1 else often[:, None])
    return table


def _needs(wants: BoolArray, width: int) -> IntArray:
    """Who wants a copy may not leave it unused, its choice 0."""
    table = np.zeros((wants.size, width), np.int64)
    table[wants, 0] = FORBIDDEN
    return table
