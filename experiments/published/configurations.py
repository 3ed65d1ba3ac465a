"""Configurations that others trained with: degrees, micro-batch, schedule and what is saved, and where that is written.

Nothing here was measured. `measured_row` names the row of `reference/published/training_measurements.csv` that was run
so, where there is one. What a source leaves open is pinned to what its text makes likely, and a comment says so.

    Megatron, 1.7 B to 1 T   Narayanan et al. 2021 (arXiv:2104.04473), table 1, and the script that ran it (`megatron`)
    MT-NLG, 530 B            Smith et al. 2022 (arXiv:2201.11990), section 3
    BLOOM, 176 B             Le Scao et al. 2022 (arXiv:2211.05100), section 3 and table 3
    Llama 3, 405 B           Dubey et al. 2024 (arXiv:2407.21783), section 3.3.2 and table 4
    Llama 3, 8 B             pytorch/torchtitan, train_configs/llama3_8b.toml; table 1 of its benchmarks of 2024-12
    Mixtral, 8 x 7 B         NVIDIA/Megatron-LM, examples/mixtral/train_mixtral_8x7b_distributed.sh, commit 9b8acfd0dbf7
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from experiments.published import megatron
from strategy.base.errors import InputError, did_you_mean
from strategy.closed_form.job import Job
from strategy.layout.config import Recompute
from strategy.layout.schedule import Schedule
from strategy.models import Model, find_model
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.space.request import Pins


@dataclass(frozen=True, slots=True)
class Configuration:
    """One way in which a model was trained.

    Attributes:
        name: of this configuration.
        source: paper and table, or repository and file.
        model: what was trained, at its length of sequence.
        cluster: a preset with its number of nodes, as `sbplan search` takes it.
        training: batch and precision; the number of micro-batches follows from the pins.
        pins: what the source says of degrees, micro-batch, schedule, recomputing and ZeRO.
        framework: by whose constants the closed form prices it.
        measured_row: `row_id` of the run that was measured, if the project has it.
    """

    name: str
    source: str
    model: Model
    cluster: str
    training: Training
    pins: Pins
    framework: str
    measured_row: str = ""


def _of_megatron(name: str, job: Job, measured_row: str) -> Configuration:
    """A job of Megatron's table."""
    shape = job.shape
    return Configuration(
        f"megatron-{name.replace(' ', '').lower()}",
        "Narayanan et al. 2021, table 1",
        GptConfig(shape.layers, shape.hidden, shape.heads, job.seq, shape.vocab),
        f"dgx-a100:{job.gpus // job.gpus_per_node}",
        Training(job.global_batch, precision=Precision.FP16),
        Pins(
            dp=job.dp,
            tp=job.tp,
            cp=job.cp,
            pp=job.pp,
            micro_batch=job.micro_batch,
            schedule=Schedule.INTERLEAVED if job.virtual > 1 else Schedule.ONE_F_ONE_B,
            virtual_stages=job.virtual,
            recompute=Recompute(job.recompute),
            zero_stage=job.zero,
        ),
        job.framework,
        measured_row,
    )


_MEASURED = {name: f"mlm_apr2021_{name.replace(' ', '')}" for name in ("1.7 B", "7.5 B", "39 B", "145 B", "530 B")}
BLOOM = GptConfig(layers=70, width=14336, heads=112, sequence=2048, vocabulary=250880)
"""BLOOM has linear biases in attention (ALiBi) and one more norm, here learned positions: 0.02 % more parameters."""
_LLAMA_3 = "Dubey et al. 2024, table 4"
# The paper interleaves and does not say how often. Four times deals 126 layers out as it says: the first and the last
# stage have one less than the others. Parameters stay gathered between the forward and the backward pass. What its
# trainer shards along the tensor axis and gathers again in the backward pass is a norm's output: memory-bound.
_LLAMA_3_PINS = Pins(
    tp=8,
    pp=16,
    micro_batch=1,
    schedule=Schedule.INTERLEAVED,
    virtual_stages=4,
    recompute=Recompute.MEMORY_BOUND,
    zero_stage=2,
)
# What torchtitan calls selective keeps every second product; here it is attention that is computed again.
# Torchtitan's selective checkpointing keeps attention and every second product; nearest to it is to keep all products.
_TITAN_PINS = Pins(tp=1, cp=1, pp=1, schedule=Schedule.ONE_F_ONE_B, recompute=Recompute.MEMORY_BOUND, zero_stage=3)
_BF16 = Precision.BF16

CONFIGURATIONS: tuple[Configuration, ...] = (
    *(_of_megatron(name, job, _MEASURED.get(name, "")) for name, job in megatron.TABLE.items()),
    Configuration(
        "mt-nlg-530b",
        "Smith et al. 2022, section 3",
        find_model("mt-nlg-530b"),
        "dgx-a100:280",
        Training(1920, precision=_BF16),
        # The micro-batch is that of the measured row; a run of 35 stages has no memory for more.
        Pins(dp=8, tp=8, cp=1, pp=35, micro_batch=1, schedule=Schedule.ONE_F_ONE_B, recompute=Recompute.FULL,
             zero_stage=1),
        "megatron-deepspeed",
        "mtnlg_2240g",
    ),
    Configuration(
        "bloom-176b",
        "Le Scao et al. 2022, table 3",
        BLOOM,
        "a100-opa:48",
        Training(2048, precision=_BF16),
        Pins(dp=8, tp=4, cp=1, pp=12, micro_batch=2, schedule=Schedule.ONE_F_ONE_B, recompute=Recompute.FULL,
             zero_stage=1),
        "megatron-deepspeed",
    ),
    Configuration(
        "llama3-405b-8k",
        _LLAMA_3,
        find_model("llama3-405b"),
        "dgx-h100:2048",
        Training(2048, precision=_BF16),
        replace(_LLAMA_3_PINS, dp=128, cp=1),
        "megatron-core",
    ),
    Configuration(
        "llama3-405b-128k",
        _LLAMA_3,
        find_model("llama3-405b", sequence=131072),
        "dgx-h100:2048",
        Training(128, precision=_BF16),
        replace(_LLAMA_3_PINS, dp=8, cp=16),
        "megatron-core",
    ),
    Configuration(
        "llama3-8b-fsdp-8",
        "torchtitan, benchmarks of 2024-12, table 1",
        find_model("llama3-8b"),
        "grand-teton:1",
        Training(16, precision=_BF16),
        replace(_TITAN_PINS, dp=8, micro_batch=2),
        "torchtitan",
        "titan_table1_fsdp_compile",
    ),
    Configuration(
        "llama3-8b-fsdp-64",
        "torchtitan, train_configs/llama3_8b.toml",
        find_model("llama3-8b"),
        "dgx-h100:8",
        Training(64, precision=_BF16),
        replace(_TITAN_PINS, dp=64, micro_batch=1),
        "torchtitan",
    ),
    Configuration(
        "mixtral-8x7b",
        "Megatron-LM, examples/mixtral",
        find_model("mixtral-8x7b", sequence=4096),
        # The fewest nodes that four stages and eight ranks for the experts make.
        "dgx-h100:4",
        Training(256, precision=_BF16),
        # Its fused kernels keep what reads a product, not what that gives: as recomputing what memory bounds does.
        Pins(dp=8, ep=8, tp=1, cp=1, pp=4, micro_batch=1, schedule=Schedule.ONE_F_ONE_B,
             recompute=Recompute.MEMORY_BOUND, zero_stage=1),
        "megatron-core",
    ),
)  # fmt: skip


def chosen(patterns: Sequence[str], known: Sequence[Configuration] = CONFIGURATIONS) -> list[Configuration]:
    """The configurations whose names match any of the patterns, in their order; all of them without patterns.

    Raises:
        InputError: a pattern matches none.
    """
    names = [one.name for one in known]
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern.lower()) for name in names):
            hint = did_you_mean(pattern.lower(), names)
            raise InputError("no published configuration has this name", where="--only", got=pattern, hint=hint)
    wanted = [pattern.lower() for pattern in patterns] or ["*"]
    return [one for one in known if any(fnmatchcase(one.name, pattern) for pattern in wanted)]
