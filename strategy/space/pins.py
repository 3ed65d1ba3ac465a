"""Pins: what a user fixes of a layout; whatever is left open is searched or deduced.

A layout is pinned by the name of a value, or a pattern of names, and holds wherever the value is written or read. A
stage is pinned by the name of an op, as a number or as the devices that the stage consists of. All that is illegal
about the pins of a graph is reported at once: first what no mesh could heal, then what this mesh does not allow.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from fnmatch import fnmatchcase

from strategy.base.errors import InfeasibleError, InputError, SbpError, report
from strategy.graph.graph import Graph, Op, Value
from strategy.graph.ops import op_definition
from strategy.graph.signature import Signature, op_signatures
from strategy.sbp.sbp import NdSbp, Partial, Split, check_layout, format_nd, may_be_partial
from strategy.sbp.tensor import Shape
from strategy.space.rules import named_layouts
from strategy.space.space import Keep

MOST_NAMES = 2000
"""Names among which the nearest one is looked for, if a pin matches none."""
NAMED = 4
"""Ways to lay out pinned values, or names, that a message lists at most."""
ALIKE = 0.7
"""Share of a pattern's letters that the nearest name has at least."""


def check_pins(
    graph: Graph,
    *,
    layouts: Mapping[str, NdSbp] | None = None,
    stages: Mapping[str, int] | None = None,
    placements: Mapping[str, Sequence[int]] | None = None,
    axes: int,
) -> None:
    """Refuse pins that are wrong whatever the degrees of parallelism.

    See `pin_problems` for the arguments.

    Raises:
        InputError: with every problem.
    """
    report(pin_problems(graph, layouts=layouts, stages=stages, placements=placements, axes=axes), where="pins")


def pin_problems(
    graph: Graph,
    *,
    layouts: Mapping[str, NdSbp] | None = None,
    stages: Mapping[str, int] | None = None,
    placements: Mapping[str, Sequence[int]] | None = None,
    axes: int,
    incomplete: bool = False,
) -> list[InputError]:
    """What is wrong with pins whatever the degrees of parallelism.

    Args:
        graph: what is laid out.
        layouts: pattern of value names -> layout.
        stages: pattern of op names -> stage.
        placements: pattern of op names -> devices of its stage.
        axes: how many axes a mesh has.
        incomplete: whether parts of the graph are missing, so that a pattern may mean one of them.

    Returns:
        A pattern that matches nothing, another number of axes, a split beyond the dims, partial integers, a device
        twice, an op that is pinned to a stage and to other devices.
    """
    return [
        *_layout_problems(graph, layouts or {}, axes, incomplete=incomplete),
        *(() if incomplete else _op_problems(graph, "[stage]", stages or {})),
        *(() if incomplete else _op_problems(graph, "[placement]", placements or {})),
        *placement_problems(placements or {}),
        *_conflicts(graph, stages or {}, placements or {}),
    ]


def matches(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that a pattern means."""
    return [name for name in names if fnmatchcase(name, pattern)]


def pinned(graph: Graph, layouts: Mapping[str, NdSbp], mesh: Shape, *, owned: bool = False) -> Keep:
    """Keep the signatures that give every pinned value its layout, wherever it is written or read.

    Raises:
        InputError: what `check_pins` says of the layouts.
        InfeasibleError: the mesh does not allow a layout, or no signature of an op does; names them all.
    """
    check_pins(graph, layouts=layouts, axes=len(mesh))
    wanted = {name: nd for pattern, nd in layouts.items() for name in matches(pattern, graph.values)}

    def keep(op: Op, signature: Signature) -> bool:
        return all(wanted.get(name, nd_sbp) == nd_sbp for name, nd_sbp in _held(op, signature, wanted))

    too_fine = _too_fine(graph, wanted, mesh)
    problems = [*too_fine.values(), *_unsatisfied(graph, wanted, mesh, keep, skip=too_fine, owned=owned)]
    if problems:
        lines = "".join(f"\n  - {problem}" for problem in problems)
        raise InfeasibleError(f"no layout satisfies the pins on a mesh of {mesh}{lines}")
    return keep


def _held(op: Op, signature: Signature, wanted: Mapping[str, NdSbp]) -> Iterator[tuple[str, NdSbp]]:
    """The layouts that pins hold; a copy that is pinned is there to have another layout than what it is made of."""
    rearranges = op_definition(op.kind).rearranges and op.outputs[0] in wanted
    return ((name, nd_sbp) for name, nd_sbp in named_layouts(op, signature) if not rearranges or name in op.outputs)


def _layout_problems(
    graph: Graph, layouts: Mapping[str, NdSbp], axes: int, *, incomplete: bool
) -> Iterator[InputError]:
    for pattern, nd_sbp in layouts.items():
        where = f"[sbp] {pattern!r}"
        found = matches(pattern, graph.values)
        if not found and not incomplete:
            yield InputError("a pin matches no value", where=where, hint=_nearest(pattern, _own_values(graph)))
        elif len(nd_sbp) != axes:
            yield SbpError("one SBP per mesh axis is needed", where=where, got=format_nd(nd_sbp), expected=f"{axes}")
        else:
            for name in found:
                yield from _value_problems(f"{where}: value {name}", graph.values[name], nd_sbp)


def _value_problems(where: str, value: Value, nd_sbp: NdSbp) -> Iterator[InputError]:
    shape = value.spec.shape
    for sbp in dict.fromkeys(nd_sbp):
        if isinstance(sbp, Split) and sbp.dim >= len(shape):
            yield SbpError("split beyond the dims", where=where, got=str(sbp), expected=f"a dim of {shape}")
        if isinstance(sbp, Partial) and not may_be_partial(value.spec, sbp.reduce):
            expected = f"B, S, P(max) or P(min) of {value.spec.dtype}"
            yield SbpError("terms of integers", where=where, got=str(sbp), expected=expected)


def _op_problems(graph: Graph, section: str, pins: Mapping[str, object]) -> Iterator[InputError]:
    for pattern in pins:
        if not matches(pattern, graph.by_name):
            hint = _nearest(pattern, [op.name for op in graph.ops if not (op.origin or op.parameter)])
            yield InputError("a pin matches no op", where=f"{section} {pattern!r}", hint=hint)


def _own_values(graph: Graph) -> list[str]:
    """Names of values that the model has itself, rather than what trains it."""
    made = {name for op in graph.ops if op.origin or op.parameter for name in op.outputs}
    return [value.name for value in graph.values.values() if not value.parameter and value.name not in made]


def _nearest(pattern: str, names: Collection[str]) -> str:
    """A hint: the name that has most of a pattern's own letters, in their order; where none has, a few names.

    What a star stands for is no part of the likeness.
    """
    if len(names) >= MOST_NAMES or not names:
        return ""
    letters = "".join(letter for letter in pattern if letter not in "*?")

    def likeness(name: str) -> tuple[float, int]:
        alike = SequenceMatcher(None, letters, name, autojunk=False).get_matching_blocks()
        return sum(block.size for block in alike) / max(len(letters), 1), -len(name)

    found = max(names, key=likeness)
    if likeness(found)[0] >= ALIKE:
        return f"did you mean {found!r}?"
    some = list(names)[:NAMED]
    more = f" and {len(names) - len(some)} more" if len(names) > len(some) else ""
    return f"there are {', '.join(some)}{more}" if some else ""


def placement_problems(placements: Mapping[str, Sequence[int]]) -> Iterator[InputError]:
    """What is wrong with devices that are to be stages: runs of equally many ranks, the first ones stage 0."""
    for pattern, devices in placements.items():
        where = f"[placement] {pattern!r}"
        if len(set(devices)) != len(devices):
            yield InputError("a device stands twice in a placement", where=where, got=list(devices))
        elif not devices or list(devices) != list(range(devices[0], devices[0] + len(devices))) or devices[0] < 0:
            yield InputError("no stage", where=where, got=list(devices), expected="consecutive ranks, as [4, 5, 6, 7]")
        elif devices[0] % len(devices):
            stage = f"stages of {len(devices)} devices, which begin at 0, {len(devices)}, {2 * len(devices)}, ..."
            yield InputError("no stage", where=where, got=list(devices), expected=stage)
    if len({len(devices) for devices in placements.values()}) > 1:
        sizes = {pattern: len(devices) for pattern, devices in placements.items()}
        yield InputError("stages differ in size", where="[placement]", got=sizes, expected="one number of devices")


def stage_of_devices(devices: Sequence[int]) -> int:
    """The stage that a run of devices is."""
    return devices[0] // len(devices)


def _conflicts(
    graph: Graph, stages: Mapping[str, int], placements: Mapping[str, Sequence[int]]
) -> Iterator[InputError]:
    by_number = {name: stage for pattern, stage in stages.items() for name in matches(pattern, graph.by_name)}
    for pattern, devices in placements.items():
        for name in matches(pattern, graph.by_name):
            if devices and by_number.get(name, stage_of_devices(devices)) != stage_of_devices(devices):
                where = f"[placement] {pattern!r}: op {name}"
                expected = f"stage {stage_of_devices(devices)}, for these devices are"
                yield InputError("pinned to another stage too", where=where, got=by_number[name], expected=expected)


def _too_fine(graph: Graph, wanted: Mapping[str, NdSbp], mesh: Shape) -> dict[str, str]:
    """Value -> what is wrong, where a dim has fewer rows than parts."""
    found = {}
    for name, nd_sbp in wanted.items():
        try:
            check_layout(graph.values[name].spec.shape, nd_sbp, mesh, where=f"value {name}")
        except SbpError as error:
            found[name] = str(error)
    return found


def _unsatisfied(
    graph: Graph, wanted: Mapping[str, NdSbp], mesh: Shape, keep: Keep, *, skip: Container[str], owned: bool
) -> Iterator[str]:
    for op in graph.ops:
        touched = [name for name in dict.fromkeys((*op.inputs, *op.outputs, *op.updates)) if name in wanted]
        if not touched or any(name in skip for name in touched):
            continue
        legal = op_signatures(graph, op, mesh, owned=owned)
        if not any(keep(op, signature) for signature in legal):
            pins = ", ".join(f"{name} as {format_nd(wanted[name])}" for name in touched)
            yield f"no legal signature of op {op.name} ({op.kind}) has {pins}; {_legal_there(op, legal, touched)}"


def _legal_there(op: Op, legal: Sequence[Signature], touched: Sequence[str]) -> str:
    """The layouts that an op may have its pinned values in, on this mesh: in those of one line, all of them at once."""
    lines = dict.fromkeys(
        " with ".join(
            f"{name} as {format_nd(nd_sbp)}" for name, nd_sbp in named_layouts(op, signature) if name in touched
        )
        for signature in legal
    )
    more = f", or in {len(lines) - NAMED} other ways" if len(lines) > NAMED else ""
    return f"it may have {', or '.join(list(lines)[:NAMED])}{more}"
