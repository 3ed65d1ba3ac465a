"""Prices of all steps at once are, bit for bit, those of every step by itself, counted piece by piece."""

from __future__ import annotations

import random
import tracemalloc
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from strategy.base.errors import InputError
from strategy.base.limits import LONGEST_ACT_S
from strategy.base.units import to_ns
from strategy.comm.boxing import layouts_of, steps_among
from strategy.cost.cost import CostModel
from strategy.cost.step_prices import all_to_ns, step_price
from strategy.hardware.cluster import Cluster
from strategy.hardware.presets import find_cluster
from strategy.program.program import ActKind
from strategy.sbp.placement import Placement
from strategy.sbp.sbp import B, Owner, Reduce, Sbp, Split
from strategy.sbp.tensor import DType, Ragged, Shape, TensorSpec
from tests.support.long_parameters import long_but
from tests.support.step_prices import counted_features

MESHES: tuple[Shape, ...] = (
    (2,),
    (3,),
    (4,),
    (8,),
    (16,),
    (2, 2),
    (4, 2),
    (2, 8),
    (3, 4),
    (2, 2, 2),
    (2, 3, 2),
    (4, 1, 2),
)
CLUSTERS = ("dgx-a100", "dgx-h100", "v100-ib100", "v100-vpc25")
ASKED = 40
"""Steps of a table that are counted, so that every case is quick."""


def random_cluster(rng: random.Random) -> Cluster:
    """Of GPUs, or of CPU cores."""
    cluster = find_cluster(rng.choice(CLUSTERS))
    direct = rng.random() < 0.5
    if rng.random() < 0.2:
        cluster = replace(cluster, device=replace(cluster.device, backend="numpy"))
    return replace(cluster, devices_per_node=rng.choice((2, 3, 4, 8)), nodes=16, gpu_direct=direct)


def random_placement(rng: random.Random, mesh: Shape) -> Placement:
    """Contiguous from some rank on, or the axes in another order on the machine, or any ranks at all."""
    ranks, first = int(np.prod(mesh)), rng.choice((0, 0, 1, 8))
    devices = np.arange(first, first + ranks).reshape(mesh)
    kind = rng.random()
    if kind < 0.2:
        devices = devices.reshape(mesh[::-1]).T
    elif kind < 0.4:
        devices = np.array(rng.sample(range(ranks + 8), ranks))
    return Placement(tuple(devices.ravel().tolist()), mesh, tuple("abc"[: len(mesh)]))


def random_spec(rng: random.Random, mesh: Shape) -> TensorSpec:
    """Even or uneven; ragged now and then."""
    ranks, dims = int(np.prod(mesh)), rng.randint(0, 3 if len(mesh) < 3 else 2)
    even = rng.random() < 0.5
    shape = tuple(ranks * rng.randint(1, 300) if even else rng.randint(1, 40 * ranks) for _ in range(dims))
    dtype = rng.choice([one for one in DType if not one.is_code])
    if dims == 3 and rng.random() < 0.3:
        dtype = rng.choice([one for one in DType if one.is_float])
        return TensorSpec(shape, dtype, Ragged(rng.randint(1, min(4, shape[0])), shape[:2], rng.choice((1.0, 1.3))))
    return TensorSpec(shape, dtype)


def special_layouts(rng: random.Random, spec: TensorSpec, mesh: Shape) -> list[list[Sbp]]:
    """On some axes rotated splits and owners."""
    found: list[list[Sbp]] = []
    often = 0.6 / len(mesh) ** 2
    for parts in mesh:
        some: list[Sbp] = []
        if spec.shape and rng.random() < often:
            some.append(Owner(rng.randrange(parts)))
        if spec.shape and parts > 1 and rng.random() < often:
            some.append(Split(rng.randrange(len(spec.shape)), rng.randrange(1, parts)))
        found.append(some)
    return found


@pytest.mark.parametrize("seed", long_but(range(12), 0, 1, 2, 4))
def test_all_prices_are_those_of_each_step(seed: int) -> None:
    rng = random.Random(seed)
    kinds: Counter[tuple[ActKind, bool]] = Counter()
    for _ in range(6):
        mesh = rng.choice(MESHES)
        spec, placement = random_spec(rng, mesh), random_placement(rng, mesh)
        cost = CostModel(random_cluster(rng), {}, rng.choice((0.0, 1.7e-6)))
        reduces = tuple(Reduce) if len(mesh) < 3 and rng.random() < 0.3 else (Reduce.SUM,)
        special = special_layouts(rng, spec, mesh)
        steps = steps_among(tuple(layouts_of(spec, mesh, reduces=reduces, special=special)), mesh)
        prices = step_price(cost, placement)(spec, steps)
        assert prices.shape == (len(steps.steps),)
        for i in rng.sample(range(len(steps.steps)), min(ASKED, len(steps.steps))):
            source, step = steps.layouts[steps.sources[i]], steps.steps[i]
            wanted = counted_features(cost, spec, source, step, placement)
            assert cost.step_features(spec, source, step, placement) == wanted, (mesh, spec, source, step)
            assert float(prices[i]) == cost.seconds(wanted), (mesh, spec, source, step)
            kinds[step.kind, bool(wanted.parts)] += 1
    assert len(kinds) >= 4


@pytest.mark.parametrize("mesh", [(2048, 8), (256, 64)])
def test_thousands_of_ranks_are_priced_without_lists_of_their_pairs(mesh: Shape) -> None:
    ranks = int(np.prod(mesh))
    here, there = (Placement(tuple(range(first, first + ranks)), mesh, ("a", "b")) for first in (0, ranks))
    cost = CostModel(replace(find_cluster("dgx-a100"), nodes=2 * ranks // 8), {})
    price = step_price(cost, here)
    tracemalloc.start()
    try:
        for shape in ((12288, 49152), (50257, 12288), (ranks, 2048, 12288)):
            spec = TensorSpec(shape, DType.BFLOAT16)
            steps = steps_among(tuple(layouts_of(spec, mesh)), mesh)
            assert (price(spec, steps) > 0).all()
        assert cost.transfer_seconds(spec, (Split(0), Split(2)), here, (Split(0), B), there) > 0
        assert tracemalloc.get_traced_memory()[1] < 48 << 20
    finally:
        tracemalloc.stop()


def test_a_tensor_beyond_64_bits_is_priced() -> None:
    """What is sent of it is counted in whole numbers of any size."""
    spec, mesh = TensorSpec((1 << 40, (1 << 30) + 1), DType.FLOAT64), (2, 4)
    cost, placement = CostModel(find_cluster("dgx-a100:1"), {}), Placement(tuple(range(8)), mesh, ("a", "b"))
    steps = steps_among(tuple(layouts_of(spec, mesh)), mesh)
    found = step_price(cost, placement)(spec, steps).tolist()
    for source, step, seconds in zip(steps.sources.tolist(), steps.steps, found, strict=True):
        if step.kind is not ActKind.ALL_TO_ALL:
            assert seconds == cost.seconds(counted_features(cost, spec, steps.layouts[source], step, placement))


def test_nanoseconds_are_rounded_as_one_by_one() -> None:
    rng = np.random.default_rng(0)
    seconds = np.concatenate([rng.exponential(1e-3, 1000), np.arange(100) * 0.5e-9, [0.0, LONGEST_ACT_S]])
    assert all_to_ns(seconds).tolist() == [to_ns(one) for one in seconds.tolist()]
    with pytest.raises(InputError, match="2e\\+06"):
        all_to_ns(np.array([1.0, 2e6, 3e6]))
