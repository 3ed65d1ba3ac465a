"""Citations: which methods a plan uses, and the BibTeX of each (`experiments/reference/bibliography`)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources

from strategy.base.errors import present
from strategy.layout.config import Context, Recompute
from strategy.layout.schedule import Schedule
from strategy.passes.low_precision import Scaling
from strategy.passes.mixed_precision import Precision
from strategy.passes.updates import Optimizer
from strategy.plan.plan import Plan

SCHEDULE_SOURCES: Mapping[Schedule, tuple[str, ...]] = {
    Schedule.GPIPE: ("huang2019gpipe",),
    Schedule.ONE_F_ONE_B: ("narayanan2021memory",),
    Schedule.ONEFLOW: ("yuan2021oneflow",),
    Schedule.INTERLEAVED: ("narayanan2021efficient",),
    Schedule.ZB_H1: ("qi2023zero",),
    Schedule.ZBV: ("qi2023zero", "qi2024controllable"),
}
OPTIMIZER_SOURCES: Mapping[Optimizer, tuple[str, ...]] = {
    Optimizer.SGD: (),
    Optimizer.ADAM: ("kingma2015adam",),
    Optimizer.ADAMW: ("loshchilov2019decoupled",),
    Optimizer.ADAGRAD: ("duchi2011adaptive",),
    Optimizer.LAMB: ("you2020large",),
    Optimizer.MUON: ("jordan2024muon",),
}
SCALING_SOURCES: Mapping[Scaling, tuple[str, str]] = {
    Scaling.DELAYED: ("micikevicius2022fp8", "codes of 8 bits, delayed scales"),
    Scaling.CURRENT: ("micikevicius2022fp8", "codes of 8 bits, current scales"),
    Scaling.BLOCK: ("deepseek2024v3", "codes of 8 bits, a scale per block of 128"),
    Scaling.MX: ("rouhani2023microscaling", "codes of 8 bits, a power of two per block of 32"),
    Scaling.NV: ("nvidia2025nvfp4", "codes of 4 bits, a scale per block of 16 and per tensor"),
}
RECOMPUTE_SOURCES: Mapping[Recompute, tuple[str, ...]] = {
    Recompute.NONE: (),
    Recompute.MEMORY_BOUND: ("korthikanti2023reducing",),
    Recompute.SELECTIVE: ("korthikanti2023reducing",),
    Recompute.FULL: ("chen2016training",),
}


@dataclass(frozen=True, slots=True)
class Citation:
    """A source: the key of its BibTeX entry, and what of the plan it stands for."""

    key: str
    method: str


def citations(plan: Plan) -> tuple[Citation, ...]:
    """The sources of the methods that a plan uses; one for all the methods that it is the source of."""
    methods: dict[str, list[str]] = {}
    for key, method in _used(plan):
        methods.setdefault(key, []).append(method)
    return tuple(Citation(key, ", ".join(dict.fromkeys(found))) for key, found in methods.items())


def _used(plan: Plan) -> Iterator[tuple[str, str]]:
    config, training = plan.config, plan.training
    yield "yuan2021oneflow", "SBP signatures, boxing, actors"
    if config.pp > 1:
        yield from ((key, f"schedule {config.schedule}") for key in SCHEDULE_SOURCES[config.schedule])
    if config.tp > 1:
        yield "shoeybi2019megatron", "tensor parallelism"
        if _splits_positions(plan):
            yield "korthikanti2023reducing", "sequence parallelism"
    if config.zero_stage:
        yield "rajbhandari2020zero", f"ZeRO stage {config.zero_stage}"
    if config.cp > 1 and config.context is Context.RING:
        yield "liu2023ring", "ring attention"
    if config.cp > 1 and config.context is Context.ALL_TO_ALL:
        yield "jacobs2023ulysses", "exchange of positions for heads"
    if config.ep > 1:
        yield "lepikhin2021gshard", "expert parallelism"
    yield from ((key, f"recompute {config.recompute}") for key in RECOMPUTE_SOURCES[config.recompute])
    if config.offload.of_activations:
        yield "rhu2016vdnn", "offloaded activations"
    if config.offload.of_optimizer:
        yield "ren2021offload", "offloaded optimiser state"
    if training.precision is not Precision.FULL:
        yield "micikevicius2018mixed", f"mixed precision ({training.precision})"
    if training.precision.scaling is not None:
        yield SCALING_SOURCES[training.precision.scaling]
    yield from ((key, f"optimiser {training.optimizer}") for key in OPTIMIZER_SOURCES[training.optimizer])
    if plan.certificate is not None:
        yield "kolmogorov2006convergent", "message passing of the solver behind the certified bound (TRW-S)"


def _splits_positions(plan: Plan) -> bool:
    """Whether the tensor axis, the last of the mesh, splits the positions of some activation: dim 1 of three."""
    from strategy.graph.graph import Phase, Role
    from strategy.sbp.sbp import Split

    values = plan.graph.values
    for op in (op for op in plan.graph.ops if op.phase is Phase.FORWARD):
        layouts = plan.layout.signatures[op.name].outputs
        for name, layout in zip(op.outputs, layouts, strict=True):
            value = values[name]
            if value.role is Role.COMPUTED and len(value.spec.shape) == 3 and layout[-1] == Split(1):
                return True
    return False


def bibliography() -> dict[str, str]:
    """Key -> its BibTeX entry."""
    text = (resources.files("experiments") / "reference" / "bibliography" / "methods.bib").read_text(encoding="utf-8")
    entries = re.split(r"\n(?=@)", text.strip())
    return {present(re.match(r"@\w+\{([^,]+),", entry), entry)[1]: entry.strip() for entry in entries}
