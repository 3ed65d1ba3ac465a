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

import math
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
from strategy.search.layouts.problem_builder import IntArray, ProblemBuilder, Table
from strategy.search.layouts.restriction import complete
from strategy.search.layouts.space import Keep, Kept, SearchSpace

BoolArray = npt.NDArray[np.bool_]

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


def layout_problem(space: SearchSpace, *, limit: int | None = None, budget: Budget = UNLIMITED) -> LayoutProblem:
    """The problem of a search space; with `limit`, memory per rank is bounded at every time.

    Raises:
        InfeasibleError: `keep` leaves an op without signature.
        OutOfTimeError: the time is up.
    """
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
    answers = tuple((tuple(op.name for op in one.ops), one.options) for one in known)
    return LayoutProblem(builder.problem("layout", limit), answers)


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
        builder.add_node(name, [weight * ns for ns in op_ns[found.kind]])
    for name in classes.held:
        builder.add_node(f"{name}@home", [0])
    for name, _, writer in classes.homes() if space.home_prices else ():
        price = space.home_prices.get(name, 0.0)
        if price:
            spec = space.graph.values[name].spec
            builder.add_costs(writer.found.index, [int(price * _nbytes(space, spec, home)) for home in writer.homes])
    tables: dict[object, Table] = {}
    for name, kept in space.kept_prices.items():
        _keep(builder, classes, tables, name, kept)


def _keep(builder: ProblemBuilder, classes: Classes, tables: dict[object, Table], value: str, kept: Kept) -> None:
    """What it costs to keep a value for a reader."""
    space, spec = classes.space, classes.space.graph.values[value].spec
    writer, reader = classes.writer(value), classes.of_op[kept.reader]
    position = space.graph.by_name[kept.reader].inputs.index(value)
    wanted = [option.inputs[position] for option in reader.options]
    if kept.as_read:
        builder.add_costs(reader.index, [int(kept.price * _nbytes(space, spec, layout)) for layout in wanted])
    elif writer is not None:
        key = writer.kind, reader.kind, position, spec, kept.price
        if key not in tables:
            sizes = (np.array([_nbytes(space, spec, layout) for layout in each]) for each in (writer.homes, wanted))
            tables[key] = Table((kept.price * np.minimum.outer(*sizes)).astype(np.int64))
        builder.add_edge(writer.found.index, reader.index, tables[key])


@dataclass(slots=True)
class _Copies:
    """Adds the copies of bundles; what alike classes want and pay is found once, as one table."""

    space: SearchSpace
    builder: ProblemBuilder
    memory: LayoutMemory | None
    reads: dict[tuple[int, tuple[int, ...]], dict[NdSbp, Table]] = field(default_factory=dict)
    prices: dict[object, dict[NdSbp, Table]] = field(default_factory=dict)
    nobody: dict[int, Table] = field(default_factory=dict)

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
        self.builder.add_edge(writer.found.index, reader.index, self.builder.once(np.outer, prices, reads))

    def _share(self, bundle: Bundle, layout: NdSbp, reads: Sequence[Mapping[NdSbp, Table]]) -> None:
        """A shared copy: its choices, the edge to its writer, and one to every reader, who needs it used."""
        name = f"{bundle.instances[0][0]}>{'.'.join(map(str, layout))}@{bundle.instances[0][2]}"
        if bundle.writer is None:
            node = self._loaded(bundle, layout, name)
        elif self.memory is None:
            node = self.builder.add_node(name, [0, 0])
            prices = self._prices(bundle, bundle.writer, layout)
            self.builder.add_edge(bundle.writer.found.index, node, self.builder.once(np.outer, prices, _USED))
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
        cost = ns * sum(arriving for _, _, arriving in bundle.moves.values())
        usages = () if self.memory is None else self.memory.of_loaded(bundle, layout)
        return self.builder.add_node(name, [0, cost], usages)

    def _converted(self, bundle: Bundle, writer: Writer, memory: LayoutMemory, layout: NdSbp, name: str) -> int:
        """A copy whose choices are the layouts that it may come from, at what it costs and holds."""
        homes = writer.homes
        sources = list(dict.fromkeys(homes))
        prices = _prices_ns(self.space, bundle, sources, layout)
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
        key = (*writer.kind, bundle.spec, tuple(bundle.moves.items()))
        by_layout = self.prices.setdefault(key, {})
        if layout not in by_layout:
            homes = writer.homes
            sources = list(dict.fromkeys(homes))
            known = dict(zip(sources, _prices_ns(self.space, bundle, sources, layout), strict=True))
            by_layout[layout] = Table(np.array([known[source] for source in homes], np.int64))
        return by_layout[layout]


def _prices_ns(space: SearchSpace, bundle: Bundle, sources: Sequence[NdSbp], layout: NdSbp) -> list[int]:
    """What copies cost by the layout that they come from: the weighted times of their conversions."""
    totals, converter = [0] * len(sources), space.converter
    ways: dict[tuple[int, int], tuple[int, int, Weights]] = {}
    for (home, stage), (leaves, moves, arrives) in bundle.moves.items():
        way = converter.way(home, stage)
        *_, known = ways.get(way, (home, stage, (0, 0, 0)))
        ways[way] = home, stage, (known[0] + leaves, known[1] + moves, known[2] + arrives)
    if space.copy_prices:
        held = sum(space.copy_prices.get(value, 0.0) for value, _, _ in bundle.instances)
        price = int(held * _nbytes(space, bundle.spec, layout)) if held else 0
        totals = [0 if source == layout else price for source in sources]
    for home, stage, weights in ways.values():
        for i, prices in enumerate(converter.all_prices_ns(bundle.spec, home, sources, stage, layout)):
            if totals[i] == FORBIDDEN or math.inf in prices:
                totals[i] = FORBIDDEN
            else:
                totals[i] += sum(weight * int(price) for weight, price in zip(weights, prices, strict=True))
    return totals


def _nbytes(space: SearchSpace, spec: TensorSpec, layout: NdSbp) -> int:
    """What the fullest rank holds of a tensor."""
    return largest_nbytes(spec, layout, space.mesh)


def _needs(wants: BoolArray, width: int) -> IntArray:
    """Who wants a copy may not leave it unused, its choice 0."""
    table = np.zeros((wants.size, width), np.int64)
    table[wants, 0] = FORBIDDEN
    return table
