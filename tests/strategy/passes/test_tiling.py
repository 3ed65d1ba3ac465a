"""Tiling: linear maps run column tile by column tile, alike and in less memory."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from strategy.base.errors import InputError
from strategy.graph.graph import Graph
from strategy.layout.config import Recompute
from strategy.models.gpt import GptConfig
from strategy.passes.planned import planned_graph
from strategy.passes.training import Training
from strategy.plan.plan import Plan
from strategy.plan.verify import verify
from strategy.sbp.tensor import DType
from tests.campaigns.transparency import check
from tests.support.long_parameters import long_but
from tests.support.small_plans import MODEL, config_of, plan_by_rules, request

WIDE = GptConfig(layers=2, width=64, heads=2, sequence=4, vocabulary=16)
MATRIX = 4 * WIDE.width * 4 * WIDE.width
"""Bytes of the largest matrix, of the MLP."""
LAYERS = ("layers.*.matmul",)


def graph(tiles: int, tiled: tuple[str, ...] = LAYERS, stage: int = 3) -> Graph:
    training = Training(global_batch=4, num_micro_batches=2)
    named = {"tiled": tiled} if tiles != 1 else {}
    config = config_of(training, dp=2, zero_stage=stage, zero_min_size=9, tiles=tiles, **named)
    return planned_graph(MODEL, training, config)


@cache
def wide_plan(tiles: int) -> Plan:
    training = Training(global_batch=8, num_micro_batches=2)
    named = {"tiled": LAYERS} if tiles > 1 else {}
    config = config_of(training, dp=4, zero_stage=3, zero_min_size=9, tiles=tiles, **named)
    return plan_by_rules(request(4, training, model=WIDE), config, ("data", "tensor"))


def test_a_map_is_cut_and_keeps_its_name() -> None:
    found, name = graph(3), "layers.1.mlp.fc1.matmul"
    assert found.by_name[name].kind == "concat"
    assert [found.by_name[part].kind for part in found.by_name[name].inputs] == ["matmul"] * 3
    widths = [found.values[part].spec.shape[-1] for part in found.by_name[name].inputs]
    assert widths == [11, 11, 10]
    for part in found.by_name[name].inputs:
        cut = found.by_name[part].inputs[1]
        assert found.by_name[cut].inputs == ("layers.1.mlp.fc1.weight:forward",)
    assert found.by_name[f"{name}:dx"].kind == "add_n"
    assert found.by_name[f"{name}:dw"].kind == "concat"


def test_one_tile_after_the_other() -> None:
    """A tile of the weight is cut right before the product that reads it."""
    found = graph(2)
    names = [op.name for op in found.ops]
    part = "layers.0.mlp.fc1.matmul:tile1"
    assert names.index("layers.0.mlp.fc1.matmul:tile0") < names.index("layers.0.mlp.fc1.weight:forward:tile1")
    assert names.index(part) == names.index("layers.0.mlp.fc1.weight:forward:tile1") + 1


@pytest.mark.parametrize(
    ("tiles", "tiled", "message"),
    [
        (2, ("layers.*.fc3.*",), "config: tiled: a pattern matches no linear map (got 'layers.*.fc3.*')"),
        (
            9,
            ("layers.0.mlp.fc2.matmul",),
            "config: tiles: more tiles than columns (got 9, expected at most 8 for layers",
        ),
        (0, LAYERS, "config: tiles: not possible (got 0"),
    ],
)
def test_what_cannot_be_cut_is_refused(tiles: int, tiled: tuple[str, ...], message: str) -> None:
    with pytest.raises(InputError) as caught:
        graph(tiles, tiled)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "settings",
    long_but(
        [
            {"tiles": 2},
            {"tiles": 3, "zero_stage": 3},
            {"tiles": 2, "zero_stage": 2},
            {"tiles": 2, "zero_stage": 3, "zero_owner": True},
            {"tiles": 2, "zero_stage": 3, "pp": 2, "recompute": Recompute.FULL},
        ],
        4,
    ),
    ids=str,
)
def test_tiles_compute_what_the_whole_does(settings: dict[str, Any]) -> None:
    training = Training(global_batch=4, num_micro_batches=2, dtype=DType.FLOAT64)
    config = config_of(training, dp=2, zero_min_size=9, tiled=LAYERS, **settings)
    plan = plan_by_rules(request(2 * config.tp * config.pp, training), config, ("data", "tensor"))
    assert list(check(plan)) == []


def test_tiles_are_gathered_one_at_a_time() -> None:
    """Of four tiles, a rank holds the gathered columns of one: the peak falls by most of the largest matrix."""
    whole, tiled = (max(wide_plan(tiles).claims.peak_memory_bytes) for tiles in (1, 4))
    assert whole - tiled >= MATRIX * 3 / 4
    assert verify(wide_plan(4)) == []
