"""The problems of `sbplan bench joint`: models, clusters and batches, drawn by a seed.

Families take turns, and every other cluster has 64 GPUs or more; presets take turns with dimensions that are drawn.
What cannot hold the state of its training is drawn again.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from strategy.base.errors import RunError
from strategy.cost.cost import CostModel
from strategy.hardware.cluster import Cluster
from strategy.hardware.presets import find_cluster
from strategy.models import PRESETS, GptConfig, Model
from strategy.models.llama import LlamaConfig
from strategy.models.mixtral import MixtralConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.space.request import Request

FEWEST_PARAMETERS, MOST_PARAMETERS = 10**9, 7 * 10**10
MANY_GPUS = 64
CLUSTERS = ("grand-teton", "dgx-a100-40", "dgx-a100", "dgx-h100", "dgx-h200", "dgx-b200")
STATE_BYTES, FILLED = 18, 0.6
"""Of a parameter with its gradient and moments, and the part of all memory that these may fill."""
QUOTAS: Mapping[str, float] = {
    "gpt": 0.2,
    "llama": 0.2,
    "mixtral": 0.2,
    "preset": 0.2,
    "drawn": 0.2,
    "64 GPUs or more": 0.5,
    "256 GPUs or more": 0.1,
}
"""What the least share of the problems has to be; of few problems, rounded down."""
PRESET_MODELS: Mapping[str, Sequence[str]] = {
    "gpt": (),
    "llama": ("llama2-7b", "llama3-8b", "llama2-70b"),
    "mixtral": ("mixtral-8x7b",),
}
SEQUENCES = (2048, 4096, 8192)


@dataclass(frozen=True, slots=True)
class JointProblem:
    """A model on a cluster with a batch; gap 0: nothing is left that may be better."""

    name: str
    model: Model
    cluster: Cluster
    global_batch: int
    covers: frozenset[str]

    @property
    def request(self) -> Request:
        """What is searched for: without rule-based plans beside it."""
        training = Training(global_batch=self.global_batch, precision=Precision.BF16)
        cost, limit = CostModel(self.cluster, {}), self.cluster.device.memory_bytes
        return Request(self.name, self.model, training, cost, limit, gap=0.0, incumbents=False)


def joint_problems(count: int, seed: int) -> list[JointProblem]:
    """So many problems.

    Raises:
        RunError: they do not cover what they should.
    """
    draw = random.Random(seed)
    found = [_problem(draw, number) for number in range(count)]
    short = [name for name, share in QUOTAS.items() if covered(found)[name] < int(share * count)]
    if short:
        raise RunError(f"the problems of seed {seed} cover too little: {', '.join(short)}; take another seed")
    return found


def covered(problems: Sequence[JointProblem]) -> dict[str, int]:
    """Quota -> how many problems count for it."""
    return {name: sum(name in problem.covers for problem in problems) for name in QUOTAS}


def _problem(draw: random.Random, number: int) -> JointProblem:
    family = ("llama", "gpt", "mixtral")[number % 3]
    while True:
        model, origin = _model(draw, family, preset=number % 2 == 0)
        cluster = _cluster(draw, large=(number // 3) % 2 == 0 or number % 5 == 4)
        memory = cluster.devices * cluster.device.memory_bytes
        if STATE_BYTES * model.parameters <= FILLED * memory:
            break
    batch = 2 ** draw.randint(4, 7) * max(1, cluster.devices // 8)
    sizes = {f"{least} GPUs or more" for least in (MANY_GPUS, 256) if cluster.devices >= least}
    billions = f"{model.parameters / 1e9:.1f}B"
    sequence = getattr(model, "sequence", 0)
    name = f"{origin if origin in PRESETS else family} {billions} s{sequence} on {cluster.name}, batch {batch}"
    covers = frozenset({family, "preset" if origin in PRESETS else "drawn", *sizes})
    return JointProblem(name, model, cluster, batch, covers)


def _model(draw: random.Random, family: str, *, preset: bool) -> tuple[Model, str]:
    names = PRESET_MODELS[family]
    if preset and names:
        name = draw.choice(names)
        return replace(PRESETS[name].model, sequence=draw.choice(SEQUENCES)), name  # type: ignore[type-var]
    while True:
        model = DRAWN[family](draw)
        if FEWEST_PARAMETERS <= model.parameters <= MOST_PARAMETERS:
            return model, "drawn"


def _dimensions(draw: random.Random) -> Iterator[int]:
    """Layers, width, heads, positions and vocabulary."""
    heads = draw.choice((16, 24, 32, 40, 48, 64))
    yield draw.randint(8, 20) * 4
    yield heads * 128
    yield heads
    yield draw.choice(SEQUENCES)
    yield draw.choice((32000, 51200, 128256))


def _gpt(draw: random.Random) -> Model:
    layers, width, heads, sequence, vocabulary = _dimensions(draw)
    return GptConfig(layers, width, heads, sequence, vocabulary)


def _llama(draw: random.Random) -> Model:
    layers, width, heads, sequence, vocabulary = _dimensions(draw)
    key_heads = draw.choice((8, heads))
    hidden = width * 7 // 2 if key_heads == 8 else width * 11 // 4
    return LlamaConfig(layers, width, heads, key_heads, hidden, sequence, vocabulary)


def _mixtral(draw: random.Random) -> Model:
    layers, width, heads, sequence, vocabulary = _dimensions(draw)
    return MixtralConfig(layers // 2, width // 2, heads, 8, width, draw.choice((8, 16)), 2, sequence, vocabulary)


DRAWN: Mapping[str, Callable[[random.Random], Model]] = {"gpt": _gpt, "llama": _llama, "mixtral": _mixtral}


def _cluster(draw: random.Random, *, large: bool) -> Cluster:
    """A preset with a number of nodes, or with other links and as many devices per node as one may have."""
    origin, nodes = draw.choice(CLUSTERS), draw.choice((8, 12, 16, 24, 32, 64, 128) if large else (1, 2, 3, 4, 6))
    cluster = find_cluster(f"{origin}:{nodes}")
    if draw.random() < 0.5:
        return cluster
    per_node = draw.choice((4, 8) if large and nodes < 16 else (2, 4, 8))
    nodes = cluster.devices // per_node
    slower = draw.choice((0.5, 1.0, 2.0))
    inter = replace(cluster.inter, bytes_per_s=slower * cluster.inter.bytes_per_s)
    name = f"{origin}:{nodes}x{per_node} (inter x {slower:g})"
    return replace(cluster, name=name, nodes=nodes, devices_per_node=per_node, inter=inter)
