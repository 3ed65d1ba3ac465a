"""A foreign graph as a module of ours: traced like any other, its parameters called as their authors call them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from strategy.base.errors import GraphError
from strategy.graph.graph import Path, layer_of
from strategy.models.imported.expression import UNFINISHED, Expression
from strategy.models.imported.foreign import ForeignGraph, ForeignTensor
from strategy.models.imported.interpreter import (
    Interpretation,
    batch_of,
    check_sequence,
    input_specs,
    interpret,
    parameters_of,
    used_nodes,
)
from strategy.models.imported.repeated import layer_paths
from strategy.models.imported.values import OwnBatch
from strategy.nn.layers import RUNNING, BatchNorm
from strategy.nn.module import Module, Parameter
from strategy.nn.tracer import Scope, Tensor
from strategy.sbp.tensor import TensorSpec

_LABELS = {"layer_norm": ("mean", "rstd"), "group_norm": ("mean", "rstd"), "rms_norm": ("rstd",), "attention": ("lse",)}
"""Kinds that write more than one value -> how the others are called."""
_ODD = re.compile(r"[^\w-]")
_NORM = dict(zip(("weight", "bias", *RUNNING), range(1, 5), strict=True))
"""Attribute of a batch norm -> which operand it is."""


@dataclass(frozen=True, slots=True)
class ParameterPath:
    """Where a parameter is held: the path of its module, and the attribute."""

    path: Path
    attribute: str

    @property
    def name(self) -> str:
        """What its variable is called."""
        return ".".join(map(str, (*self.path, self.attribute)))


class ParameterHolder(Module):
    """A module that only holds parameters, at one path."""

    def __init__(self, held: dict[str, Parameter]) -> None:
        self.held = held

    def own_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """What it holds."""
        yield from self.held.items()


class ForeignModule(Module):
    """Applied to inputs, gives the first output of a foreign program.

    Attributes:
        graph: the program.
        places: value of the program -> where it is held here.
    """

    def __init__(self, graph: ForeignGraph, *, sequence: int | None = None) -> None:
        check_sequence(graph, sequence)
        self.graph = graph
        self.sequence = sequence
        self.nodes = used_nodes(graph)
        self.path_of = layer_paths(self.nodes)
        self.variables = parameters_of(graph, self.nodes)
        self.own_batch = batch_of(graph)
        self._own: Interpretation | None = None
        result = self._result(self.own_batch or 2)
        if self.own_batch is not None:
            self._own = result
        norms = [one for one in _reachable(result.output) if one.kind == "batch_norm"]
        self.norms, self.places = _batch_norms(norms, self.path_of), _places(graph, self.variables, self.path_of)
        for norm, (path, operands) in self.norms.items():
            del norm
            for attribute, place in _NORM.items():
                self.places[operands[place - 1]] = ParameterPath(path, attribute)
        self.members = _members(graph, self.variables, self.places, self.norms)

    def walk(self, path: Path = ()) -> Iterator[tuple[Module, Path]]:
        """This module, and one per path that holds parameters."""
        yield self, path
        for below, member in self.members.items():
            yield member, (*path, *below)

    def inputs(self, micro_batch: int) -> dict[str, TensorSpec]:
        """The program's inputs, with that many samples."""
        return input_specs(self.graph, micro_batch, self.sequence)

    def _result(self, micro_batch: int) -> Interpretation:
        own = None
        if self._own is not None and self.own_batch is not None and micro_batch != self.own_batch:
            own = OwnBatch(self.own_batch, micro_batch, dict(self._own.shapes))
        try:
            return interpret(self.graph, self.nodes, self.inputs(micro_batch), self.variables, own)
        except GraphError as error:
            if own is None:
                raise
            hint = f"the program was written for {own.own} samples alone; export it with a dynamic first dim"
            raise GraphError([*error.problems, hint], where=self.graph.where) from error

    def forward(self, *inputs: Tensor) -> Tensor:
        """The program's inputs -> its first output."""
        tracer = inputs[0].tracer
        result = self._result(inputs[0].shape[0])
        given = dict(zip(self.inputs(inputs[0].shape[0]), inputs, strict=True))
        base, made = tracer.scopes[-1].path, dict[int, Tensor]()
        order = _reachable(result.output)
        _check_finished(self.graph, order)
        for one in order:
            if one.kind == "input":
                made[one.serial] = given[str(one.attrs["name"])]
                continue
            if one.kind == "parameter":
                place = self.places[str(one.attrs["name"])]
                made[one.serial] = self.members[place.path].parameter(place.attribute, inputs[0])
                continue
            operands = [made[operand.serial] for operand in one.inputs]
            if one.kind == "batch_norm":
                path, _ = self.norms[_norm_key(one)]
                made[one.serial] = self.members[path](operands[0])
                continue
            path = (*base, *self.path_of(one.scope))
            tracer.scopes.append(Scope(path, layer_of(path)))
            try:
                made[one.serial] = tracer.apply("", one.kind, operands, one.attrs, _LABELS.get(one.kind, ()))[0]
            finally:
                tracer.scopes.pop()
        return made[result.output.serial]


def _reachable(output: Expression) -> list[Expression]:
    """All that an expression is made of, in the order in which it was made."""
    found, waiting = {output.serial: output}, [output]
    while waiting:
        for one in waiting.pop().inputs:
            if one.serial not in found:
                found[one.serial] = one
                waiting.append(one)
    return [found[serial] for serial in sorted(found)]


def _check_finished(graph: ForeignGraph, order: list[Expression]) -> None:
    """Raise GraphError with every pattern that was begun and is none."""
    problems = [
        f"{one.where}, in {'.'.join(one.scope) or 'the program itself'}: {UNFINISHED[one.kind]}"
        + (f" (got a table of {one.table.shape})" if one.table is not None else "")
        for one in order
        if one.kind in UNFINISHED
    ]
    if problems:
        raise GraphError(problems, where=graph.where)


def _norm_key(one: Expression) -> tuple[str, ...]:
    return tuple(str(operand.attrs["name"]) for operand in one.inputs[1:])


def _batch_norms(norms: list[Expression], path_of: object) -> dict[tuple[str, ...], tuple[Path, tuple[str, ...]]]:
    """Operands of a batch norm -> where it is, and its operands; each is a module of its own."""
    found: dict[tuple[str, ...], tuple[Path, tuple[str, ...]]] = {}
    for number, one in enumerate(norms):
        key = _norm_key(one)
        path = path_of(tuple(_plain(part) for part in one.scope)) if callable(path_of) else ()
        if not path or any(path == other for other, _ in found.values()):
            path = (*path, f"batch_norm_{number}")
        found.setdefault(key, (path, key))
    return found


def _plain(part: str) -> str:
    """A part of a name, of letters, digits and lines alone."""
    return _ODD.sub("_", part) or "_"


def _places(graph: ForeignGraph, variables: Mapping[str, TensorSpec], path_of: object) -> dict[str, ParameterPath]:
    """Value of the program -> where its variable is held: by its authors' name, the layers by our numbers."""
    taken: set[str] = set()
    found = {}
    for one in graph.tensors:
        if one.name in variables:
            parts = [_plain(part) for part in one.label.split(".")]
            place = ParameterPath(path_of(tuple(parts[:-1])) if callable(path_of) else (), parts[-1])
            while place.name in taken:
                place = replace(place, attribute=f"{place.attribute}_")
            taken.add(place.name)
            found[one.name] = place
    return found


def _members(
    graph: ForeignGraph,
    variables: Mapping[str, TensorSpec],
    places: Mapping[str, ParameterPath],
    norms: Mapping[tuple[str, ...], tuple[Path, tuple[str, ...]]],
) -> dict[Path, Module]:
    """Path -> the module that holds the parameters there."""
    members: dict[Path, Module] = {path: BatchNorm(variables[key[0]].shape[0]) for key, (path, _) in norms.items()}
    held: dict[Path, dict[str, Parameter]] = {}
    tensors: dict[str, ForeignTensor] = {one.name: one for one in graph.tensors}
    for name, spec in variables.items():
        place = places[name]
        if place.path in members and place.attribute in _NORM:
            continue
        held.setdefault(place.path, {})[place.attribute] = Parameter(spec.shape, _init(tensors[name], spec))
    for path, parameters in held.items():
        members[path] = ParameterHolder(parameters)
    return members


def _init(one: ForeignTensor, spec: TensorSpec) -> str:
    """How a parameter starts where its figures are not taken from the file: by its dims, as its authors' layers do."""
    if len(spec.shape) > 1:
        return "normal(0.02)"
    return "zeros" if "bias" in one.label.rsplit(".", 1)[-1] else "ones"
