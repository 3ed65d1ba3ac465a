"""Random requests: searches for plans of tiny models on a few devices, small enough that all plans can be listed."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from strategy.cost.cost import CostModel
from strategy.graph.graph import Role
from strategy.hardware.cluster import Cluster, Device, Host, Link
from strategy.layout.config import Recompute
from strategy.layout.schedule import Schedule
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.passes.updates import Optimizer
from strategy.sbp.sbp import B, NdSbp, Sbp
from strategy.space.axis_orders import NAMES
from strategy.space.request import Pins, Request
from tests.support.listed_plans import Listed, candidates, listed
from tests.support.tiny_models import TinyConfig

DEGREES = (("dp", "tp"), ("dp", "pp"), ("tp", "pp"), ("dp", "tp", "pp"), ("dp", "tp", "pp"), ())
OTHERS = ("micro-batch", "schedule", "zero", "recompute", "signatures")
"""Knobs. A degree alone is none: the others say what it is."""
MICRO_BATCHES = 3
"""Of a step at most."""
ROOMY = 2**40
"""Bytes that no case needs."""
DRAWS = 100
"""Layouts that are drawn to be pinned."""
WITH_EXPERTS, EXPERTS = 3, (2, 4, 4, 8)
"""One in so many of the cases that follow samples has so many experts in each layer."""
ORDERED, OFFLOADED, PIPED = 5, 5, 4
"""One in so many has the order of the axes open, a host that may hold something and, of these, more than stages."""
GROUPED = 4
"""One in so many of the cases on four devices that follow samples has ZeRO share out, in groups of two or a node."""
IN_LAYER = re.compile(r"^layers\.\d+\.")
"""What a name begins with that other layers have, too."""


@dataclass(frozen=True, slots=True)
class Case:
    """A request without a memory limit, the knobs that it leaves open, and how many points it has."""

    request: Request
    knobs: frozenset[str]
    points: int


def random_case(seed: int) -> Case:
    """The same seed gives the same case; it may have no points, or too many.

    One case in three has no tensor axis and no pinned layouts, so that along the data axis layers follow the samples.
    """
    rng = random.Random(seed)
    follows = rng.random() < 1 / 3
    knobs = _knobs(rng) | ({"order"} if seed % ORDERED == 2 else set())
    knobs |= {"offload"} if seed % OFFLOADED == 3 else set()
    devices = rng.choice((2, 2, 2, 3, 4, 4))
    schedule = None if "schedule" in knobs else rng.choice((Schedule.ONE_F_ONE_B, *Schedule))
    least = 2 if schedule is None else 2 * schedule.default_laps if schedule.default_laps > 1 else 1
    layers = max(rng.choice((1, 1, 2, 4) if follows else (1, 2, 2, 3, 4)), least)
    is_piped = "offload" in knobs and seed % PIPED > 0
    layers = max(layers, devices * is_piped)
    grouped = follows and devices == 4 and not is_piped and seed % GROUPED == 0
    layers = 1 if grouped else layers
    activation = rng.choice(("", "relu", "gelu"))
    model = TinyConfig(layers, rng.choice((4, 6, 8, 16, 16)), activation, follows or rng.random() < 0.5)
    if follows and seed % WITH_EXPERTS == 0:
        model, knobs = replace(model, experts=EXPERTS[seed % len(EXPERTS)], layers=min(layers, 2)), knobs | {"ep"}
    training = _training(rng)
    if model.experts:
        training = replace(training, optimizer=Optimizer.SGD, momentum=0.0, max_norm=math.inf, precision=Precision.FULL)
    if grouped:
        model = replace(model, activation="")
        plain = {"optimizer": Optimizer.SGD, "momentum": 0.0, "max_norm": math.inf, "precision": Precision.FULL}
        training = replace(training, global_batch=rng.choice((4, 8)), **plain)
    cost = _cost(rng, devices)
    if "offload" in knobs:
        cost = replace(cost, cluster=replace(cost.cluster, host=_host(random.Random(seed), cost.cluster.device)))
    request = Request("tiny", model, training, cost, ROOMY, Pins(), gap=0.0)
    pins = _pins(rng, request, knobs, schedule, recomputes=bool(activation))
    if follows:
        pins = replace(pins, tp=1, dp=None, pp=None)
        knobs = (knobs - {"tp"}) | {"dp", "pp"}
    if grouped:
        pinned = 2 if seed // GROUPED % 2 else None
        pins = replace(pins, num_micro_batches=rng.choice((1, 1, 2)), micro_batch=None)
        pins = replace(pins, dp=4, pp=1, zero_stage=1 + seed // GROUPED % 3, zero_group=pinned, order=())
        knobs |= {"groups"}
    if is_piped:
        pins = replace(pins, dp=1, tp=1, pp=None, zero_stage=0)
        knobs = (knobs - {"dp", "tp", "zero"}) | {"pp"}
    request = replace(request, pins=pins)
    counts = {config.num_micro_batches for config in candidates(request)}
    if max(counts, default=0) > MICRO_BATCHES:
        few = sorted(count for count in counts if count <= MICRO_BATCHES)
        if not few:
            return Case(request, knobs, 0)
        request = replace(request, pins=replace(pins, num_micro_batches=rng.choice(few), micro_batch=None))
    if follows or is_piped:
        return Case(request, knobs, sum(listed(request, config).points for config in candidates(request)))
    wanted = rng.choice((2_000, 20_000, 60_000)) if "signatures" in knobs else rng.choice((20, 200))
    return _few_points(rng, request, knobs, wanted)


def _knobs(rng: random.Random) -> frozenset[str]:
    """Three to five of them."""
    degrees = rng.choice(DEGREES)
    return frozenset((*degrees, *rng.sample(OTHERS, rng.randint(max(3 - len(degrees), 1), 5 - len(degrees)))))


def _training(rng: random.Random) -> Training:
    optimizer = rng.choice((Optimizer.SGD, Optimizer.ADAM))
    precision = rng.choice((Precision.FULL, Precision.FULL, Precision.BF16, Precision.FP16))
    momentum = rng.choice((0.0, 0.9))
    return Training(rng.choice((2, 3, 4, 6, 8, 12)), optimizer=optimizer, momentum=momentum, precision=precision)


def _cost(rng: random.Random, devices: int) -> CostModel:
    """Constants such that launches, FLOPs, bytes and links each decide now and then."""

    def rate(least: float, most: float) -> float:
        return float(10.0 ** rng.uniform(least, most))

    def latency() -> float:
        return rng.choice((0.0, 0.0, 1e-7, 1e-6, 1e-5))

    backend = rng.choice(("numpy", "numpy", "cupy"))
    speed_ups = {name: rng.choice((0.5, 2.0, 8.0)) for name in ("bf16_speedup", "fp16_speedup")}
    faster = 1 if backend == "numpy" else 1e4  # small products fill few of a GPU's processors
    device = Device("tiny", backend, ROOMY, rate(7, 10), faster * rate(6, 9), latency(), **speed_ups)
    per_node = rng.choice((devices, 2, 1)) if devices % 2 == 0 else devices
    links = (Link(rate(6, 10), latency()), Link(rate(6, 9), latency()))
    return CostModel(Cluster("tiny", devices // per_node, per_node, device, *links), {}, latency())


def _host(rng: random.Random, device: Device) -> Host:
    """One that is slower than its device, and a link that may make offloading cheaper than anything else."""
    slower = [float(10.0 ** -rng.uniform(0.5, 2)) for _ in range(2)]
    link, latency = float(10.0 ** rng.uniform(6, 10)), rng.choice((0.0, 0.0, 1e-7, 1e-6))
    return Host(ROOMY, slower[0] * device.memory_bytes_per_s, slower[1] * device.flop_per_s, link, latency)


def _pins(
    rng: random.Random, request: Request, knobs: frozenset[str], schedule: Schedule | None, *, recomputes: bool
) -> Pins:
    """Closed knobs at the values of one candidate; what saves memory at nothing, or at something now and then."""
    pins = Pins(schedule=schedule, order=() if "order" in knobs else NAMES)
    found = list(candidates(replace(request, pins=pins)))
    if not found:
        return pins
    one = rng.choice(found)
    closed = {name: getattr(one, name) for name in ("dp", "tp", "pp") if name not in knobs}
    if "micro-batch" not in knobs:
        closed["num_micro_batches"] = one.num_micro_batches
    again, stage = Recompute.NONE, 0
    if rng.random() < 0.3:
        again = Recompute.FULL if recomputes else again
        stage = rng.randint(1, 3) if one.dp > 1 else 0
    return replace(
        pins,
        **closed,
        recompute=None if "recompute" in knobs else again,
        zero_stage=None if "zero" in knobs else stage,
        zero_min_size=rng.choice((4, 16, 64)),
    )


def _few_points(rng: random.Random, request: Request, knobs: frozenset[str], wanted: int) -> Case:
    """The request with layouts pinned of as many values as it takes to leave `wanted` points."""
    configs = list(candidates(request))
    total = sum(listed(request, config).points for config in configs)
    if total <= wanted or len({len(config.mesh) for config in configs}) > 1:  # a layout is one of so many axes
        return Case(request, knobs, total)
    spaces = [listed(request, config, follows=False) for config in configs]
    known = set.intersection(*(set(space.graph.values) for space in spaces))
    names = [name for name, value in spaces[0].graph.values.items() if name in known and value.role is not Role.INPUT]
    layouts: dict[str, NdSbp] = {}
    total = sum(space.points for space in spaces)
    for _ in range(DRAWS):
        if total <= wanted:
            break
        name = rng.choice(names)
        layout = _drawn(rng, spaces, name)
        if rng.random() < 0.7:
            name = IN_LAYER.sub("layers.*.", name)
        pinned = [space.pinned(name, layout) for space in spaces]
        if name not in layouts and all(map(_keeps_points, spaces, pinned)):
            layouts[name], spaces, total = layout, pinned, sum(space.points for space in pinned)
    return Case(replace(request, pins=replace(request.pins, layouts=layouts)), knobs, total)


def _keeps_points(before: Listed, after: Listed) -> bool:
    return after.points > 0 or before.points == 0


def _drawn(rng: random.Random, spaces: Sequence[Listed], name: str) -> NdSbp:
    """A layout that some op has a value in; along each axis of one that cuts it."""
    found: list[Sbp] = []
    for axis in range(2):
        cut = [space for space in spaces if space.config.mesh[axis] > 1 and space.points]
        if not cut:
            found.append(B)
            continue
        space = rng.choice(cut)
        op = rng.choice([op for op in space.graph.ops if name in (*op.inputs, *op.outputs, *op.updates)])
        layouts = rng.choice(space.options[op.name]).layouts
        found.append(layouts[(*op.inputs, *op.outputs, *op.updates).index(name)][axis])
    return tuple(found)
