"""TrainedModel: one configuration of a trainer, read: what is trained, on what batch, in what precision, cut how.

What the closed form calls a job follows with the devices (`job_of`). Two files that say the same give the same value.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from strategy.base.errors import InputError
from strategy.closed_form.job import Job
from strategy.hardware.devices import DeviceSheet
from strategy.layout.config import PlanConfig, Recompute
from strategy.layout.schedule import Schedule
from strategy.models import Model
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.passes.updates import Optimizer
from strategy.trainers.architecture import Architecture, of_model, shape_of


class TrainerName(StrEnum):
    """Whose configuration a file is."""

    MEGATRON = "megatron"
    TORCHTITAN = "torchtitan"
    DEEPSPEED = "deepspeed"
    NEMO = "nemo"
    NANOTRON = "nanotron"
    LLM_FOUNDRY = "llm-foundry"


IN_FLIGHT = {Schedule.ZBV: 1.0}
"""Activations of schedules of V shape over those of a 1F1B's first stage."""


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A model, its training, and its degrees.

    Attributes:
        trainer: whose words these are.
        model: see `Architecture`.
        sequence: tokens of a sample.
        micro_batch: samples of a micro-batch on one data-parallel rank; 0 where `global_batch` says it.
        global_batch: samples of a step; 0 where `micro_batches` says how many micro-batches each rank takes.
        micro_batches: of a step, on each rank; 0 where `global_batch` says it, or where it is one.
        gpus, gpus_per_node: as the file says; 0 where it does not.
        tp, pp, cp, ep, etp: degrees; `etp` cuts each expert.
        virtual: runs of layers per device.
        schedule: of the pipeline.
        zero: stage of ZeRO.
        replicas: groups of ranks that each hold everything that ZeRO spreads (HSDP).
        sequence_parallel: whether norms split the sequence along the tensor axis.
        precision: of products, a name of `closed_form.job.BITS`.
        half: of what is no product: bf16, fp16 or single.
        gradients: how gradients are added up: `single`, `half`, or nothing where the trainer decides.
        optimizer: the rule, as the trainer calls it.
        recompute, recompute_modules, recompute_layers: see `Job`.
        fused_attention: whether attention keeps no scores.
        own_kernels: whether layers are PyTorch's own modules.
        deterministic: whether sums keep their order.
        exposed: what is exchanged without anything beside it: `gradients`, `parameters`, `tensors`.
        offload: what waits in the host's memory: `optimizer`, `parameters`, `activations`.
        adapter_rank: of what is trained beside frozen weights; 0 where all is trained.
        framework: whose constants price it, where the trainer alone does not say.
    """

    trainer: TrainerName
    model: Architecture
    sequence: int
    micro_batch: int
    global_batch: int = 0
    micro_batches: int = 0
    gpus: int = 0
    gpus_per_node: int = 0
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    virtual: int = 1
    schedule: Schedule = Schedule.ONE_F_ONE_B
    zero: int = 0
    replicas: int = 1
    sequence_parallel: bool = False
    precision: str = "half"
    half: str = "bf16"
    gradients: str = ""
    optimizer: str = "adamw"
    recompute: str = "none"
    recompute_modules: tuple[str, ...] = ()
    recompute_layers: int = 0
    fused_attention: bool = True
    own_kernels: bool = False
    deterministic: bool = False
    exposed: tuple[str, ...] = ()
    offload: tuple[str, ...] = ()
    adapter_rank: int = 0
    framework: str = ""

    @property
    def replica_gpus(self) -> int:
        """Devices of one replica of the model."""
        return self.tp * self.pp * self.cp


FRAMEWORKS = {
    TrainerName.MEGATRON: "megatron-core",
    TrainerName.TORCHTITAN: "torchtitan",
    TrainerName.DEEPSPEED: "deepspeed-zero",
    TrainerName.NEMO: "nemo",
    TrainerName.NANOTRON: "megatron",
    TrainerName.LLM_FOUNDRY: "llm-foundry",
}
"""Whose constants price a trainer; nanotron has no runs of its own, and takes an eager Megatron's."""
_MOMENTS = {"muon": 1, "lion": 1, "sgd": 1}


def micro_batch_of(read: TrainedModel, gpus: int) -> int:
    """Samples of a micro-batch on so many GPUs: as the file says, or its part of a step's batch, as DeepSpeed has it.

    Raises:
        InputError: the ranks do not share the batch out evenly.
    """
    if read.micro_batch:
        return read.micro_batch
    ranks, count = gpus // read.replica_gpus, max(read.micro_batches, 1)
    samples, left = divmod(read.global_batch, ranks * count)
    if left or not samples:
        got = f"{read.global_batch} samples for {ranks} data-parallel ranks, {count} times each"
        hint = "give a number of --gpus whose ranks share the batch out evenly"
        raise InputError("the batch is no multiple of the ranks", got=got, hint=hint)
    return samples


def batch_of(read: TrainedModel, gpus: int) -> int:
    """Samples of a step on so many GPUs.

    Raises:
        InputError: the degrees do not divide the GPUs, the tensor degree not the heads, or the batch is no multiple of
            what the ranks take at once.
    """
    if gpus % read.replica_gpus:
        got = f"tp {read.tp} x pp {read.pp} x cp {read.cp} = {read.replica_gpus} on {gpus} GPUs"
        raise InputError("the degrees do not divide the GPUs", got=got, hint="give another number of --gpus")
    if read.model.heads % read.tp:
        got = f"{read.model.heads} heads, tp {read.tp}"
        raise InputError("the heads are no multiple of the tensor degree", got=got, hint="change it in the file")
    dp = gpus // read.replica_gpus
    micro_batch = micro_batch_of(read, gpus)
    at_once = dp * micro_batch
    batch = read.global_batch or at_once * max(read.micro_batches, 1)
    if batch % at_once:
        got = f"{batch} samples for {dp} data-parallel ranks with {micro_batch} at once"
        hint = "give a number of --gpus whose ranks share the batch out evenly"
        raise InputError("the batch is no multiple of what the ranks take", got=got, hint=hint)
    if dp % read.replicas:
        got = f"{read.replicas} groups of {dp} data-parallel ranks"
        raise InputError("the groups do not divide the ranks", got=got, hint="give another number of --gpus")
    if dp * read.cp * read.tp % (read.ep * read.etp):
        got = f"ep {read.ep} x etp {read.etp} with dp {dp} x cp {read.cp} x tp {read.tp}"
        raise InputError("experts are shared out over more ranks than there are", got=got)
    return batch


def job_of(read: TrainedModel, device: DeviceSheet, gpus: int, per_node: int, fabric: str = "infiniband") -> Job:
    """The job that the closed form prices; see `batch_of` for what is raised."""
    batch = batch_of(read, gpus)
    framework = read.framework or FRAMEWORKS[read.trainer]
    if read.deterministic and framework == "megatron-core":
        framework = "megatron-core-tested"
    if framework == "megatron-deepspeed" and not read.zero:
        framework = "megatron-fork"  # whose pipeline and optimiser are its own
    dp = gpus // read.replica_gpus
    shard = dp * read.cp // read.replicas if read.replicas > 1 else 0
    modules = read.recompute_modules or ("core_attn",)
    return Job(
        shape=shape_of(read.model, read.sequence),
        device=device,
        framework=framework,
        precision=read.precision,
        gpus=gpus,
        gpus_per_node=per_node,
        nic_bytes_per_s=device.nic_bytes_per_s,
        fabric=fabric,
        seq=read.sequence,
        global_batch=batch,
        micro_batch=micro_batch_of(read, gpus),
        tp=read.tp,
        pp=read.pp,
        cp=read.cp,
        ep=read.ep,
        etp=read.etp,
        virtual=read.virtual,
        zero=read.zero,
        shard=max(shard, 0),
        in_flight=IN_FLIGHT.get(read.schedule, 0.0),
        recompute=read.recompute,
        recompute_layers=read.recompute_layers,
        modules=modules,
        frozen=read.adapter_rank > 0,
        adapter_rank=read.adapter_rank,
        sequence_parallel=read.sequence_parallel,
        flash=read.fused_attention,
        plain_modules=read.own_kernels,
        wide_gradients=read.gradients == "single",
        narrow_gradients=read.gradients == "half",
        moments=_MOMENTS.get(read.optimizer, 2),
    )


def training_of(read: TrainedModel, gpus: int) -> Training:
    """How it is trained, in the search's words; operands narrower than halves are halves there."""
    kinds = {"bf16": Precision.BF16, "fp16": Precision.FP16, "single": Precision.FULL}
    rule = read.optimizer if read.optimizer in list(Optimizer) else Optimizer.ADAMW
    return Training(batch_of(read, gpus), precision=kinds[read.half], optimizer=Optimizer(rule))


def uncut(trainer: TrainerName, model: Model, training: Training, gpus: int, gpus_per_node: int) -> TrainedModel:
    """A model and its training in trainers' words, on so many devices that nothing is cut among.

    Raises:
        InputError: the model is no decoder of text.
    """
    halves = {Precision.BF16: "bf16", Precision.FP16: "fp16", Precision.FULL: "single"}
    half = halves[Precision.BF16 if training.precision.scaling else training.precision]
    return TrainedModel(
        trainer=trainer,
        model=of_model(model),
        sequence=model.tokens_per_sample,
        micro_batch=1,
        global_batch=training.global_batch,
        gpus=gpus,
        gpus_per_node=gpus_per_node,
        precision="single" if half == "single" else "half",
        half=half,
        optimizer=str(training.optimizer),
    )


def configured(read: TrainedModel, config: PlanConfig, zero: int) -> TrainedModel:
    """The same model and training, cut as a configuration of the search says, at this stage of ZeRO at least."""
    modules = read.recompute_modules
    if config.recompute is Recompute.SELECTIVE:
        modules = ("core_attn",)
    return replace(
        read,
        micro_batch=config.micro_batch,
        global_batch=config.dp * config.micro_batch * config.num_micro_batches,
        micro_batches=0,
        gpus=config.dp * config.tp * config.pp * config.cp,
        tp=config.tp,
        pp=config.pp,
        cp=config.cp,
        ep=config.ep,
        etp=1,
        virtual=config.virtual_stages,
        schedule=config.schedule,
        zero=max(config.zero_stage, zero if config.dp > 1 else 0),
        replicas=config.dp // config.shards,
        sequence_parallel=config.tp > 1,
        recompute="none" if config.recompute is Recompute.MEMORY_BOUND else str(config.recompute),
        recompute_modules=modules if config.recompute is Recompute.SELECTIVE else (),
        recompute_layers=0,
        exposed=(),
        offload=(),
    )
