"""Step layouts: where every value of a plan's step lies, as a document for programs of DTensor and of JAX.

    mesh     axis -> ranks, outermost first; axes of one rank are left out
    state    parameter, or what else lives from step to step -> its layout
    ops      op -> what it `reads`, `writes` and `updates`: pairs of value and layout
    steps    value -> layout that is read, as text -> the layouts on the way there, the last one included
    kinds    likewise -> the collective of every step on the way and every axis that it changes; none where a rank
             has what it needs

A layout is a list of SBP's words, one per axis of the mesh: B, S(d), P(sum).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from importlib import resources
from itertools import pairwise
from typing import Any

from strategy.base.errors import InputError
from strategy.graph.graph import Role
from strategy.layout.config import Offload
from strategy.layout.layout import home_of
from strategy.plan.plan import Plan
from strategy.sbp.sbp import B, NdSbp, Owner, Partial, Reduce, Sbp, Split
from strategy.sbp.tensor import Shape

PROGRAMS = {"dtensor": "dtensor.py", "jax": "jax_arrays.py"}
"""What is exported to -> the program that gets the layouts, in `applied`."""
_EMPTY = 'json.loads("{}")'
_NAMED = 4


def written_program(plan: Plan, to: str) -> str:
    """A program with the layouts of a plan in it.

    Args:
        plan: of one stage.
        to: one of `PROGRAMS`.

    Raises:
        InputError: the plan has what the program could not do.
    """
    text = (resources.files("strategy.exports.applied") / PROGRAMS[to]).read_text(encoding="utf-8")
    document = json.dumps(step_layouts(plan), indent=1)
    return text.replace(_EMPTY, f"json.loads(\n    r'''{document}'''\n)", 1)


def step_layouts(plan: Plan) -> dict[str, Any]:
    """The layouts of a plan of one stage.

    Raises:
        InputError: it has several stages, or something else that no layout of DTensor's or JAX's says.
    """
    problems = list(_problems(plan))
    if problems:
        lines = "".join(f"\n  - {problem}" for problem in problems)
        hint = "\npin pp = 1, and degrees that divide what they cut"
        raise InputError(f"one program of DTensor or JAX cannot do this plan:{lines}", where="export", hint=hint)
    graph, layout = plan.graph, plan.layout
    homes = {value.name: home_of(graph, layout.stages, layout.signatures, value.name)
             for value in graph.with_role(Role.VARIABLE)}  # fmt: skip
    mesh = plan.config.mesh
    steps: dict[str, dict[str, list[list[str]]]] = {}
    kinds: dict[str, dict[str, list[str]]] = {}
    for one in layout.conversions:
        chain = [one.source.layout, *(step.target for step in one.steps)]
        key = " ".join(_words(one.copy.layout, mesh))
        steps.setdefault(one.copy.value, {})[key] = [_words(target, mesh) for target in chain[1:]]
        kinds.setdefault(one.copy.value, {})[key] = list(_kinds(chain, mesh))
    return {
        "plan": plan.plan_hash,
        "model": plan.model_name,
        "mesh": {axis: parts for axis, parts in zip(plan.config.axes, mesh, strict=True) if parts > 1},
        "state": {name: _words(home.layout, mesh) for name, home in homes.items() if home is not None},
        "ops": {
            op.name: {
                part: [[name, _words(nd, mesh)] for name, nd in zip(names, layouts, strict=True)]
                for part, names, layouts in (
                    ("reads", op.inputs, layout.signatures[op.name].inputs),
                    ("writes", op.outputs, layout.signatures[op.name].outputs),
                    ("updates", op.updates, layout.signatures[op.name].updates),
                )
            }
            for op in graph.ops
        },
        "steps": steps,
        "kinds": kinds,
    }


def _words(layout: NdSbp, mesh: Shape) -> list[str]:
    return [str(sbp) for sbp, parts in zip(layout, mesh, strict=True) if parts > 1]


def _kinds(chain: Sequence[NdSbp], mesh: Shape) -> Iterator[str]:
    """The collective of every change along every axis."""
    for before, after in pairwise(chain):
        for one, other, parts in zip(before, after, mesh, strict=True):
            kind = _kind(one, other)
            if parts > 1 and kind:
                yield kind


def _kind(before: Sbp, after: Sbp) -> str:
    if before in (after, B) or (isinstance(before, Split) and isinstance(after, Partial)):
        return ""
    if isinstance(before, Partial):
        return "reduce_scatter" if isinstance(after, Split) else "all_reduce"
    return "all_to_all" if isinstance(after, Split) else "all_gather"


def _problems(plan: Plan) -> Iterator[str]:
    """What one program on one mesh, with pieces of equal size, cannot do."""
    config, graph, signatures = plan.config, plan.graph, plan.layout.signatures
    if config.pp > 1:
        yield f"pp {config.pp}: stages are programs of their own"
    if config.num_micro_batches > 1:
        yield f"{config.num_micro_batches} micro-batches: a program runs one"
    if config.offload is not Offload.NONE:
        yield f"offload {config.offload}"
    if config.strides or config.stage_order:
        yield "axes that lie over the ranks in another order"
    if any(isinstance(sbp, Partial) and sbp.reduce is not Reduce.SUM and isinstance(target, Split)
           for one in plan.layout.conversions for before, after in pairwise(
               (one.source.layout, *(step.target for step in one.steps)))
           for sbp, target in zip(before, after, strict=True)):  # fmt: skip
        yield "maxima or minima that are scattered as they are taken"
    strange, uneven = dict[str, None](), dict[str, None]()
    for op in graph.ops:
        names = (*op.inputs, *op.outputs, *op.updates)
        for name, layout in zip(names, signatures[op.name].layouts, strict=True):
            if any(isinstance(sbp, Owner) or (isinstance(sbp, Split) and sbp.shift) for sbp in layout):
                strange[name] = None
            elif not _is_even(graph.values[name].spec.shape, layout, config.mesh):
                uneven[name] = None
    if strange:
        yield f"values with one rank alone, or whose pieces go round: {_some(strange)}"
    if uneven:
        yield f"values that are cut into unequal pieces: {_some(uneven)}"


def _is_even(shape: Shape, layout: NdSbp, mesh: Shape) -> bool:
    pieces = [1] * len(shape)
    for sbp, parts in zip(layout, mesh, strict=True):
        if isinstance(sbp, Split):
            pieces[sbp.dim] *= parts
    return all(rows % parts == 0 for rows, parts in zip(shape, pieces, strict=True))


def _some(names: dict[str, None]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{', '.join(list(names)[:_NAMED])}{more}"
