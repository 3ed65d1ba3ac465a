"""Trainer space: the plans that a trainer of language models can be told to run, as limits on the space of a search.

What a trainer's configuration has words for, as data: schedules, kinds of recomputing, stages of ZeRO, ways to split
positions, and whether experts are shared out. Along the tensor axis all of them lay layers out alike (`trainer_axis`).
Stages and axes lie over the ranks by the order of their names, layers are dealt out evenly, and a tensor axis divides
all that it cuts: no trainer pads in the way that our layouts do.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from strategy.graph.experts import weights_of_experts
from strategy.graph.graph import Graph, Op, Phase, Role
from strategy.layout.config import Context, Offload, PlanConfig, Recompute
from strategy.layout.schedule import Schedule
from strategy.models import Model
from strategy.sbp.sbp import B, Sbp, Split
from strategy.space.rules import FIRST_MAPS, AxisRule, columns_and_rows, head_axis


class TargetTrainer(StrEnum):
    """The trainer that a plan is searched for."""

    MEGATRON = "megatron"
    TORCHTITAN = "torchtitan"
    DEEPSPEED = "deepspeed"


@dataclass(frozen=True, slots=True)
class TrainerSpace:
    """What a trainer's configuration can say.

    Attributes:
        schedules: of pipelines.
        recomputes: what may be computed again.
        zero_stages: that may be asked for where several ranks have the same parameters; stage 0 leaves stage 1 to the
            choice of layouts.
        pipelined_zero_stages: the same in a pipeline.
        context: how attention works where positions are split; None where they are not.
        pipelined_context: whether they may be in a pipeline.
        experts: whether experts may be shared out.
        groups: whether ranks may share out in groups that hold the same.
    """

    schedules: tuple[Schedule, ...]
    recomputes: tuple[Recompute, ...]
    zero_stages: tuple[int, ...]
    pipelined_zero_stages: tuple[int, ...]
    context: Context | None
    pipelined_context: bool
    experts: bool
    groups: bool = False

    def zero_stages_of(self, config: PlanConfig) -> tuple[int, ...]:
        """The stages of ZeRO of a division of the devices; one copy of the parameters is not shared out."""
        if config.dp == 1:
            return (0,)
        return self.zero_stages if config.pp == 1 else self.pipelined_zero_stages

    def _zero_stages_said(self, config: PlanConfig) -> tuple[int, ...]:
        """Those, and stage 1 where stage 0 leaves it to the layouts: it need not be listed, and may be pinned."""
        listed = self.zero_stages_of(config)
        return (*listed, 1) if config.dp > 1 and 0 in listed else listed

    def says(self, model: Model, config: PlanConfig) -> bool:
        """Whether the trainer can be told a configuration of a model."""
        return (
            config.recompute in self.recomputes
            and config.zero_stage in self._zero_stages_said(config)
            and (config.pp == 1 or (config.schedule in self.schedules and not config.runs))
            and _deals_evenly(model, config)
            and (config.ep == 1 or self.experts)
            and (not config.zero_group or self.groups)
            and (config.cp == 1 or (config.context is self.context and (config.pp == 1 or self.pipelined_context)))
            and not (
                config.strides
                or config.stage_order
                or config.zero_owner
                or config.recompute_values
                or config.kept_layers
            )
            and config.offload is Offload.NONE
            and config.tiles == 1
            and all(rows % (config.tp * parts) == 0 for rows, parts in _cut(model, config.cp))
        )


def _deals_evenly(model: Model, config: PlanConfig) -> bool:
    """Whether every place of the pipeline has equally many layers, and no others than those that repeat."""
    others = any(int(getattr(model, name, 0)) for name in ("before", "after"))
    return config.pp == 1 or (max(model.layers, 1) % (config.pp * config.virtual_stages) == 0 and not others)


def _cut(model: Model, cp: int) -> Iterator[tuple[int, int]]:
    """(rows of a model that a tensor axis cuts, parts that a context axis has cut them into before)."""
    for name in ("heads", "key_heads", "hidden", "expert_hidden", "shared_hidden", "vocabulary"):
        yield int(getattr(model, name, 0)), 1
    # Causal attention gives every rank of a ring two pieces, an early and a late one.
    yield int(getattr(model, "sequence", 0)), 2 * cp if cp > 1 else 1


_ALL = (Schedule.ONE_F_ONE_B, Schedule.GPIPE, Schedule.INTERLEAVED, Schedule.ZBV)
TRAINER_SPACES: Mapping[TargetTrainer, TrainerSpace] = MappingProxyType(
    {
        # --use-distributed-optimizer is stage 1; Megatron-FSDP is stage 3, here without a pipeline.
        TargetTrainer.MEGATRON: TrainerSpace(
            schedules=(Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED),
            recomputes=(Recompute.NONE, Recompute.SELECTIVE, Recompute.FULL),
            zero_stages=(0, 3),
            pipelined_zero_stages=(0,),
            context=Context.RING,
            pipelined_context=True,
            experts=True,
        ),
        # FSDP2, with `fsdp_reshard_after_forward` as it is by default: "always" without a pipeline, "never" in one.
        TargetTrainer.TORCHTITAN: TrainerSpace(
            schedules=_ALL,
            recomputes=(Recompute.NONE, Recompute.FULL),
            zero_stages=(3,),
            pipelined_zero_stages=(2,),
            context=Context.RING,
            pipelined_context=True,
            experts=True,
            groups=True,
        ),
        # Its pipelines exchange gradients once per step; Ulysses, which exchanges heads, works without one.
        TargetTrainer.DEEPSPEED: TrainerSpace(
            schedules=(Schedule.ONE_F_ONE_B,),
            recomputes=(Recompute.NONE, Recompute.FULL),
            zero_stages=(0, 2, 3),
            pipelined_zero_stages=(0,),
            context=Context.ALL_TO_ALL,
            pipelined_context=False,
            experts=False,
        ),
    }
)


def trainer_axis(graph: Graph, parts: int, vocabulary: int) -> AxisRule:
    """What trainers lay out along a tensor axis: columns, then rows; words of embedding and head; norms by position.

    Columns and rows: Shoeybi et al. 2019 (arXiv:1909.08053), section 3; norms by position: Korthikanti et al. 2022
    (arXiv:2205.05198). A weight is read in both passes as it lies. Experts are whole, or cut as MLPs are.
    """
    heads, norms = head_axis(graph, parts), frozenset(norms_of(graph))
    allowed = dict(parameter_layouts(graph, vocabulary))

    def rule(op: Op, name: str, sbp: Sbp) -> bool:
        if op.name in norms and name == op.inputs[0]:
            return sbp == Split(1)
        return sbp in allowed[name] if name in allowed else heads(op, name, sbp)

    return rule


def parameter_layouts(graph: Graph, vocabulary: int) -> Iterator[tuple[str, tuple[Sbp, ...]]]:
    """(parameter, its state, or what is made of it alone and has its shape; how it may lie along a tensor axis)."""
    cut = dict(columns_and_rows(graph))
    experts = {graph.parameter_of(name) for name in weights_of_experts(graph).values()}
    found: dict[str, tuple[Sbp, ...]] = {}
    for value in graph.with_role(Role.VARIABLE):
        parameter, shape = graph.values[graph.parameter_of(value.name)], value.spec.shape
        if shape != parameter.spec.shape:
            continue
        if parameter.name in experts:
            found[value.name] = B, Split(len(shape) - 1 if parameter.path[-1:] in FIRST_MAPS else len(shape) - 2)
        elif parameter.layer is None and len(shape) > 1 and shape.count(vocabulary) == 1:
            found[value.name] = (Split(shape.index(vocabulary)),)
        elif parameter.layer is None and len(shape) > 1:
            # A table of positions is read whole, or by position as the norms are.
            found[value.name] = B, Split(0)
        else:
            found[value.name] = (cut[value.name],)
    for op in graph.ops:
        if len(op.inputs) == 1 and op.inputs[0] in found and op.phase is not Phase.UPDATE and not op.updates:
            (read,), (written, *_) = graph.specs(op.inputs), graph.specs(op.outputs)
            if read.shape == written.shape:
                found[op.outputs[0]] = found[op.inputs[0]]
    yield from found.items()


def norms_of(graph: Graph) -> Iterator[str]:
    """Ops of the forward pass that normalise [samples, positions, width]: they read a vector and keep statistics."""
    for op in graph.ops:
        if op.phase is not Phase.FORWARD or len(op.outputs) < 2 or len(op.inputs) < 2:
            continue
        first, *others = graph.specs(op.inputs)
        vectors = [name for name, spec in zip(op.inputs[1:], others, strict=True) if len(spec.shape) == 1]
        if len(first.shape) == 3 and any(graph.parameter_of(name) for name in vectors):
            yield op.name
