"""Frameworks: what each training system fuses, hides and leaves to the host, as names of fitted constants.

Physics is shared: two systems that run the same kernels name the same constant. Only what is a system's own (the host
that issues its kernels, what of its communication is hidden, its loader) has a constant of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from strategy.closed_form.constants import Constant

REFERENCE = "reference"
"""No constant: Megatron-LM's compute is the measure of the others', and eager systems hide no tensor parallelism."""
UNKNOWN = "unknown"
"""The profile of systems that nothing is known of: those of today fuse, and their kernels and links are physics."""
USUAL_SHARPNESS = "host.sharpness"
"""The constant of systems whose host runs ahead of the device."""


@dataclass(frozen=True, slots=True)
class Profile:
    """One training system.

    `slack`, `host`, `moved`, `tp`, `dp`, `gather`, `step`, `routed` and `sharpness` name constants: compute over the
    kernels' own time, seconds of host per kernel, memory-bound traffic, exposed shares of tensor- and data-parallel
    communication, time of gathering sharded parameters over that of the links, seconds per step, of host per kernel of
    experts, how sharply host and device take turns. `gradient_bytes` per parameter are reduced;
    `even` systems deal out layers, embedding and head so that no stage is longer than the others;
    `scattered` ones send a boundary tensor between stages once, not once per tensor-parallel rank; `casting` ones run
    memory-bound kernels in single precision when products run in half, `fused` ones keep no product of a gate,
    `narrow_weights` ones hold weights as narrow as operands; `deterministic` ones keep the order of sums.
    `optimiser` names the bytes per parameter of optimiser and copies, where they are not Adam's 12. `deepspeed` ones
    lay memory out as DeepSpeed does; `vision` ones are of image and BERT runs; `host_loader` ones decode images on the
    host, and `node_loader` ones with one loader per node; `staged_sync` ones stage gradients beside the links' time.
    `streams` are of programs of acts: what they hide is known, not fitted, and no replica is slower than another.
    `all_or_none` ones compute every layer again or none: one switch for the whole model.
    """

    name: str
    slack: str = REFERENCE
    host: str = "host.graph"
    moved: str = "moved.eager"
    tp: str = REFERENCE
    dp: str = "dp.exposed.ring"
    gather: str = "gather.sharded"
    step: str = "step.graph"
    routed: str = "host.routed"
    sharpness: str = USUAL_SHARPNESS
    gradient_bytes: float = 2.0
    even: bool = False
    scattered: bool = False
    casting: bool = False
    fused: bool = False
    narrow_weights: bool = False
    deterministic: bool = False
    optimiser: str = ""
    deepspeed: bool = False
    vision: bool = False
    host_loader: bool = False
    node_loader: bool = False
    staged_sync: bool = False
    streams: bool = False
    all_or_none: bool = False


# Megatron-DeepSpeed without a ZeRO stage runs Megatron's loop; with one, DeepSpeed's engine.
_FORK = Profile(
    "megatron-fork", host="host.deepspeed", dp="dp.exposed.deepspeed", gather="gather.zero", step="step.deepspeed"
)
_ENGINE = replace(_FORK, slack="slack.deepspeed", optimiser="memory.optimiser.deepspeed", deepspeed=True)
_BRIDGE = Profile(
    "megatron-bridge", slack="slack.bridge", moved="moved.compiled", tp="tp.exposed.core", dp="dp.exposed.core",
    gradient_bytes=4.0, even=True, scattered=True, fused=True,
)  # fmt: skip
# NeMo's runs are as tuned for benchmarks. The functional tests of Megatron-Core run deterministic kernels, log norms
# and times, and wait for both.
_CORE = replace(_BRIDGE, name="megatron-core", slack="slack.core", host="host.core")
_TESTED = replace(
    _CORE,
    name="megatron-core-tested",
    host="host.tested",
    step="step.tested",
    routed="host.routed.tested",
    sharpness="host.sharpness.tested",
    deterministic=True,
)
_NEMO = replace(_BRIDGE, name="nemo", slack="slack.nemo", host="host.captured", gradient_bytes=2.0, narrow_weights=True)
# `activation_checkpointing` of NeMo AutoModel is true or false, and wraps each layer (docs/guides of its repository);
# MaxText, InternEvo and Megatron-Core take a share, a policy or a number of layers.
_SHARDED = Profile(
    "nemo-automodel",
    slack="slack.automodel",
    moved="moved.compiled",
    routed="host.graph",
    step="step.eager",
    fused=True,
    all_or_none=True,
)
# Systems of published image and BERT runs; those with one slack share their kernels.
_MXNET = Profile("mxnet-ngc", slack="slack.mxnet", gradient_bytes=4.0, vision=True)
_TENSORFLOW = replace(_MXNET, name="tensorflow2", slack="slack.tensorflow")
_PYTORCH = replace(_MXNET, name="pytorch", slack="slack.pytorch")
_PADDLE = replace(_MXNET, name="paddle-dali", slack="slack.paddle", staged_sync=True)
PROFILES = {
    profile.name: profile
    for profile in (
        Profile("megatron", dp="dp.exposed.eager", step="step.eager", gradient_bytes=4.0),
        _FORK,
        replace(_ENGINE, name="megatron-deepspeed"),
        replace(_ENGINE, name="deepspeed-zero"),
        Profile("oneflow", slack="slack.oneflow", moved="moved.oneflow"),
        Profile(
            "torchtitan", slack="slack.torchtitan", moved="moved.compiled", tp="tp.exposed.titan", gradient_bytes=4.0
        ),
        Profile("llm-foundry", slack="slack.foundry", moved="moved.foundry", step="step.eager"),
        _CORE,
        _TESTED,
        _BRIDGE,
        _NEMO,
        replace(_NEMO, name="nemo-rocm"),
        replace(_NEMO, name="primus", optimiser="memory.optimiser.primus"),
        _SHARDED,
        replace(
            _SHARDED,
            name="maxtext",
            slack=REFERENCE,
            host="host.captured",
            routed="host.captured",
            step="step.graph",
            all_or_none=False,
        ),
        Profile(
            "internevo",
            slack="slack.internevo",
            moved="moved.compiled",
            dp="dp.exposed.internevo",
            step="step.eager",
            optimiser="memory.optimiser.internevo",
            fused=True,
        ),
        Profile(UNKNOWN, moved="moved.compiled", step="step.eager", gradient_bytes=4.0),
        # Programs of acts, where nothing else is said of what runs them: every kernel moves what it reads and writes.
        Profile("acts", moved=REFERENCE, dp=REFERENCE, gradient_bytes=4.0, streams=True),
        _MXNET,
        replace(_MXNET, name="mxnet", host_loader=True, node_loader=True),
        _TENSORFLOW,
        replace(_TENSORFLOW, name="tensorflow", moved="moved.tensorflow", casting=True),
        replace(_TENSORFLOW, name="tensorflow-xla", slack="slack.tensorflow-xla"),
        _PYTORCH,
        replace(_PYTORCH, name="pytorch-ngc", host_loader=True),
        _PADDLE,
        replace(_PADDLE, name="paddle", moved="moved.paddle", casting=True),
    )
}
PROFILES["oneflow-noclip"] = PROFILES["oneflow"]


CONSTANTS = (
    Constant("slack.deepspeed", 1.0, 0.1, "compute under DeepSpeed's engine over its kernels"),
    Constant("slack.oneflow", 0.95, 0.1, "compute of OneFlow over its kernels"),
    Constant("slack.torchtitan", 1.0, 0.1, "compute of torchtitan over its kernels"),
    Constant("slack.foundry", 1.0, 0.1, "compute of llm-foundry over its kernels"),
    Constant("slack.bridge", 1.0, 0.1, "compute of Megatron-Bridge over its kernels"),
    Constant("slack.core", 1.0, 0.1, "compute of Megatron-Core over its kernels"),
    Constant("slack.nemo", 1.0, 0.1, "compute of NeMo over its kernels"),
    Constant("slack.automodel", 1.1, 0.2, "compute of NeMo AutoModel over its kernels"),
    Constant("slack.internevo", 1.0, 0.1, "compute of InternEvo over its kernels"),
    *(
        Constant(f"slack.{name}", 1.0, 0.2, f"compute of {name} over its kernels")
        for name in ("mxnet", "tensorflow", "tensorflow-xla", "pytorch", "paddle")
    ),
    Constant("host.graph", 1e-5, 0.8, "host seconds per kernel of all systems without one of their own"),
    Constant(
        "host.captured",
        2e-6,
        0.8,
        "the same of NeMo as tuned for benchmarks, whose kernels are captured in CUDA graphs",
    ),
    Constant("host.core", 3e-5, 0.6, "host seconds per kernel of Megatron-Core, beside an A100"),
    Constant("host.tested", 8e-5, 0.5, "the same of Megatron-Core's functional tests", "golden", 3e-5),
    Constant("host.deepspeed", 2e-5, 0.5, "host seconds per kernel of Megatron-DeepSpeed"),
    Constant("moved.eager", 3.0, 0.4, "traffic of memory-bound kernels over one read and write, eager"),
    Constant("moved.tensorflow", 3.0, 0.6, "the same of TensorFlow 1 without XLA"),
    Constant("moved.paddle", 3.0, 0.6, "the same of PaddlePaddle"),
    Constant("moved.oneflow", 1.8, 0.2, "the same of OneFlow"),
    Constant("moved.compiled", 1.5, 0.4, "the same of compiled and fused systems"),
    Constant("moved.foundry", 3.0, 0.4, "the same of llm-foundry"),
    Constant("tp.exposed.titan", 0.6, 0.4, "share of tensor-parallel communication that is not hidden, torchtitan"),
    Constant("tp.exposed.core", 0.5, 0.4, "the same of Megatron-Core"),
    Constant("dp.exposed.eager", 0.8, 0.4, "share of gradient communication that is not hidden, Megatron-LM"),
    Constant("dp.exposed.deepspeed", 1.0, 0.3, "the same of Megatron-DeepSpeed"),
    Constant(
        "gather.zero", 10.0, 0.3, "time of DeepSpeed ZeRO's gathering of parameters over the links' own", "sc21_t2", 1.2
    ),
    Constant("gather.sharded", 1.2, 0.4, "the same of FSDP"),
    Constant("dp.exposed.core", 0.3, 0.5, "the same of Megatron-Core"),
    Constant("dp.exposed.internevo", 0.5, 0.5, "the same of InternEvo"),
    Constant("dp.exposed.ring", 0.6, 0.4, "the same of DDP, Horovod and OneFlow"),
    Constant("step.graph", 1e-2, 1.0, "seconds per step outside of micro-batches, graph systems"),
    Constant("step.tested", 1e-2, 1.0, "the same of Megatron-Core's functional tests"),
    Constant("step.eager", 1e-2, 1.0, "the same of Megatron-LM and llm-foundry"),
    Constant("step.deepspeed", 1e-2, 1.0, "the same of Megatron-DeepSpeed"),
)
