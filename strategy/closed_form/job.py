"""A training job: a model's shape, how it is cut over GPUs, and on what it runs.

Everything here is given, nothing is fitted. `Jobs` holds many jobs as one array per field, for the formulas.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from strategy.base.errors import InputError, did_you_mean
from strategy.closed_form.frameworks import PROFILES
from strategy.hardware.devices import FABRICS, DeviceSheet

Floats = npt.NDArray[np.float64]
BITS = {"single": 32, "half": 16, "eight": 8, "mx8": 8, "row8": 8, "four": 4}
"""Width of operands by precision; mx8 scales blocks, row8 rows, eight and four whole tensors."""

MODULES = ("core_attn", "layernorm", "mla_up_proj", "mlp", "moe", "moe_act", "shared_experts", "per-op")
"""Modules of selective recompute, in Megatron-Core's words; `per-op` is torchtitan's: every second product."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's dimensions; what it lacks is 0. `layers` counts the blocks that a pipeline deals out.

    A block is attention (`attention_layers`), a state-space mixer (`mamba_layers`), or a feed-forward (`dense_layers`,
    `moe_layers`); a plain transformer has as many attention as dense layers. Of these, `decoder_layers` also
    attend to what an encoder made, over `decoder_share` of its positions; `mtp_layers` more predict tokens further
    ahead, each with logits of its own. `q_rank` and `kv_rank` are those of latent
    attention; `capped` experts drop the tokens above a capacity;
    `attended` is the share of positions before it that a query of a windowed model looks at. `conv_flop`,
    `conv_elements` and `conv_kernels` are an image model's forward pass per image; `parameters` is given for it alone.
    """

    layers: int
    hidden: int = 0
    heads: int = 0
    kv_heads: int = 0
    head_qk: int = 0
    head_v: int = 0
    ffn: int = 0
    vocab: int = 0
    gated: bool = False
    tied: bool = True
    attention_layers: int = 0
    dense_layers: int = 0
    q_rank: int = 0
    kv_rank: int = 0
    attended: float = 1.0
    moe_layers: int = 0
    experts: int = 0
    top_k: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    latent: int = 0
    capped: bool = False
    mamba_layers: int = 0
    mamba_inner: int = 0
    mamba_state: int = 0
    conv_flop: float = 0.0
    conv_elements: float = 0.0
    conv_kernels: int = 0
    parameters: float = 0.0
    decoder_layers: int = 0
    decoder_share: float = 1.0
    mtp_layers: int = 0
    logit_share: float = 1.0
    """Share of the positions whose logits are computed: masked-language models compute few."""

    @classmethod
    def transformer(
        cls,
        layers: int,
        hidden: int,
        heads: int,
        ffn: int,
        vocab: int,
        *,
        kv_heads: int = 0,
        head: int = 0,
        gated: bool = False,
        tied: bool = True,
        logit_share: float = 1.0,
    ) -> Shape:
        """A plain transformer: every layer is attention and a dense feed-forward."""
        head = head or hidden // max(heads, 1)
        return cls(
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads or heads,
            head_qk=head,
            head_v=head,
            ffn=ffn,
            vocab=vocab,
            gated=gated,
            tied=tied,
            attention_layers=layers,
            dense_layers=layers,
            logit_share=logit_share,
        )


@dataclass(frozen=True, slots=True)
class Job:
    """One job. Sizes are counts; `width` is the bits of the products' operands; `nic_bytes_per_s` per GPU.

    `recompute` is none, selective or full, of `recompute_layers` layers (0: of all). `etp` cuts each expert; `shard` is
    the number of ranks that ZeRO spreads over (0: all replicas), `in_flight` the activations that a schedule of V shape
    holds over those of a 1F1B's first stage (0: it is a 1F1B). The weights of a `frozen` model stand still, and
    adapters of `adapter_rank` are trained beside them. `framework`, `precision` and `fabric` name rows of the fitted
    constants.
    """

    shape: Shape
    device: DeviceSheet
    framework: str
    precision: str
    gpus: int
    gpus_per_node: int
    nic_bytes_per_s: float
    fabric: str
    seq: int
    global_batch: int
    micro_batch: int
    tp: int = 1
    pp: int = 1
    cp: int = 1
    ep: int = 1
    etp: int = 1
    virtual: int = 1
    zero: int = 0
    shard: int = 0
    in_flight: float = 0.0
    recompute: str = "none"
    recompute_layers: int = 0
    modules: tuple[str, ...] = ("core_attn",)
    """What selective recompute computes again: `MODULES`."""
    frozen: bool = False
    adapter_rank: int = 0
    sequence_parallel: bool = False
    flash: bool = False
    plain_modules: bool = False
    """Layers are PyTorch's own modules, not those of Transformer Engine."""
    wide_gradients: bool = False
    """Gradients are accumulated in single precision though the framework by itself keeps them in half."""
    narrow_gradients: bool = False
    """Gradients are accumulated in half precision though the framework by itself keeps them in single."""
    last_stage: bool = False
    """Memory is asked of the last pipeline stage, not of the fullest."""
    moments: int = 2
    """Averages that the optimiser keeps of each gradient: 2 of Adam, 1 of momentum or Muon."""
    release: float = 0.0
    """Age of the software in years before 2026-08, for frameworks whose releases differ."""
    guessed: tuple[str, ...] = ()
    """What of the job had to be guessed: names of `FittedConstants.guesses`, which say what that costs."""

    def __post_init__(self) -> None:
        problems = []
        for name in (
            "gpus",
            "gpus_per_node",
            "seq",
            "global_batch",
            "micro_batch",
            "tp",
            "pp",
            "cp",
            "ep",
            "etp",
            "virtual",
        ):
            value = getattr(self, name)
            if not (isinstance(value, int) and value >= 1):
                problems.append(f"{name} must be a whole number of at least 1 (got {value!r})")
        if not problems and self.gpus % (self.tp * self.pp * self.cp):
            problems.append(f"tp {self.tp} x pp {self.pp} x cp {self.cp} does not divide {self.gpus} GPUs")
        if not self.nic_bytes_per_s > 0:
            problems.append(f"nic_bytes_per_s must be above zero (got {self.nic_bytes_per_s!r})")
        if self.recompute not in ("none", "selective", "full"):
            problems.append(f"recompute must be none, selective or full (got {self.recompute!r})")
        if strange := [name for name in self.modules if name not in MODULES]:
            problems.append(f"modules that are computed again must be of {', '.join(MODULES)} (got {strange[0]!r})")
        for name, known in (("framework", PROFILES), ("precision", BITS), ("fabric", FABRICS)):
            if getattr(self, name) not in known:
                problems.append(
                    f"{name} {getattr(self, name)!r} is not known; {did_you_mean(getattr(self, name), known)}"
                )
        if problems:
            raise InputError("; ".join(problems), where="job")

    @property
    def dp(self) -> int:
        """Replicas of the model."""
        return self.gpus // (self.tp * self.pp * self.cp)

    @property
    def bits(self) -> int:
        """Width of the products' operands."""
        return BITS[self.precision]


@dataclass(frozen=True, slots=True)
class Jobs:
    """Many jobs: `field(name)` is one array over them. Names are those of `Job`, `Shape` and `DeviceSheet`."""

    jobs: tuple[Job, ...]
    arrays: Mapping[str, Floats]

    @classmethod
    def of(cls, jobs: Sequence[Job]) -> Jobs:
        """Columns of the numeric fields of at least one job."""
        arrays: dict[str, Floats] = {}
        for values in (jobs, [job.shape for job in jobs], [job.device for job in jobs]):
            for field in fields(values[0]):
                column = [getattr(value, field.name) for value in values]
                if isinstance(column[0], int | float):
                    arrays.setdefault(field.name, np.array(column, dtype=float))
        arrays["dp"] = np.array([job.dp for job in jobs], dtype=float)
        arrays["spread"] = np.array([min(job.shard or job.dp * job.cp, job.dp * job.cp) for job in jobs], dtype=float)
        arrays["bits"] = np.array([job.bits for job in jobs], dtype=float)
        arrays["peak"] = np.array([job.device.peak(job.bits) for job in jobs])
        arrays["peak_half"] = np.array([job.device.peak(32 if job.bits == 32 else 16) for job in jobs])
        return cls(tuple(jobs), MappingProxyType(arrays))

    def __getattr__(self, name: str) -> Floats:
        try:
            return self.arrays[name]
        except KeyError:
            raise AttributeError(name) from None

    def __len__(self) -> int:
        return len(self.jobs)

    def where(self, **wanted: object) -> npt.NDArray[np.bool_]:
        """Which jobs have these values of their fields."""
        return np.array([all(getattr(job, key) == value for key, value in wanted.items()) for job in self.jobs])


def gradient_bytes(jobs: Jobs) -> Floats:
    """Bytes of a parameter's gradient as it is accumulated and reduced."""
    own = np.array([PROFILES[job.framework].gradient_bytes for job in jobs.jobs])
    own = np.where(jobs.narrow_gradients > 0, 2.0, own)
    return np.where((jobs.wide_gradients > 0) | (jobs.bits == 32), 4.0, own)
