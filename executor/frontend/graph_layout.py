"""Graph layout: on which ranks ops run and how tensors lie, by pins, held state and chosen signatures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from executor.frontend.global_tensor import GlobalTensor, Layouts, full_layout, placement, whole_alone
from executor.frontend.traced import TracedGraph
from executor.frontend.world import World
from strategy.base.errors import InputError
from strategy.graph.graph import Graph, Op, Phase, Role
from strategy.graph.signature import Signature
from strategy.layout.convert import lay_out
from strategy.layout.layout import Home, Layout, Stages, assign_stages
from strategy.sbp.placement import Placement, Space
from strategy.sbp.sbp import NdSbp
from strategy.sbp.tensor import Shape
from strategy.search.choose import ChooseSignatures
from strategy.space.pins import pin_problems, pinned
from strategy.space.space import Keep, SearchSpace

Where = Placement | int | Sequence[int]
"""A placement, its ranks in a row, or its one rank."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is fixed of where and how a graph runs: placements of its stages, layouts of values, stages of ops.

    The code's wishes (`pin`, `to_global`) come before those given to the graph, which count where both say something.
    """

    placements: tuple[Placement, ...]
    layouts: Mapping[str, Layouts]
    stages: Mapping[str, int]

    @property
    def mesh(self) -> Shape:
        """The mesh of every stage."""
        return self.placements[0].mesh if self.placements else (1,)

    def all_layouts(self, code: Mapping[str, Layouts]) -> dict[str, NdSbp]:
        """Pattern of value names -> one SBP per axis, as it is said.

        Raises:
            SbpError: a text is no SBP.
        """
        return {pattern: full_layout(layout, self.mesh) for pattern, layout in {**code, **self.layouts}.items()}

    def effective_layouts(self, code: Mapping[str, Layouts]) -> dict[str, NdSbp]:
        """The same where there is something to lay out: along an axis of one rank a tensor is whole."""
        return {pattern: whole_alone(layout, self.mesh) for pattern, layout in self.all_layouts(code).items()}

    def all_stages(self, graph: Graph, places: Mapping[str, Placement]) -> dict[str, int]:
        """Pattern of op names -> stage; what reads a value that was brought to a stage runs there."""
        brought = {value: self.placements.index(place) for value, place in places.items() if place in self.placements}
        found: dict[str, int] = {}
        for op in graph.ops:
            here = [brought[name] for name in op.outputs if name in brought]
            stages = here or [brought[name] for name in op.inputs if name in brought]
            if stages and op.phase is Phase.FORWARD:
                found[op.name] = max(stages)
                brought.update(dict.fromkeys(op.outputs, found[op.name]))
        return {**found, **self.stages}

    def problems(
        self, graph: Graph, pins: Mapping[str, Layouts], places: Mapping[str, Placement], *, incomplete: bool = False
    ) -> list[InputError]:
        """What is wrong with them, whatever the degrees of parallelism."""
        layouts = self.all_layouts(pins)
        here = " or ".join(map(_told, self.placements))
        beyond = [
            InputError("brought where the graph does not run", where=f"value {value}", got=_told(place), expected=here)
            for value, place in places.items()
            if self.placements and place not in self.placements
        ]
        found = pin_problems(graph, layouts=layouts, stages=self.stages, axes=len(self.mesh), incomplete=incomplete)
        return [*beyond, *self._visited_again(graph, places), *found]

    def _visited_again(self, graph: Graph, places: Mapping[str, Placement]) -> Iterator[InputError]:
        """Tensors that are brought back to a stage that the forward pass has left."""
        stages = (
            {} if not all(place in self.placements for place in places.values()) else self.all_stages(graph, places)
        )
        for op in graph.ops:
            name = op.outputs[0] if op.outputs else ""
            before = [stages.get(graph.producer[one].name, 0) for one in op.inputs if one in graph.producer]
            if name in places and self.placements and max(before, default=0) > stages.get(op.name, 0):
                got = f"stage {max(before)}, then stage {stages[op.name]}"
                hint = "bring what is read later to the later stage; line by line, tensors go anywhere"
                expected = "stages in their order, each once"
                where = f"value {name}"
                yield InputError("a stage is visited again", where=where, got=got, expected=expected, hint=hint)


def layout_graph(
    world: World,
    traced: TracedGraph,
    wishes: Wishes,
    held: Mapping[str, GlobalTensor],
    choose: ChooseSignatures,
) -> Layout:
    """Where everything of a graph is; what is held stays where and as it is.

    Raises:
        InputError: state lies where the graph does not run.
        InfeasibleError: no layout satisfies the pins.
    """
    graph, placements, mesh = traced.graph, wishes.placements, wishes.mesh
    assigned = assign_stages(graph, placements, pins=wishes.all_stages(graph, traced.places))
    stages = _at_home(graph, assigned, held)
    keep = _in_place(pinned(graph, wishes.effective_layouts(traced.pins), mesh), held)
    converter = world.converter(*placements)
    space = SearchSpace(graph, stages, traced.pipeline, converter.cost, converter, keep)
    return lay_out(graph, stages, choose(space), converter)


def placements_of(world: World, given: Where | Sequence[Where]) -> tuple[tuple[Placement, ...], list[InputError]]:
    """The stages' placements, and what is wrong with them."""
    alone = isinstance(given, Placement | int) or all(isinstance(rank, int) for rank in given)
    stages: list[Any] = [given] if alone else [*given]  # type: ignore[misc]
    found: list[Placement] = []
    problems: list[InputError] = []
    for stage in stages:
        try:
            found.append(stage if isinstance(stage, Placement) else placement(stage))
            world.check(found[-1])
            if found[-1].space is Space.HOST:
                hint = "tensors that to_global brings to a host are computed on there"
                problems.append(InputError("a stage is on hosts", where="placement", got=str(stage), hint=hint))
        except InputError as error:
            problems.append(error)
    ranks = [rank for one in found for rank in one.devices]
    if len(set(ranks)) != len(ranks):
        hint = "a mesh of several axes is one placement([[...], [...]]), not a list of stages"
        problems.append(
            InputError("a rank is in two stages", where="placement", got=ranks, expected="each once", hint=hint)
        )
    if len({one.mesh for one in found}) > 1:
        meshes = [one.mesh for one in found]
        hint = "give every stage as many ranks"
        problems.append(
            InputError("stages differ in their mesh", where="placement", got=meshes, expected="one mesh", hint=hint)
        )
    return tuple(found), problems


def _told(placement: Placement) -> str:
    return f"{placement} as {placement.mesh}"


def _at_home(graph: Graph, stages: Stages, held: Mapping[str, GlobalTensor]) -> Stages:
    """Stages with what is held at its home: its update runs there; what no op updates is read from there.

    Raises:
        InputError: a tensor is held elsewhere, or is of another dtype.
    """
    stage_of, homes = dict(stages.stage_of), dict(stages.homes)
    for value in graph.with_role(Role.VARIABLE):
        if value.name not in held:
            continue
        tensor = held[value.name]
        if tensor.spec != value.spec:
            raise InputError("state of another type", where=value.name, got=str(tensor), expected=str(value.spec))
        if tensor.placement not in stages.placements:
            expected = " or ".join(map(_told, stages.placements))
            raise InputError(
                "state lies where the graph does not run", where=value.name, got=str(tensor), expected=expected
            )
        stage = stages.placements.index(tensor.placement)
        updater = graph.updater.get(value.name)
        if updater is not None:
            stage_of[updater.name] = stage
        else:
            homes[value.name] = Home(stage, tensor.sbp)
    return replace(stages, stage_of=stage_of, homes=homes)


def _in_place(keep: Keep, held: Mapping[str, GlobalTensor]) -> Keep:
    """Updates leave what is held in the layout that it has."""

    def keep_in_place(op: Op, signature: Signature) -> bool:
        here = (held[n].sbp == nd for n, nd in zip(op.updates, signature.updates, strict=True) if n in held)
        return keep(op, signature) and all(here)

    return keep_in_place
