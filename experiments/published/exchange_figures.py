"""Figures on gradient exchange, from simulated messages and transfers.

Where a source leaves the batch open, 64 per GPU and single precision are taken, which is what the published benchmarks
of Horovod and BytePS use, or the figure is a mean over batches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache

from experiments.published.source_figure import SourceFigure, falling
from simulator.exchange.buckets import MIB
from simulator.exchange.fabric import Fabric, rdma_nvlink, rdma_pcie, tcp_cloud
from simulator.exchange.horovod import Horovod
from simulator.exchange.key_value import KeyValue
from simulator.exchange.negotiation import Negotiation, negotiate
from simulator.exchange.streams import Streams
from simulator.exchange.summation import Summation
from simulator.exchange.tables import split_tables
from simulator.exchange.training import Scheme, simulate
from simulator.exchange.tune import exhaustive, tune
from simulator.exchange.workload import ComputeSpan, Workload, workload
from strategy.hardware.devices import DEVICES
from strategy.models import find_model
from strategy.models.wide_deep import WideDeepConfig
from strategy.passes.updates import Optimizer

_PERSEUS = "Alibaba's article on Perseus"
_BYTEPS = "BytePS, README and docs/performance.md"
_STEPS = 5
_FEW_FRAGMENTS, _FEW_STREAMS = (2 * MIB, 8 * MIB, 32 * MIB), (4, 8, 16)


def exchange_figures() -> list[SourceFigure]:
    """All of them."""
    return [
        horovod_at_scale(),
        *four_nodes(),
        negotiation(),
        barrier(),
        saturation(),
        tuner(),
        growth(),
        summation(),
        bert_at_scale(),
        tables(),
    ]


@lru_cache(maxsize=64)
def _step(name: str, batch: int = 64, gpu: str = "V100-16") -> Workload:
    return workload(name, find_model(name), batch, DEVICES[gpu])


def _mean(values: Iterable[float]) -> float:
    """Geometric."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs))


def _bulk(count: int, nbytes: int) -> Workload:
    """Gradients that are ready all at once, and next to no compute."""
    everything = tuple(range(count))
    return Workload("bulk", (ComputeSpan(1000, everything, everything),), (nbytes,) * count)


def horovod_at_scale(fabric: Fabric | None = None) -> SourceFigure:
    """128 servers of four P100s each; 25 Gbit/s RoCE. Horovod's first releases, whose figures these are."""
    fabric = fabric or rdma_pcie(128, 25, gpus_per_node=4)
    published = {"resnet101": 0.90, "inception-v3": 0.90, "vgg16": 0.68}
    values = {name: simulate(_step(name, gpu="P100"), fabric, Horovod(), steps=_STEPS).efficiency for name in published}
    within = all(abs(values[name] - share) <= 0.05 for name, share in published.items())
    within = within and values["vgg16"] < min(values["resnet101"], values["inception-v3"])
    text = "90 % for ResNet-101 and Inception-V3, 68 % for VGG-16"
    return SourceFigure(
        "Horovod's scaling on 512 GPUs", "Horovod, docs/benchmarks.rst", text, "5 points, in order", values, within
    )


def four_nodes(fabric: Fabric | None = None) -> list[SourceFigure]:
    """The batch is not published: the geometric mean over batches of 32, 64 and 128 of two models."""
    fabric = fabric or tcp_cloud(4, 25)
    ratios: dict[str, list[float]] = {"MXNet": [], "Horovod": []}
    for name in ("resnet18", "resnet50"):
        for batch in (32, 64, 128):
            step = _step(name, batch)
            ours = simulate(step, fabric, Streams(), steps=_STEPS).exposed
            for system, scheme in (("MXNet", KeyValue()), ("Horovod", Horovod())):
                ratios[system].append(simulate(step, fabric, scheme, steps=_STEPS).exposed / ours)
    found = []
    for system, (low, high) in {"MXNet": (2.0, 3.0), "Horovod": (1.5, 3.0)}.items():
        mean = _mean(ratios[system])
        values = {"mean": mean, "least": min(ratios[system]), "most": max(ratios[system])}
        name = f"exposed cost of {system}'s exchange over the decentralised scheme's, 4 x 8 V100, 25 Gbit/s"
        found.append(SourceFigure(name, _PERSEUS, f"{low} to {high}", "in the range", values, low <= mean <= high))
    return found


def negotiation(fabric: Fabric | None = None) -> SourceFigure:
    """ResNet-50's gradients, all named at once, among 320 ranks."""
    fabric = fabric or tcp_cloud(40, 25)
    central, agreed = (negotiate(kind, fabric, 161, 161) for kind in (Negotiation.CENTRAL, Negotiation.AGREED))
    values = {
        "at the root": float(central.root_messages), "most without": float(agreed.most_messages),
        "ms at the root": central.time_ns / 1e6, "ms without": agreed.time_ns / 1e6,
    }  # fmt: skip
    within = central.root_messages == 2 * (fabric.ranks - 1) and agreed.most_messages <= 18
    return SourceFigure(
        "messages of a negotiation, 320 ranks",
        _PERSEUS,
        "638 at the root; 1 to 2 orders less without one",
        "638 and at most 18",
        values,
        within,
    )


def barrier() -> SourceFigure:
    """256 MiB over four connections, alike and unlike."""
    fabric = replace(tcp_cloud(4, 25), straggle=0.0)
    values = {}
    for name, speeds in (("alike", ()), ("1 to 0.7", (1.0, 0.9, 0.8, 0.7)), ("1 to 0.4", (1.0, 0.8, 0.6, 0.4))):
        free, together = (
            simulate(_bulk(64, 4 * MIB), fabric, Streams(4, 4 * MIB, speeds=speeds, together=barred)).step_ns
            for barred in (False, True)
        )
        values[name] = together / free
    within = falling(list(values.values())[::-1]) and values["alike"] < 1.05 < values["1 to 0.7"]
    return SourceFigure(
        "time with a barrier per fused buffer over that without",
        _PERSEUS,
        "the slowest stream dominates: rejected",
        "loses when streams differ",
        values,
        within,
    )


def saturation() -> SourceFigure:
    """Gbit/s of a node's NIC, of 25."""
    fabric = replace(tcp_cloud(4, 25), straggle=0.0)
    bulk = _bulk(64, 4 * MIB)
    crossed = 8 * 2 * (fabric.nodes - 1) / fabric.nodes * sum(bulk.nbytes)
    values = {
        str(count): crossed / simulate(bulk, fabric, Streams(count, 4 * MIB)).step_ns for count in (1, 2, 3, 4, 8, 16)
    }
    within = values["2"] > 1.8 * values["1"] and values["16"] < 1.03 * values["8"] and values["1"] < 0.5 * values["16"]
    return SourceFigure(
        "bandwidth by number of streams, Gbit/s",
        _PERSEUS,
        "one TCP stream cannot fill 25 Gbit/s",
        "grows, then saturates",
        values,
        within,
    )


def tuner() -> SourceFigure:
    """What the tuner's choice takes over the best of all settings, both without stragglers."""
    values = {}
    for name, nodes in (("resnet50", 4), ("resnet50", 32), ("resnet18", 32)):
        fabric = tcp_cloud(nodes, 25)
        step = _step(name)
        chosen, best = tune(step, fabric), exhaustive(step, fabric)
        again = simulate(step, replace(fabric, straggle=0.0), chosen.scheme, steps=2)
        values[f"{name}, {nodes} nodes"] = again.step_ns / best.step_ns
    return SourceFigure(
        "tuned fusion and streams over the best",
        _PERSEUS,
        "tuned early in training",
        "at most 1.05",
        values,
        max(values.values()) <= 1.05,
    )


def growth() -> SourceFigure:
    """Speed-up of the tuned scheme over Horovod: means over nodes by model, and over models by nodes."""
    steps = {"resnet50": _step("resnet50"), "bert-base": _step("bert-base", 16), "bert-large": _step("bert-large", 8)}
    gains: dict[tuple[str, int], float] = {}
    for nodes in (4, 16, 64):
        fabric = tcp_cloud(nodes, 25)
        for name, step in steps.items():
            scheme = tune(step, fabric, fragments=_FEW_FRAGMENTS, streams=_FEW_STREAMS).scheme
            ours = simulate(step, fabric, scheme, steps=_STEPS).step_ns
            gains[name, nodes] = simulate(step, fabric, Horovod(), steps=_STEPS).step_ns / ours
    by_model = {name: _mean(gain for (model, _), gain in gains.items() if model == name) for name in steps}
    by_nodes = {f"{n} nodes": _mean(gain for (_, k), gain in gains.items() if k == n) for n in (4, 16, 64)}
    within = falling(list(by_model.values())[::-1]) and falling(list(by_nodes.values())[::-1])
    return SourceFigure(
        "speed-up over Horovod by model and by nodes",
        _PERSEUS,
        "most for large models and at least 16 nodes",
        "grows with both",
        by_model | by_nodes,
        within,
    )


def summation(fabrics: tuple[Fabric, Fabric] | None = None) -> SourceFigure:
    """Eight nodes, and as many machines without GPUs."""
    tcp, rdma = fabrics or (tcp_cloud(8, 20), rdma_pcie(8, 100, gpus_per_node=8))
    values = {}
    for fabric, network in ((tcp, "20 Gbit/s TCP"), (rdma, "100 Gbit/s RoCE, PCIe")):
        for name in ("vgg16", "resnet50"):
            theirs = simulate(_step(name), fabric, Horovod(cached=True), steps=_STEPS).step_ns
            ours = simulate(_step(name), fabric, Summation(servers=fabric.nodes), steps=_STEPS).step_ns
            values[f"{name}, {network}"] = theirs / ours - 1
    text = "+100 % VGG-16 and +44 % ResNet-50 over TCP, +17 % and +7 % over RoCE"
    return SourceFigure("BytePS's gain over Horovod", _BYTEPS, text, "in order", values, falling(list(values.values())))


def bert_at_scale(fabric: Fabric | None = None) -> SourceFigure:
    """BERT-large in mixed precision, 64 sequences of 128 tokens per V100, gradients in single precision."""
    fabric = fabric or rdma_nvlink(32, 100)
    step = workload("bert-large", find_model("bert-large", sequence=128), 64, DEVICES["V100-32"], width=16)
    schemes: dict[str, Scheme] = {"BytePS": Summation(servers=fabric.nodes), "Horovod": Horovod(cached=True)}
    values = {name: simulate(step, fabric, scheme, steps=_STEPS).efficiency for name, scheme in schemes.items()}
    within = abs(values["BytePS"] - 0.90) <= 0.05 and values["Horovod"] < values["BytePS"]
    text = "about 90 %, Horovod less"
    return SourceFigure("BytePS's scaling on 256 V100s, BERT-large", _BYTEPS, text, "5 points", values, within)


def tables(gpu: str = "V100-16") -> SourceFigure:
    """Wide and deep, batch 16,384, 7 x 1,024.

    Every GPU has room for all rows, as the published memory says, which hardly falls with GPUs; Adam passes over all.
    """
    published = {"2.3 M rows, 8 GPUs": 16.58, "51.2 M, 8": 50.7, "2.3 M, 1": 66.7, "51.2 M, 1": 99.7}
    values = {}
    for name in published:
        model = find_model("wide-and-deep" if name.startswith("2.3") else "wide-and-deep-large")
        gpus = 8 if "8" in name.partition(",")[2] else 1
        if isinstance(model, WideDeepConfig):
            batch = 16384 // gpus
            rows = 4 * batch * (model.deep * model.embedding + model.wide)
            whole = workload(name, model, batch, DEVICES[gpu], optimizer=Optimizer.ADAMW)
            split, scheme = split_tables(whole, 4 * model.vocabulary, rows)
            values[name] = simulate(split, tcp_cloud(1, 25, gpus_per_node=gpus), scheme).step_ns / 1e6
    text = ", ".join(f"{name} {ms}" for name, ms in published.items())
    return SourceFigure(
        "HugeCTR's wide and deep, ms per step", "DLPerf", text, "in order", values, falling(list(values.values())[::-1])
    )
