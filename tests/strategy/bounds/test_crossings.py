"""Crossings: which stages lie like the first two; and points that count what is handed on as pipelines take it."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from strategy.base.budget import UNLIMITED
from strategy.bounds.closed_forms import ClosedForms
from strategy.bounds.crossings import FAR_KIND, NEAR_KIND, UNCOUNTED, crossings_of, kinds_of_places
from strategy.bounds.point import FAR, NEAR, SIZE, TIED
from strategy.bounds.quick_bound import least_work
from strategy.cost.cost import CostModel
from strategy.hardware.cluster import Cluster
from strategy.hardware.presets import PRESETS
from strategy.layout.config import Offload, PlanConfig
from strategy.layout.schedule import Schedule
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.search.template.answers import Question, Templates
from strategy.search.template.outer_approximation import OuterApproximation
from strategy.search.template.stages import between_places, pipelined
from strategy.space.axis_orders import unlike_stages
from strategy.space.request import Request
from strategy.space.short_model import shortened
from tests.support.long_parameters import long_but

GPT = GptConfig(layers=17, width=256, heads=8, sequence=128, vocabulary=5000)


def nodes_of(count: int, per_node: int) -> Cluster:
    return replace(PRESETS["dgx-h100"], name="nodes", nodes=count, devices_per_node=per_node)


def test_of_two_stages_to_a_node() -> None:
    config = PlanConfig(1, 2, 6, 1, 12, Schedule.ONE_F_ONE_B)
    found = crossings_of(nodes_of(3, 4), config)
    assert found.far == (1, 2)
    assert found.onward == (NEAR_KIND, FAR_KIND, NEAR_KIND, FAR_KIND, NEAR_KIND, FAR_KIND)
    assert found.back == found.onward
    assert kinds_of_places(config.pipeline, found).tolist() == [NEAR_KIND, FAR_KIND, NEAR_KIND, FAR_KIND, NEAR_KIND]
    there_and_back = replace(config, schedule=Schedule.ZBV, virtual_stages=2)
    turns = kinds_of_places(there_and_back.pipeline, found)
    assert turns[5] == UNCOUNTED, "the last stage hands on to itself"
    assert (turns[:5] == turns[:5:-1]).all()


@pytest.mark.parametrize(("count", "per_node", "pp"), [(4, 4, 4), (4, 4, 2), (1, 8, 4)])
def test_stages_of_whole_nodes_or_within_one_are_all_alike(count: int, per_node: int, pp: int) -> None:
    config = PlanConfig(1, count * per_node // pp, pp, 1, 8, Schedule.INTERLEAVED, virtual_stages=2)
    found = crossings_of(nodes_of(count, per_node), config)
    assert found.far is None
    assert set(kinds_of_places(config.pipeline, found).tolist()) == {NEAR_KIND}


def test_pairs_of_a_third_kind_are_not_counted() -> None:
    found = crossings_of(nodes_of(3, 4), PlanConfig(1, 3, 4, 1, 8, Schedule.ONE_F_ONE_B))
    assert found.far == (1, 2)
    assert found.onward == (NEAR_KIND, FAR_KIND, UNCOUNTED, UNCOUNTED)


def random_case(rng: random.Random) -> tuple[Request, PlanConfig]:
    """Of a model with tied tables, on nodes of any size."""
    per_node = rng.choice([2, 3, 4, 6])
    cluster = nodes_of(rng.choice([2, 3, 4]), per_node)
    links = {"inter": replace(cluster.inter, bytes_per_s=rng.choice([1e9, 1e10])), "intra": cluster.intra}
    ranks = cluster.nodes * per_node
    pp = rng.choice([pp for pp in range(2, 9) if ranks % pp == 0])
    tp = rng.choice([tp for tp in (1, 2, 4) if ranks // pp % tp == 0])
    schedules = [Schedule.ONE_F_ONE_B, Schedule.INTERLEAVED, Schedule.ZB_H1, Schedule.ZBV]
    schedule = rng.choice(schedules)
    laps = 2 if schedule in (Schedule.INTERLEAVED, Schedule.ZBV) else 1
    dp = ranks // pp // tp
    config = PlanConfig(
        dp, tp, pp, 1, 2 * pp, schedule, virtual_stages=laps, zero_stage=rng.choice([0, 3]) if dp > 1 else 0,
        offload=rng.choice([Offload.NONE, *Offload]),
    )  # fmt: skip
    training = Training(global_batch=config.num_micro_batches * dp, precision=Precision.BF16)
    return Request("gpt", GPT, training, CostModel(replace(cluster, **links), {}), 2**40), config


@pytest.mark.parametrize("cases", long_but([12, 120], 0))
def test_points_count_what_pipelines_take(cases: int) -> None:
    """All that stages do and hand on, where all stages share nodes alike; no more elsewhere."""
    rng, seen = random.Random(7), Counter[str]()
    short = shortened(GPT)
    assert short is not None
    for _ in range(cases):
        asked, config = random_case(rng)
        cluster, overlap = asked.cost.cluster, asked.overlap_of(config)
        crossings, forms = crossings_of(cluster, config), ClosedForms(asked, least_work(asked))
        within = OuterApproximation.of(
            GPT.layers, 2**40, [(forms.least(config), forms.inequalities(config))], overlap, crossings
        )
        weights = within.bound(config).weights + 1e-3 * np.ones(SIZE)
        answer = Templates(asked, short).answer(Question(config, weights, False, math.inf, UNLIMITED, proposes=True))
        point, proposed = answer.point, answer.proposed
        assert point is not None
        assert proposed is not None
        assert (point + 2 >= forms.least(config)).all(), "but for what is rounded down"
        between_ns = between_places(proposed.messages, config)
        made = pipelined(proposed.parts, config, GPT.layers, between_ns, overlap, proposed.tied).step_ns
        known = set(kinds_of_places(config.pipeline, crossings).tolist())
        assert tuple(point[TIED].tolist()) == (proposed.tied.ahead_ns, proposed.tied.behind_ns)
        assert (point[NEAR] > 0).all()
        assert point[FAR].any() == (crossings.far is not None)
        if len(unlike_stages(cluster, config)) == 1:
            assert within.step_ns(config, point) == pytest.approx(made, rel=1e-4)
            seen["alike"] += 1
        else:
            assert within.step_ns(config, point) <= made * (1 + 1e-4)
            seen["otherwise"] += 1
        seen["far"] += FAR_KIND in known
        seen["tied"] += config.schedule is not Schedule.ZBV
        seen["waits"] += config.offload is not Offload.NONE
    print(dict(seen))
    assert all(seen[name] >= cases // 6 for name in ("alike", "far", "tied", "waits")), seen
    assert seen["otherwise"] >= cases // 12, seen


def test_what_ends_hand_each_other_counts_where_they_are_apart() -> None:
    asked, config = random_case(random.Random(1))
    config = replace(config, schedule=Schedule.ONE_F_ONE_B, virtual_stages=1)
    forms = ClosedForms(asked, least_work(asked))
    point = forms.least(config) + 1e5
    for one, apart in itertools.product((config, replace(config, schedule=Schedule.ZBV, virtual_stages=2)), (1, 2)):
        crossings = crossings_of(asked.cost.cluster, one)
        within = OuterApproximation.of(
            GPT.layers, 2**40, [(forms.least(one), forms.inequalities(one))], asked.overlap_of(one), crossings
        )
        more = point.copy()
        more[TIED] *= apart * 10
        longer = within.step_ns(one, more) - within.step_ns(one, point)
        assert (longer > 0) == (one.schedule is not Schedule.ZBV)
