"""PlanConfig: the degrees of parallelism and the memory techniques that people talk about."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from enum import StrEnum
from operator import attrgetter
from typing import Any

from strategy.base.errors import InputError
from strategy.layout.schedule import Schedule
from strategy.sbp.tensor import Shape


class Context(StrEnum):
    """How attention works where ranks share out the positions of a sequence."""

    RING = "ring"
    """Keys and values go round a ring of the ranks (see `passes.ring_attention`)."""
    ALL_TO_ALL = "all_to_all"
    """Positions are exchanged for heads before attention, and back after it (Jacobs et al. 2023, arXiv:2309.14509)."""


SMALLEST_SHARED = 1024
"""Elements below which sharing a tensor out is not worth the calls; OneFlow's figure too."""


class Recompute(StrEnum):
    """Which activations of the repeated layers the backward pass computes again."""

    NONE = "none"
    MEMORY_BOUND = "memory-bound"
    """What memory-bound ops write (norms, activation functions), where all that they read is kept anyway: no product is
    repeated, and what was gathered of it along a tensor axis is gathered again."""
    SELECTIVE = "selective"
    """What lies inside of attention (Korthikanti et al. 2022, arXiv:2205.05198, section 5)."""
    FULL = "full"
    """All but the inputs of every layer."""


class KeptLayers(StrEnum):
    """Which layers may keep what a configuration computes again; the first and the last do not."""

    NONE = "none"
    ANY = "any"
    """Any share of those between, the same on every stage."""


class Offload(StrEnum):
    """What waits in the host's memory while the device does not need it (see `passes.offload`)."""

    NONE = "none"
    ACTIVATIONS = "activations"
    OPTIMIZER = "optimizer"
    ALL = "all"

    @property
    def parts(self) -> tuple[Offload, ...]:
        """All that leave no more to the host."""
        return tuple(Offload) if self is Offload.ALL else (Offload.NONE, self)

    @property
    def of_activations(self) -> bool:
        """Whether activations do."""
        return self in (Offload.ACTIVATIONS, Offload.ALL)

    @property
    def of_optimizer(self) -> bool:
        """Whether parameters, their state and their updates do."""
        return self in (Offload.OPTIMIZER, Offload.ALL)


@dataclass(frozen=True, slots=True)
class PlanConfig:
    """How a step is spread over devices and time. The degrees' product is the number of devices.

    Attributes:
        dp: data-parallel degree: ranks that have samples of their own.
        tp: tensor-parallel degree.
        pp: pipeline stages.
        micro_batch: samples of a micro-batch on one data-parallel rank.
        num_micro_batches: of a step.
        schedule: in which order a stage runs its chunks.
        cp: context-parallel degree: ranks among which every sequence is split.
        context: how attention works then.
        ep: expert-parallel degree: so many neighbours of the data-parallel ranks share out the experts of a layer
            between them, and tokens go to them (Lepikhin et al. 2021, arXiv:2006.16668).
        virtual_stages: runs of layers per device, which a micro-batch passes on as many laps (see `schedule`).
        recompute: which activations the backward pass computes again.
        recompute_values: patterns of names of activations that it computes again besides.
        kept_layers: the numbers of layers whose activations are all kept, whatever else says (Megatron's block method
            is such a choice).
        offload: what waits in the host's memory.
        offload_values: patterns of names of the activations that do, if `offload` names activations; else all do.
        zero_stage: what data-parallel ranks share out between them instead of repeating it (Rajbhandari et al. 2020,
            arXiv:1910.02054): 1 optimiser state, 2 gradients too, 3 parameters too. 0 demands nothing: a search may
            still find that sharing pays.
        zero_group: so many neighbours of the data-parallel ranks share that out between them, and other groups of as
            many hold the same (HSDP; Zhao et al. 2023, arXiv:2304.11277); 0: all of them do.
        zero_owner: whether what is shared out stays in one piece, each tensor with one rank, the ranks about equally
            full; for rules that look at whole tensors. OneFlow's `non_distributed` mode.
        zero_min_size: elements below which a tensor is not shared out.
        tiles: of columns into which linear maps are cut, one run after the other.
        tiled: patterns of names of the linear maps (`*.fc1.matmul`) that are cut.
        runs: how many layers are at every place along the pipeline (see `schedule`), where these are not dealt out
            nearly equally.
        stage_order: which share of consecutive ranks, as many as a stage has, each stage is on, where that is not its
            number.
        strides: ranks from one stage to the next, and from one coordinate to the next of every axis of the mesh, where
            these do not lie in that order, stages outermost.
        bucket_bytes: gradients are exchanged together up to so many bytes on a rank (see `lowering.exchange_buckets`);
            0: each by itself.
        exchange_streams: over so many streams these exchanges go round, where they run beside computation.
    """

    dp: int
    tp: int
    pp: int
    micro_batch: int
    num_micro_batches: int
    schedule: Schedule
    cp: int = 1
    ep: int = 1
    virtual_stages: int = 1
    recompute: Recompute = Recompute.NONE
    recompute_values: tuple[str, ...] = ()
    kept_layers: tuple[int, ...] = ()
    offload: Offload = Offload.NONE
    offload_values: tuple[str, ...] = ()
    zero_stage: int = 0
    zero_group: int = 0
    zero_owner: bool = False
    zero_min_size: int = SMALLEST_SHARED
    tiles: int = 1
    tiled: tuple[str, ...] = ("*",)
    context: Context = Context.RING
    runs: tuple[int, ...] = ()
    stage_order: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    bucket_bytes: int = 0
    exchange_streams: int = 1

    def __post_init__(self) -> None:
        for name in ("dp", "tp", "pp", "cp", "ep", "virtual_stages", "micro_batch", "num_micro_batches", "tiles"):
            if getattr(self, name) < 1:
                raise InputError(
                    "not possible", where=f"config: {name}", got=getattr(self, name), expected="at least 1"
                )
        if self.runs and (len(self.runs) != self.pp * self.virtual_stages or min(self.runs) < 1):
            expected = f"{self.pp * self.virtual_stages} counts >= 1"
            raise InputError("no runs of layers", where="config: runs", got=self.runs, expected=expected)
        if self.stage_order and sorted(self.stage_order) != list(range(self.pp)):
            expected = f"each of 0 to {self.pp - 1} once"
            raise InputError(
                "no order of the stages", where="config: stage_order", got=self.stage_order, expected=expected
            )
        if self.strides and (self.stage_order or not self._strides_are_apart()):
            expected = "a stride >= 1 for stages and each axis of the mesh, no rank twice, and no stage_order"
            raise InputError("no order of the axes", where="config: strides", got=self.strides, expected=expected)
        if list(self.kept_layers) != sorted(set(self.kept_layers)) or min(self.kept_layers, default=0) < 0:
            where, expected = "config: kept_layers", "numbers of layers, ascending"
            raise InputError("no choice of layers", where=where, got=self.kept_layers, expected=expected)
        if self.kept_layers and not (self.recompute_values or self.recompute is not Recompute.NONE):
            got, hint = "recompute none", "set recompute, or leave kept_layers out"
            raise InputError("all layers keep everything", where="config: kept_layers", got=got, hint=hint)
        if not 0 <= self.zero_stage <= 3:
            raise InputError(
                "no such stage of ZeRO", where="config: zero_stage", got=self.zero_stage, expected="0 to 3"
            )
        if self.zero_stage and self.dp == 1:
            got, hint = f"zero_stage {self.zero_stage} with dp 1", "raise dp, or leave zero_stage out"
            raise InputError("nobody to share with", where="config: zero_stage", got=got, hint=hint)
        self._check_group()
        if self.dp % self.ep:
            expected = f"a divisor of dp, which is {self.dp}"
            raise InputError("no share of the data-parallel ranks", where="config: ep", got=self.ep, expected=expected)
        if self.zero_owner and self.ep > 1:
            got, hint = f"zero_owner with ep {self.ep}", "leave out one of them"
            raise InputError("experts are owned and shared out", where="config: zero_owner", got=got, hint=hint)
        if self.zero_owner and not self.zero_stage:
            hint = "set zero_stage too"
            raise InputError("nothing is shared out", where="config: zero_owner", got="zero_stage 0", hint=hint)
        if self.tiled != ("*",) and self.tiles == 1:
            raise InputError("nothing is cut", where="config: tiled", got="tiles 1", hint="set tiles too")
        if self.bucket_bytes < 0 or self.exchange_streams < 1:
            where, found = "config: bucket_bytes, exchange_streams", (self.bucket_bytes, self.exchange_streams)
            raise InputError("not possible", where=where, got=found, expected="at least 0, and at least 1")
        if self.exchange_streams > 1 and not self.bucket_bytes:
            got, hint = f"exchange_streams {self.exchange_streams}", "set bucket_bytes too"
            raise InputError("no buckets to go round", where="config: exchange_streams", got=got, hint=hint)
        if self.zero_min_size < 1:
            where, expected = "config: zero_min_size", "a number of elements >= 1"
            raise InputError("not possible", where=where, got=self.zero_min_size, expected=expected)

    def in_form(self, schedule: Schedule, virtual_stages: int, runs: tuple[int, ...]) -> PlanConfig:
        """This under another schedule, for which `schedule_problem` finds no problem: a search lists very many."""
        return self._unchecked(schedule=schedule, virtual_stages=virtual_stages, runs=runs)

    def in_order(self, strides: tuple[int, ...]) -> PlanConfig:
        """This with axes that lie otherwise, by strides of `axis_orders`."""
        return self if strides == self.strides else self._unchecked(strides=strides)

    def saving(self, recompute: Recompute, zero_stage: int, offload: Offload) -> PlanConfig:
        """This saving memory otherwise, by a stage of ZeRO that its data-parallel ranks can be in."""
        return self._unchecked(recompute=recompute, zero_stage=zero_stage, offload=offload)

    @property
    def keeping_everything(self) -> PlanConfig:
        """This with nothing computed again in any layer, for a search asks it of very many."""
        if self.recompute is Recompute.NONE:
            return self
        return self._unchecked(recompute=Recompute.NONE, kept_layers=())

    @property
    def saving_nothing(self) -> PlanConfig:
        """The same with nothing on the host, either."""
        found = self.keeping_everything
        return found if found.offload is Offload.NONE else found._unchecked(offload=Offload.NONE)

    def _unchecked(self, **changes: Any) -> PlanConfig:
        """This with changes that leave it possible."""
        found = object.__new__(PlanConfig)
        for (name, write), value in zip(_WRITES, _READ(self), strict=True):
            write(found, changes.get(name, value))
        return found

    def _check_group(self) -> None:
        group, where = self.zero_group, "config: zero_group"
        if not group:
            return
        if not self.zero_stage or self.zero_owner:
            got, hint = f"zero_stage {self.zero_stage}, zero_owner {self.zero_owner}", "set zero_stage, no zero_owner"
            raise InputError("nothing is shared out in parts", where=where, got=got, hint=hint)
        if group < 2 or group >= self.dp or self.dp % group or group % self.ep:
            of_experts = f", a multiple of ep {self.ep}," * (self.ep > 1)
            expected = f"a divisor of dp{of_experts} between 1 and dp, which is {self.dp}; or 0, for all of them"
            raise InputError("no groups of the data-parallel ranks", where=where, got=group, expected=expected)

    def _strides_are_apart(self) -> bool:
        """Whether every coordinate is on a rank of its own: each stride passes all that lies inside of it."""
        if len(self.strides) != 1 + len(self.mesh) or min(self.strides) < 1:
            return False
        pairs = sorted(pair for pair in zip(self.strides, (self.pp, *self.mesh), strict=True) if pair[1] > 1)
        return all(stride * size <= outer for (stride, size), (outer, _) in itertools.pairwise(pairs))

    @property
    def cut(self) -> tuple[int, ...]:
        """What a step is cut into: the degrees of dp, tp, cp, ep and pp, and the samples of a micro-batch on a rank."""
        return self.dp, self.tp, self.cp, self.ep, self.pp, self.micro_batch

    @property
    def in_space(self) -> PlanConfig:
        """The same as spaces and bounds speak of it.

        How gradients are put together, and which layers keep what could be computed again, is left to every plan.
        """
        return replace(self, bucket_bytes=0, exchange_streams=1, kept_layers=())

    @property
    def pipeline(self) -> PlanConfig:
        """The same with every stage on one rank: all that decides on chunks, their order, and the layers of each."""
        laps, runs = self.virtual_stages, self.runs
        return PlanConfig(1, 1, self.pp, 1, self.num_micro_batches, self.schedule, virtual_stages=laps, runs=runs)

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes of a stage's mesh, outermost first."""
        return mesh_axes(self.cp, self.ep, groups=self.zero_group > 0)

    @property
    def mesh(self) -> Shape:
        """Sizes of those axes."""
        experts, context = (self.ep,) * (self.ep > 1), (self.cp,) * (self.cp > 1)
        groups = (self.dp // self.shards,) * (self.zero_group > 0)
        return (*groups, self.shards // self.ep, *experts, *context, self.tp)

    @property
    def shards(self) -> int:
        """The data-parallel ranks that share out between them what ZeRO does."""
        return self.zero_group or self.dp

    @property
    def data_axis(self) -> int:
        """The axis of the mesh along which ZeRO shares out; one ahead of it has groups that hold the same."""
        return int(self.zero_group > 0)

    @property
    def shard_axes(self) -> tuple[int, ...]:
        """The axes of the mesh along which what ZeRO shares out is in parts."""
        return self.replica_axes[self.data_axis :]

    @property
    def replica_axes(self) -> tuple[int, ...]:
        """The axes of the mesh along which ranks use the same parameters, but for those of experts."""
        return tuple(range(len(self.mesh) - 1))


_READ = attrgetter(*PlanConfig.__slots__)
_WRITES = tuple((name, vars(PlanConfig)[name].__set__) for name in PlanConfig.__slots__)
"""What reads all attributes, and writes each, sooner than by their names."""


def mesh_axes(cp: int, ep: int, *, groups: bool = False) -> tuple[str, ...]:
    """Names of the axes of a mesh: there is one for groups, positions, or experts, only where there are several."""
    return (*("replica",) * groups, "data", *("expert",) * (ep > 1), *("context",) * (cp > 1), "tensor")
