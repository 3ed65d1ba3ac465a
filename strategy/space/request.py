"""Request: what a search is asked for, and what its user pins."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from strategy.base.errors import InputError, report
from strategy.cost.cost import CostModel
from strategy.hardware.cluster import Cluster
from strategy.layout.arrangement import Pipeline
from strategy.layout.config import Context, KeptLayers, Offload, PlanConfig, Recompute
from strategy.layout.objective import overlap_of, pipeline_of
from strategy.layout.schedule import Schedule, schedule_problem
from strategy.layout.step_times import Overlap
from strategy.models import Model
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.sbp.sbp import NdSbp
from strategy.space.axis_orders import first_stage, placements_of, stages_crossing
from strategy.space.deduce import Deduction
from strategy.space.pins import placement_problems, stage_of_devices
from strategy.space.trainer_space import TargetTrainer


@dataclass(frozen=True, slots=True)
class Pins:
    """What a user fixes: any of the degrees, the layout of any value, the stage of any op (both by name or pattern).

    Where micro-batches pass the stages on several laps, `stages` are virtual stages.
    """

    dp: int | None = None
    tp: int | None = None
    cp: int | None = None
    ep: int | None = None
    order: tuple[str, ...] = ()
    context: Context | None = None
    pp: int | None = None
    micro_batch: int | None = None
    num_micro_batches: int | None = None
    schedule: Schedule | None = None
    recompute: Recompute | None = None
    recompute_values: tuple[str, ...] = ()
    kept_layers: KeptLayers | None = None
    offload: Offload | None = None
    offload_values: tuple[str, ...] = ()
    hosted: tuple[tuple[int, ...], ...] = ()
    """Cuts (`PlanConfig.cut`) of which hosts may hold some, where none is pinned and they are left alone otherwise."""
    zero_stage: int | None = None
    zero_group: int | None = None
    zero_owner: bool = False
    zero_min_size: int | None = None
    tiles: int | None = None
    tiled: tuple[str, ...] = ("*",)
    virtual_stages: int | None = None
    bucket_bytes: int | None = None
    exchange_streams: int | None = None
    trainer: TargetTrainer | None = None
    """Only what this trainer's configurations can say, and its devices are likely to hold."""
    fit_probability: float | None = None
    """How likely that is to be; nothing: as good as any other outcome."""
    layouts: Mapping[str, NdSbp] = field(default_factory=dict)
    stages: Mapping[str, int] = field(default_factory=dict)
    placements: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Pattern of op names -> the devices of its stage, instead of the stage's number."""

    def __post_init__(self) -> None:
        report([*placement_problems(self.placements), *self._schedule_problems()], where="pins")

    def _schedule_problems(self) -> Iterator[InputError]:
        """What no degrees can make good; micro-batches in groups only where both numbers are pinned."""
        schedule, laps = self.schedule or Schedule.ONE_F_ONE_B, self.laps
        stages, count = (self.pp, self.num_micro_batches) if self.pp and self.num_micro_batches else (1, 1)
        problem = schedule_problem(schedule, stages, laps, count)
        if problem is not None:
            yield InputError("no such schedule", where="[config]", got=problem)
        if self.placements and laps > 1:
            hint = "pin virtual stages by their numbers, under [stage]"
            yield InputError("devices do not tell virtual stages apart", where="[placement]", hint=hint)

    @property
    def laps(self) -> int:
        """Virtual stages per device."""
        if self.virtual_stages is not None:
            return self.virtual_stages
        return 1 if self.schedule is None else self.schedule.default_laps

    @property
    def devices_per_stage(self) -> int | None:
        """As many as a stage has that is pinned by its devices."""
        return next((len(devices) for devices in self.placements.values()), None)

    @property
    def numbered_stages(self) -> dict[str, int]:
        """Pattern of op names -> stage, of those pinned by their devices too."""
        return {**self.stages, **{p: stage_of_devices(devices) for p, devices in self.placements.items()}}


FEW_DEVICES, MANY_PARAMETERS = 16, 2 * 10**7
"""Below so many devices, and parameters, candidates are few enough to be solved one by one, exactly."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is searched for. `training.num_micro_batches` is the search's to choose."""

    model_name: str
    model: Model
    training: Training
    cost: CostModel
    memory_limit_bytes: int
    pins: Pins = Pins()
    deduction: Deduction | None = None
    """Deduce signatures by this rule instead of searching for the best ones."""
    gap: float = 0.01
    """Part of the objective that it is not worth refining boxes of configurations for."""
    incumbents: bool = True
    """Whether plans that are laid out by rules stand beside those that are searched for."""

    def __post_init__(self) -> None:
        report([*_lacking_rates(self.cost.cluster, self.training.precision)], where="training: precision")

    @property
    def devices(self) -> int:
        """All devices of the cluster are used."""
        return self.cost.cluster.devices

    @property
    def is_small(self) -> bool:
        """Whether a candidate is soon solved on the whole model."""
        return self.devices < FEW_DEVICES and self.model.parameters < MANY_PARAMETERS

    @property
    def state_bytes(self) -> int:
        """About what parameters, gradients and both moments take on one device, in single precision."""
        return 16 * self.model.parameters

    def memory_limits(self, config: PlanConfig) -> tuple[int, ...]:
        """What a rank of each stage of a candidate may hold."""
        cluster, limit = self.cost.cluster, self.memory_limit_bytes
        if not cluster.groups:
            return (limit,) * config.pp
        return tuple(cluster.memory_limit_bytes(limit, placement.devices) for placement in placements_of(config))

    def training_with(self, config: PlanConfig) -> Training:
        """The training with the micro-batches of a candidate."""
        return replace(self.training, num_micro_batches=config.num_micro_batches)

    def pipeline_of(self, config: PlanConfig) -> Pipeline:
        """The pipeline of a candidate."""
        crosses = stages_crossing(self.cost.cluster, config)
        return pipeline_of(config, config.num_micro_batches, self.cost, first_stage(config), crosses)

    def overlap_of(self, config: PlanConfig) -> Overlap:
        """How communication runs beside computation under a candidate."""
        return overlap_of(self.pipeline_of(config), self.cost)


def _lacking_rates(cluster: Cluster, precision: Precision) -> Iterator[InputError]:
    """GPUs that do not multiply codes with a scale per block as a precision asks; cores emulate them all."""
    for device in dict.fromkeys(one.device for one in cluster.types):
        known = {
            Precision.FP8_BLOCK: (device.fp8_speedup > device.bf16_speedup, "fp8_speedup above bf16_speedup"),
            Precision.MXFP8: (device.mx_scales, "mx_scales = true"),
            Precision.NVFP4: (device.nvfp4_speedup > device.fp8_speedup, "nvfp4_speedup above fp8_speedup"),
        }
        has, said = known.get(precision, (True, ""))
        if device.backend != "numpy" and not has:
            yield InputError(
                f"{device.name} has no rate for products in {precision}",
                where="training: precision",
                got=str(precision),
                expected=f"a device that has one ({said} in its cluster file)",
                hint="Hopper and later have fp8-block, NVIDIA's Blackwell mxfp8 and nvfp4, too",
            )
