"""Frameworks: what each training system fuses, hides and leaves to the host, as names of fitted constants.

Physics is shared: two systems that run the same kernels name the same constant. Only what is a system's own (the host
that issues its kernels, what of its communication is hidden, its loader) has a constant of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from strategy.errors import InputError, did_you_mean
from strategy.estimate.constants import Constant


@dataclass(frozen=True, slots=True)
class Profile:
    """One training system.

    `slack`, `host`, `moved`, `tp`, `dp` and `step` name constants: compute over the kernels' own time, seconds of host
    per kernel, memory-bound traffic, exposed shares of tensor- and data-parallel communication, seconds per step.
    `gradient_bytes` per parameter are reduced; `sharded` systems gather parameters for every micro-batch where
    ZeRO stage 3 is on; `even` ones deal out layers, embedding and head so that no stage is longer than the others;
    `scattered` ones send a boundary tensor between stages once, not once per tensor-parallel rank.
    """

    name: str
    slack: str
    host: str
    moved: str
    tp: str
    dp: str
    step: str
    gradient_bytes: float = 2.0
    even: bool = False
    scattered: bool = False


def _vision(name: str) -> Profile:
    moved = {"tensorflow": "moved.tensorflow", "paddle": "moved.paddle"}.get(name, "moved.eager")
    kernels = name if name.endswith("xla") else name.removesuffix("2").partition("-")[0]
    return Profile(
        name, f"slack.{kernels}", "host.graph", moved, "tp.exposed.eager", "dp.exposed.ring", "step.graph", 4.0
    )


REFERENCE = "reference"
"""No constant: Megatron-LM's compute is what the others' is measured against."""
VISION = ("mxnet-ngc", "mxnet", "tensorflow", "tensorflow-xla", "tensorflow2", "pytorch-ngc", "pytorch", "paddle",
           "paddle-dali")  # fmt: skip
PROFILES = {
    profile.name: profile
    for profile in (
        Profile("megatron", REFERENCE, "host.eager", "moved.eager", "tp.exposed.eager", "dp.exposed.eager",
                "step.eager", 4.0, scattered=True),
        Profile("megatron-deepspeed", "slack.deepspeed", "host.deepspeed", "moved.eager", "tp.exposed.eager",
                "dp.exposed.deepspeed", "step.deepspeed", 2.0),
        Profile("deepspeed-zero", "slack.deepspeed", "host.deepspeed", "moved.eager", "tp.exposed.eager",
                "dp.exposed.zero", "step.deepspeed", 2.0),
        Profile("oneflow", "slack.oneflow", "host.graph", "moved.oneflow", "tp.exposed.eager", "dp.exposed.ring",
                "step.graph", 2.0),
        Profile("torchtitan", "slack.torchtitan", "host.graph", "moved.compiled", "tp.exposed.titan",
                "dp.exposed.sharded", "step.graph", 2.0),
        Profile("llm-foundry", "slack.foundry", "host.eager", "moved.foundry", "tp.exposed.eager",
                "dp.exposed.sharded", "step.eager", 2.0),
        Profile("megatron-core", "slack.bridge", "host.graph", "moved.compiled", "tp.exposed.core", "dp.exposed.core",
                "step.graph", 4.0, even=True, scattered=True),
        Profile("megatron-bridge", "slack.bridge", "host.graph", "moved.compiled", "tp.exposed.core", "dp.exposed.core",
                "step.graph", 4.0, even=True, scattered=True),
        *(_vision(name) for name in VISION),
    )
}  # fmt: skip
PROFILES["oneflow-noclip"] = PROFILES["oneflow"]


def profile(name: str) -> Profile:
    """The profile of a framework.

    Raises:
        InputError: no such framework.
    """
    if name not in PROFILES:
        raise InputError("no profile of this framework", got=name, hint=did_you_mean(name, PROFILES))
    return PROFILES[name]


CONSTANTS = (
    Constant("slack.deepspeed", 1.0, 0.1, "compute of Megatron-DeepSpeed over its kernels"),
    Constant("slack.oneflow", 0.95, 0.1, "compute of OneFlow over its kernels"),
    Constant("slack.torchtitan", 1.0, 0.1, "compute of torchtitan over its kernels"),
    Constant("slack.foundry", 1.0, 0.1, "compute of llm-foundry over its kernels"),
    Constant("slack.bridge", 1.0, 0.1, "compute of Megatron-Core and Megatron-Bridge over its kernels"),
    *(
        Constant(f"slack.{name}", 1.0, 0.2, f"compute of {name} over its kernels")
        for name in ("mxnet", "tensorflow", "tensorflow-xla", "pytorch", "paddle")
    ),
    Constant("host.graph", 1e-5, 0.8, "host seconds per kernel of systems that compile a graph"),
    Constant("host.eager", 1e-5, 0.5, "host seconds per kernel of Megatron-LM and llm-foundry"),
    Constant("host.deepspeed", 2e-5, 0.5, "host seconds per kernel of Megatron-DeepSpeed"),
    Constant("moved.eager", 3.0, 0.4, "traffic of memory-bound kernels over one read and write, eager"),
    Constant("moved.tensorflow", 3.0, 0.6, "the same of TensorFlow 1 without XLA"),
    Constant("moved.paddle", 3.0, 0.6, "the same of PaddlePaddle"),
    Constant("moved.oneflow", 2.5, 0.4, "the same of OneFlow"),
    Constant("moved.compiled", 1.5, 0.4, "the same of compiled and fused systems"),
    Constant("moved.foundry", 3.0, 0.4, "the same of llm-foundry"),
    Constant("tp.exposed.eager", 1.0, 0.05, "share of tensor-parallel communication that is not hidden, eager"),
    Constant("tp.exposed.titan", 0.6, 0.4, "the same of torchtitan"),
    Constant("tp.exposed.core", 0.5, 0.4, "the same of Megatron-Core"),
    Constant("dp.exposed.eager", 1.0, 0.2, "share of gradient communication that is not hidden, Megatron-LM"),
    Constant("dp.exposed.deepspeed", 1.0, 0.3, "the same of Megatron-DeepSpeed"),
    Constant("dp.exposed.zero", 3.0, 1.0, "time of ZeRO's gathering of parameters over the links' own"),
    Constant("dp.exposed.sharded", 1.2, 0.4, "the same of fully sharded systems"),
    Constant("dp.exposed.core", 0.3, 0.5, "the same of Megatron-Core"),
    Constant("dp.exposed.ring", 0.6, 0.4, "the same of DDP, Horovod and OneFlow"),
    Constant("step.graph", 2e-3, 1.0, "seconds per step outside of micro-batches, graph systems"),
    Constant("step.eager", 1e-2, 1.0, "the same of Megatron-LM and llm-foundry"),
    Constant("step.deepspeed", 1e-2, 1.0, "the same of Megatron-DeepSpeed"),
)
