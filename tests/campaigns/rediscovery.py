"""Rediscovery: what people found to be good, found again without being told.

Every search is the command's own, without plans by rule beside it (`--no-incumbents`), with nothing pinned but what a
case says, on presets at the size that people train them.

    data parallel    small models on fast links: every device has samples of its own, whole layers, no pipeline
    megatron         175B: the tensor axis inside of the node, columns first and then rows (arXiv:1909.08053)
    order turns      where nodes are connected better with each other than within, the tensor axis goes across them
    classes          a million classes: the head is split by class (arXiv:2010.05222)
    vocabulary       tables of features: split by rows, not repeated
    memory shrinks   on less and less memory first ZeRO, then computing again, then the host: each costs more time
    experts          a mixture of experts: these are shared out
    context          128k positions: so are they

`--cases` is how many of them are tried, in this order.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from experiments.command.exit_codes import EXIT_LIMIT
from strategy.base.errors import InfeasibleError
from strategy.graph.graph import Phase, Role
from strategy.graph.ops import op_definition
from strategy.graph.ops.traits import Product
from strategy.layout.config import Offload, PlanConfig, Recompute
from strategy.layout.layout import home_of
from strategy.plan.plan import Plan, read_plan
from strategy.sbp.sbp import NdSbp, Split
from tests.campaigns.outcome import Outcome, survived

LONGEST_S = 600
TURNED = """
name = "turned"
nodes = 2
devices_per_node = 8
[device]
name = "A100"
backend = "cupy"
memory = "80 GiB"
memory_bandwidth = "2039 GB/s"
launch = "5 us"
compute = "156 TFLOP/s"
bf16_speedup = 2.0
[intra]
bandwidth = "25 GB/s"
latency = "5 us"
[inter]
bandwidth = "300 GB/s"
latency = "3 us"
"""
SHRINKING_GIB = (160, 80, 40, 30, 24, 20, 16, 12)
SMALL_NODE = """
name = "one-node"
nodes = 1
devices_per_node = 8
[device]
name = "A100"
backend = "cupy"
memory = "{gib} GiB"
memory_bandwidth = "2039 GB/s"
launch = "5 us"
compute = "156 TFLOP/s"
bf16_speedup = 2.0
[intra]
bandwidth = "300 GB/s"
latency = "3 us"
[host]
memory = "256 GiB"
memory_bandwidth = "51 GB/s"
compute = "1.1 TFLOP/s"
bandwidth = "31.5 GB/s"
latency = "10 us"
"""
DATA_PARALLEL_ALONE = "[config]\ntp = 1\ncp = 1\npp = 1\n"
"""Pinned while memory shrinks: else a wider tensor axis, or a pipeline, is cheaper than all that saves memory."""


def run(cases: int, seed: int) -> Outcome:
    """Try the first so many; nothing is random."""
    del seed
    outcome = Outcome({})
    for name, check in list(CASES.items())[:cases]:
        with tempfile.TemporaryDirectory() as folder:
            outcome.add(name, survived(check(Path(folder))), [name])
    return outcome


def found(folder: Path, *arguments: str) -> Plan | None:
    """The plan of the command; None where none fits."""
    out = folder / "plan.json"
    out.unlink(missing_ok=True)
    command = [sys.executable, "-m", "experiments", "search", *arguments, "--no-incumbents", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False)
    if done.returncode == InfeasibleError.exit_code:
        return None
    if done.returncode not in (0, EXIT_LIMIT) or not out.exists():
        raise RuntimeError(f"{' '.join(arguments)} ended with {done.returncode}: {done.stderr[-300:]}")
    return read_plan(out)


def plan_of(folder: Path, *arguments: str) -> Plan:
    """The same where there is one."""
    plan = found(folder, *arguments)
    if plan is None:
        raise RuntimeError(f"{' '.join(arguments)}: no plan fits")
    return plan


def degrees(config: PlanConfig) -> str:
    """The degrees in a line."""
    return f"dp {config.dp} ep {config.ep} cp {config.cp} tp {config.tp} pp {config.pp}"


def data_parallel(folder: Path) -> Iterator[str]:
    """On one node; every rank has all of every layer."""
    for model, batch in (("gpt2-small", "256"), ("bert-base", "256"), ("vit-b16", "1024"), ("resnet50", "1024")):
        config = plan_of(folder, model, "--cluster", "dgx-h100:1", "--global-batch", batch).config
        if (config.tp, config.cp, config.pp) != (1, 1, 1):
            yield f"{model}: {degrees(config)}, expected dp 8 alone"


def megatron(folder: Path) -> Iterator[str]:
    """Weights of all layers, along the tensor axis."""
    plan = plan_of(folder, "gpt3-175b", "--cluster", "dgx-a100:128", "--global-batch", "1536")
    if not 1 < plan.config.tp <= 8:
        yield f"{degrees(plan.config)}, expected a tensor axis inside of a node"
    wanted: Mapping[tuple[object, ...], int] = {
        ("qkv", "weight"): 1,
        ("proj", "weight"): 0,
        ("fc1", "weight"): 1,
        ("fc2", "weight"): 0,
    }
    graph, seen = plan.graph, 0
    for op in graph.ops:
        if op.phase is not Phase.FORWARD or not isinstance(op_definition(op.kind).cost, Product):
            continue
        for name, nd in zip(op.inputs, plan.layout.signatures[op.name].inputs, strict=True):
            value = graph.values.get(graph.parameter_of(name))
            dim = None if value is None else wanted.get(value.path[-2:])
            seen += dim is not None
            if dim is not None and nd[-1] != Split(dim):
                yield f"{op.name} reads {name} as {nd[-1]} along the tensor axis, expected S({dim})"
                return
    if not seen:
        yield "no product of a weight was found"


def parameter_layouts(plan: Plan) -> Mapping[str, NdSbp]:
    """Parameter -> how it lives between steps."""
    return {name: nd for name, nd in variable_layouts(plan).items() if name == plan.graph.parameter_of(name)}


def variable_layouts(plan: Plan) -> Mapping[str, NdSbp]:
    """Parameter, or state of an optimiser -> how it lives between steps."""
    graph, layout = plan.graph, plan.layout
    homes = (
        (value.name, home_of(graph, layout.stages, layout.signatures, value.name))
        for value in graph.with_role(Role.VARIABLE)
    )
    return {name: home.layout for name, home in homes if home is not None}


def order_turns(folder: Path) -> Iterator[str]:
    """Ranks of the tensor axis have a node each."""
    cluster, pins = folder / "turned.toml", folder / "pins.toml"
    cluster.write_text(TURNED)
    pins.write_text("[config]\ntp = 2\npp = 1\n")
    plan = plan_of(folder, "llama2-7b", "--cluster", str(cluster), "--global-batch", "256", "--pin", str(pins))
    ranks = plan.layout.stages.placements[0].group(0, len(plan.config.mesh) - 1)
    if len({rank // 8 for rank in ranks}) != 2:
        yield f"strides {plan.config.strides}: the ranks {ranks} of the tensor axis share a node"


def classes(folder: Path) -> Iterator[str]:
    """The largest parameter is split by class, over every device."""
    plan = plan_of(folder, "arcface-1m", "--cluster", "dgx-a100:1", "--global-batch", "512")
    yield from _split_largest(plan, over=8)


def vocabulary(folder: Path) -> Iterator[str]:
    """So is the largest table, by rows."""
    plan = plan_of(folder, "wide-and-deep", "--cluster", "dgx-a100:1")
    yield from _split_largest(plan, over=8)


def _split_largest(plan: Plan, *, over: int) -> Iterator[str]:
    layouts = parameter_layouts(plan)
    name = max(layouts, key=lambda name: plan.graph.values[name].spec.nbytes)
    parts = 1
    for sbp, size in zip(layouts[name], plan.config.mesh, strict=True):
        parts *= size if isinstance(sbp, Split) else 1
    if parts != over:
        yield f"{name} is {layouts[name]} over mesh {plan.config.mesh}: in {parts} parts, expected {over}"


def memory_shrinks(folder: Path) -> Iterator[str]:
    """What saves memory is used in the order of what it costs; less memory never takes less time."""
    pins = folder / "pins.toml"
    pins.write_text(DATA_PARALLEL_ALONE)
    first: dict[str, int] = {}
    before_s = 0.0
    for gib in SHRINKING_GIB:
        cluster = folder / "node.toml"
        cluster.write_text(SMALL_NODE.format(gib=gib))
        plan = found(folder, "llama2-7b", "--cluster", str(cluster), "--global-batch", "64", "--pin", str(pins))
        if plan is None:
            break
        for kind in _savers(plan):
            first.setdefault(kind, gib)
        if plan.claims.objective_s < 0.99 * before_s:
            yield f"{gib} GiB take {plan.claims.objective_s:.3f} s, more memory {before_s:.3f} s"
        before_s = plan.claims.objective_s
    order = [first.get(kind, 0) for kind in ("ZeRO", "recompute", "offload")]
    if 0 in order or order != sorted(order, reverse=True):
        yield f"first used at GiB {first}, expected ZeRO, then recompute, then offload"


def _savers(plan: Plan) -> Iterator[str]:
    """Techniques that a plan uses."""
    if any(isinstance(nd[0], Split) for nd in variable_layouts(plan).values()):
        yield "ZeRO"
    if plan.config.recompute is not Recompute.NONE:
        yield "recompute"
    if plan.config.offload is not Offload.NONE:
        yield "offload"


def experts(folder: Path) -> Iterator[str]:
    """Of Mixtral, on 128 GPUs."""
    config = plan_of(folder, "mixtral-8x7b", "--cluster", "dgx-h100:16").config
    if config.ep == 1:
        yield f"{degrees(config)}, expected experts that are shared out"


def context(folder: Path) -> Iterator[str]:
    """Of Llama 3 8B, on 64 GPUs."""
    arguments = ("llama3-8b", "--seq", "131072", "--global-batch", "4", "--cluster", "dgx-h100:8")
    config = plan_of(folder, *arguments).config
    if config.cp == 1:
        yield f"{degrees(config)}, expected positions that are shared out"


CASES: Mapping[str, Callable[[Path], Iterator[str]]] = {
    "data parallel": data_parallel,
    "order turns": order_turns,
    "vocabulary": vocabulary,
    "memory shrinks": memory_shrinks,
    "classes": classes,
    "megatron": megatron,
    "experts": experts,
    "context": context,
}
