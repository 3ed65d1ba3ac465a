"""Verify: whether a plan is legal and is what it claims, found out without any search.

The graph is traced anew from the plan's model and training, and then: stages are disjoint meshes of the plan's degrees;
every op has one of its listed signatures; every tensor that an op reads is at home in the layout that it wants or is
converted there by legal steps; memory, traffic and objective are those claimed; the lowered program is admitted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from strategy.base.errors import EnvironmentLacks, InputError, PlanError, SbplanError
from strategy.base.units import format_bytes
from strategy.comm.boxing import BoxingStep, step_between
from strategy.graph.graph import Op, Phase
from strategy.graph.ops import op_definition
from strategy.graph.signature import Signature, op_signatures
from strategy.hardware.cluster import host_memory_bytes
from strategy.layout.layout import Conversion, Copy, home_of, wanted_copies
from strategy.layout.schedule import at_position, schedule_problem
from strategy.lowering.lower import lower_priced
from strategy.lowering.memory import fullest, fullest_rank, memory_nbytes
from strategy.lowering.traffic import sent_bytes_per_step
from strategy.passes.zero_layouts import BY_EXPERT, zero_filter
from strategy.plan.plan import Plan, most_memory_bytes
from strategy.program.program import ActKind, Program
from strategy.program.protocol import admit
from strategy.sbp.placement import Space
from strategy.sbp.sbp import NdSbp, format_nd, has_partial, is_legal_layout, may_be_partial, reductions
from strategy.space.axis_orders import placements_of

RELATIVE_TOLERANCE = 1e-9
STATUSES = ("optimal", "feasible", "limit")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Admitted(Generic[T]):
    """A plan that is legal and is what it claims: the program that it is lowered to, and what admitting that gave."""

    program: Program
    result: T


def verify(plan: Plan, program: Program | None = None) -> list[str]:
    """Every problem of a plan, one line each, naming op or value; an empty list accepts it.

    `program` is what the plan is lowered to, where the caller has it already.
    """
    found = admitted(plan, admit, program=program)
    return [] if isinstance(found, Admitted) else found


def admitted(plan: Plan, run: Callable[[Program], T], *, program: Program | None = None) -> Admitted[T] | list[str]:
    """The admitted plan, or every problem of it; a plan is lowered only if nothing before that is wrong with it.

    `run` goes through the acts of the program once, and raises if it would hang.
    """
    for check in (_stages, _signatures, _conversions, _figures):
        problems = list(check(plan))
        if problems:
            return problems
    try:
        if program is None:
            program = lower_priced(plan.priced, tokens_per_step=plan.tokens_per_step, folds=True)
        result = run(program)
    except EnvironmentLacks:
        raise
    except SbplanError as error:
        return [str(error)]
    return [*_memory(plan, program), *_traffic(plan, program)] or Admitted(program, result)


def _stages(plan: Plan) -> Iterator[str]:
    config, placements = plan.config, plan.layout.stages.placements
    if len(placements) != config.pp:
        yield f"stages: {len(placements)} placements, but config.pp is {config.pp}"
    devices = [device for placement in placements for device in placement.devices]
    if sorted(devices) != list(range(len(devices))):
        yield f"stages: devices are not 0 to {len(devices) - 1}, each once: {devices}"
    if len(devices) > plan.cluster.devices:
        yield f"stages: {len(devices)} devices of a cluster of {plan.cluster.devices}"
    for index, placement in enumerate(placements):
        if placement.mesh != config.mesh:
            groups = f" in groups of {config.zero_group}" * (config.zero_group > 0)
            meant = f"dp {config.dp}{groups}, ep {config.ep}, cp {config.cp} and tp {config.tp}"
            yield f"stage {index}: mesh {placement.mesh}, but config has {meant}"
        if placement.axes != config.axes:
            yield f"stage {index}: axes {placement.axes}, but {config.axes} are meant"
    size = math.prod(config.mesh)
    for index, (placement, share) in enumerate(zip(placements, config.stage_order, strict=False)):
        if placement.devices != tuple(range(share * size, (share + 1) * size)):
            meant = f"config.stage_order has share {share} of {size} ranks"
            yield f"stage {index}: devices {placement.devices}, but {meant}"
    meshes = len(placements) == config.pp and {placement.mesh for placement in placements} == {config.mesh}
    if config.strides and meshes:
        for index, (placement, wanted) in enumerate(zip(placements, placements_of(config), strict=True)):
            if placement.devices != wanted.devices:
                yield f"stage {index}: devices {placement.devices}, but by config.strides {wanted.devices}"
    problem = schedule_problem(config.schedule, config.pp, config.virtual_stages, config.num_micro_batches)
    if problem is not None:
        yield f"config.schedule: {problem}"
    else:
        yield from _runs(plan)
    training = plan.training
    if (training.num_micro_batches, training.micro_batch) != (config.num_micro_batches, config.micro_batch * config.dp):
        yield (
            f"config: {config.num_micro_batches} micro-batches of {config.micro_batch} x dp {config.dp}, "
            f"but training has {training.num_micro_batches} of {training.micro_batch}"
        )


def _runs(plan: Plan) -> Iterator[str]:
    """Whether layers are where the config says that they are, if it says so."""
    config, stages = plan.config, plan.layout.stages
    if not config.runs:
        return
    layers = max(plan.graph.num_layers, 1)
    if sum(config.runs) != layers:
        yield f"config.runs: {sum(config.runs)} layers in all, the model has {layers}"
        return
    places = [place for place, run in enumerate(config.runs) for _ in range(run)]
    for op in plan.graph.ops:
        if op.layer is None or op.phase is not Phase.FORWARD or op_definition(op.kind).repeats:
            continue
        meant = at_position(config.schedule, config.pp, places[op.layer])
        if (stages.stage_of.get(op.name), stages.lap_of(op.name)) != meant:
            yield f"op {op.name}: not on stage {meant[0]}, lap {meant[1]}, where config.runs has layer {op.layer}"


def _signatures(plan: Plan) -> Iterator[str]:
    stages = plan.layout.stages
    keep = zero_filter(plan.graph, plan.config, stages.stage_of)
    for op in plan.graph.ops:
        if op.name not in plan.layout.signatures:
            yield f"op {op.name}: the plan gives it no signature"
            continue
        if not 0 <= stages.stage_of[op.name] < len(stages.placements):
            yield f"op {op.name}: stage {stages.stage_of[op.name]} of {len(stages.placements)}"
            continue
        if not 0 <= stages.lap_of(op.name) < plan.config.virtual_stages:
            yield f"op {op.name}: lap {stages.lap_of(op.name)} of {plan.config.virtual_stages}"
            continue
        found = plan.layout.signatures[op.name]
        if found not in op_signatures(plan.graph, op, stages.placement(op.name).mesh, owned=plan.config.zero_owner):
            written = ", ".join(str(format_nd(nd)) for nd in found.layouts)
            yield f"op {op.name} ({op.kind}): {written} is no legal signature on mesh {stages.placement(op.name).mesh}"
        elif not keep(op, found):
            written = ", ".join(str(format_nd(nd)) for nd in found.layouts)
            yield f"op {op.name}: {written} is not how stage {plan.config.zero_stage} of ZeRO shares out"
        elif not _shares_experts(plan, op, found):
            yield f"op {op.name}: {found} does not split experts by expert, but config.ep is {plan.config.ep}"
    known = {op.name for op in plan.graph.ops}
    yield from (f"op {name}: the model has no such op" for name in plan.layout.signatures if name not in known)


def _shares_experts(plan: Plan, op: Op, signature: Signature) -> bool:
    """Whether weights of experts are with their experts along the axis that the config has for these."""
    place = op_definition(op.kind).expert_weights
    if plan.config.ep == 1 or place is None or not plan.graph.parameter_of(op.inputs[place]):
        return True
    return signature.inputs[place][plan.config.axes.index("expert")] == BY_EXPERT


def _conversions(plan: Plan) -> Iterator[str]:
    graph, stages, signatures = plan.graph, plan.layout.stages, plan.layout.signatures
    given: dict[Copy, Conversion] = {}
    for conversion in plan.layout.conversions:
        if conversion.copy in given:
            yield f"boxing of {conversion.copy.value}: the same copy is made twice"
        given[conversion.copy] = conversion
    unread = dict(given)
    wanted = wanted_copies(graph, stages, signatures)
    for copy, readers in wanted.items():
        home = home_of(graph, stages, signatures, copy.value)
        needed = home is not None and (home.stage, home.layout) != (copy.stage, copy.layout)
        what = f"op {readers[0].name}: reads {copy.value} as {format_nd(copy.layout)} on stage {copy.stage}"
        made = unread.pop(copy, None)
        if home is None or not needed:
            if made is not None:
                yield f"{what}, where it is already; its boxing is superfluous"
        elif made is None:
            yield f"{what}, but it is {format_nd(home.layout)} on stage {home.stage} and no boxing leads there"
        elif made.source != home:
            yield f"{what}, by boxing from {made.source}, but it is at {home}"
        else:
            yield from (f"{what}: {problem}" for problem in _steps(plan, made))
    yield from (f"boxing of {copy.value}: no op reads it as {format_nd(copy.layout)}" for copy in unread)


def _steps(plan: Plan, conversion: Conversion) -> Iterator[str]:
    """Whether each step of a chain is legal and the last one arrives."""
    spec = plan.graph.values[conversion.copy.value].spec
    placements = plan.layout.stages.placements
    stage, layout = conversion.source.stage, conversion.source.layout
    for number, step in enumerate(conversion.steps):
        if step.kind is ActKind.TRANSFER:
            moves = stage != conversion.copy.stage and step.axes == ()
            if not moves or has_partial(layout) or has_partial(step.target):
                yield f"step {number} is a transfer of {_change(layout, step.target)}: not legal here"
                return
            stage = conversion.copy.stage
        elif not _legal(layout, step):
            yield f"step {number}, {step.kind} along axes {step.axes}, does not turn {_change(layout, step.target)}"
            return
        layout = step.target
        terms = all(may_be_partial(spec, reduce) for reduce in reductions(layout))
        if not terms or not is_legal_layout(spec.shape, layout, placements[stage].mesh):
            yield f"step {number} leaves {format_nd(layout)}, which {spec.dtype} {spec.shape} does not allow"
            return
    if (stage, layout) != (conversion.copy.stage, conversion.copy.layout):
        yield f"its boxing ends at {format_nd(layout)} on stage {stage}"


def _legal(source: NdSbp, step: BoxingStep) -> bool:
    return len(source) == len(step.target) and step_between(source, step.target) == step


def _change(source: NdSbp, target: NdSbp) -> str:
    return f"{format_nd(source)} into {format_nd(target)}"


def _figures(plan: Plan) -> Iterator[str]:
    """What follows from the layout without lowering it: the objective, and the words about it."""
    claims = plan.claims
    most, there = most_memory_bytes(plan.cluster, claims.fit), plan.cluster.largest_memory_bytes
    if claims.memory_limit_bytes > most:
        fit = "" if claims.fit is None or most == there else f"; {most} fit with probability {claims.fit.probability:g}"
        yield f"memory_limit_bytes: {claims.memory_limit_bytes}, a device has {there}{fit}"
    try:
        objective_s = plan.priced.objective_ns / 1e9
    except InputError as error:
        yield f"objective_s: {error}"
        return
    if abs(objective_s - claims.objective_s) > RELATIVE_TOLERANCE * objective_s:
        yield f"objective_s: {claims.objective_s} claimed, {objective_s} found"
        return
    if not 0 <= claims.lower_bound_s <= claims.objective_s * (1 + RELATIVE_TOLERANCE):
        yield f"lower_bound_s: {claims.lower_bound_s} claimed, which is no bound on {claims.objective_s}"
    gap = max(0.0, (claims.objective_s - claims.lower_bound_s) / claims.objective_s)
    if abs(gap - claims.gap) > RELATIVE_TOLERANCE:
        yield f"gap: {claims.gap} claimed, {gap} follows from objective and bound"
    if claims.status not in STATUSES or (claims.status == "optimal" and gap > RELATIVE_TOLERANCE):
        yield f"status: {claims.status!r} claimed with a gap of {gap}; one of {', '.join(STATUSES)} is meant"


def _traffic(plan: Plan, program: Program) -> Iterator[str]:
    traffic = sent_bytes_per_step(program)
    if traffic != plan.claims.sent_bytes_per_step:
        yield f"sent_bytes_per_step: {plan.claims.sent_bytes_per_step} claimed, {traffic} found"


def _memory(plan: Plan, program: Program) -> Iterator[str]:
    claims, peaks = plan.claims, memory_nbytes(program)
    unlike: dict[tuple[int, int], list[int]] = {}
    for rank, pair in enumerate(zip(claims.peak_memory_bytes, peaks, strict=False)):
        if pair[0] != pair[1]:
            unlike.setdefault(pair, []).append(rank)
    for (claimed, found), (rank, *others) in unlike.items():
        name, nbytes = fullest(program, rank).tensors[0]
        largest = f"the largest tensor of its peak is {name} with {nbytes} bytes"
        also = f" and {len(others)} others" if others else ""
        yield f"peak_memory_bytes of rank {rank}{also}: {claimed} claimed, {found} found; {largest}"
    if len(peaks) != len(claims.peak_memory_bytes):
        yield f"peak_memory_bytes: {len(claims.peak_memory_bytes)} ranks claimed, {len(peaks)} found"
    needed, limit = fullest_rank(plan.cluster, peaks, claims.memory_limit_bytes)
    if needed > limit:
        yield f"memory: {format_bytes(needed)} needed, the limit is {format_bytes(limit)}"
    on_host, there = memory_nbytes(program, Space.HOST), host_memory_bytes(plan.cluster)
    if on_host != claims.peak_host_memory_bytes:
        yield f"peak_host_memory_bytes: {claims.peak_host_memory_bytes} claimed, {on_host} found"
    if max(on_host) > there:
        yield f"host memory: {format_bytes(max(on_host))} needed, a device's share is {format_bytes(there)}"


def refusal(path: Path, problems: list[str]) -> PlanError:
    """One error with every problem, the first one first."""
    return PlanError("\n  ".join([f"refused: {problems[0]}", *problems[1:]]), where=str(path))
