"""Layer templates: three layers, counted as many, cost and hold what many do."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from strategy.base.budget import UNLIMITED
from strategy.bounds.closed_forms import all_of_micro_batch
from strategy.bounds.crossings import crossings_of
from strategy.bounds.layer_template import LayerTemplate, on_one_stage
from strategy.bounds.linear_step import longest_path, stage_rows
from strategy.bounds.one_mesh import without_data_axis
from strategy.bounds.point import AT_HEAD, MESSAGES, PASSES, FloatArray
from strategy.bounds.template_cut import TemplateName
from strategy.cost.cost import CostModel
from strategy.layout.config import PlanConfig, Recompute
from strategy.layout.convert import Converter
from strategy.layout.layout import Home
from strategy.layout.objective import Priced
from strategy.layout.schedule import Schedule
from strategy.layout.step_times import TICKS, Overlap
from strategy.lowering.lower import lower_priced
from strategy.lowering.memory import memory_nbytes
from strategy.models import Model
from strategy.models.gpt import GptConfig
from strategy.models.llama import LlamaConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.sbp.sbp import B, P, Split
from strategy.sbp.tensor import DType, TensorSpec
from strategy.search.candidate.candidate_solve import Solved, evaluated
from strategy.search.template.parts import parts_of
from strategy.search.template.stages import pipelined
from strategy.search.template.template_solve import CLOSE_ENOUGH, Chosen, solve_template
from strategy.space.axis_orders import axis_orders, placements_of
from strategy.space.candidate_space import free_rules, space_of
from strategy.space.candidates import listed
from strategy.space.problem_builder import LinearProblem, ProblemBuilder
from strategy.space.request import Request
from strategy.space.short_model import expanded, shortened
from strategy.space.space import SearchSpace
from tests.support.long_parameters import long_but
from tests.support.small_plans import request
from tests.support.solved_templates import solved_template

GPT = GptConfig(layers=8, width=64, heads=4, sequence=16, vocabulary=96)
LLAMA = LlamaConfig(
    layers=6, width=64, heads=4, key_heads=2, hidden=96, sequence=16, vocabulary=96, rotary_base=10000.0
)
TRAINING = Training(global_batch=8, precision=Precision.BF16)


def even(micro: int, step: int, layers: int, byte: float = 0.0) -> FloatArray:
    """Everything alike, wherever it is."""
    often = [step if name.startswith(("before", "after")) else micro for name in PASSES]
    times, nbytes = (np.outer(each, [1.0, layers - 2, 1.0]).ravel() for each in (often, [byte] * 7))
    return np.concatenate([times, np.zeros(MESSAGES.stop - MESSAGES.start), nbytes, [byte] * 3])


def template(asked: Request, config: PlanConfig) -> LayerTemplate:
    short = shortened(asked.model)
    assert short is not None
    return LayerTemplate.of(asked, short, config, UNLIMITED)


def allocated_bytes(asked: Request, deep: SearchSpace, solved: Solved) -> list[int]:
    """What the fullest rank of every stage holds as it is laid out."""
    program = lower_priced(Priced(deep.graph, solved.layout, asked.pipeline_of(solved.config), asked.cost))
    allocated = memory_nbytes(program)
    return [max(allocated[rank] for rank in placement.devices) for placement in deep.stages.placements]


@pytest.mark.parametrize(
    ("model", "dp", "tp"),
    long_but(
        [(GPT, 2, 2), (GPT, 4, 1), (GPT, 1, 4), (LLAMA, 2, 2), (LLAMA, 4, 1), (LLAMA, 1, 4)],
        *(2, 4),
    ),
)
def test_the_cost_is_the_objective_of_the_deep_model(model: Model, dp: int, tp: int) -> None:
    asked = request(4, TRAINING, model=model, backend="cuda")
    config = PlanConfig(dp, tp, 1, 2, 8 // dp // 2, schedule=Schedule.ONE_F_ONE_B)
    found = template(asked, config)
    weights = even(config.num_micro_batches, 1, model.layers)
    chosen = solved_template(found, config, weights)
    deep = space_of(asked, config, free_rules(config))
    everywhere = expanded((found.space.graph, chosen.signatures), deep.graph)
    assert everywhere is not None
    solved = evaluated(config, deep, everywhere, 0)
    cost, overlap = float(weights @ chosen.point), Overlap.of(asked.cost.cluster)
    assert (1 - 2 * CLOSE_ENOUGH) * cost <= chosen.cut.inequality.least <= cost
    point = chosen.point.astype(np.int64)
    crossings = crossings_of(asked.cost.cluster, config)
    times_ns = point[: MESSAGES.stop]
    path = longest_path(config, model.layers, times_ns, overlap=overlap, crossings=crossings, exact=True)
    length_ns = -(-int(path @ point) // TICKS)
    assert length_ns <= cost, "what goes on beside computation hides behind it"
    assert solved.objective_ns == pytest.approx(length_ns, rel=1e-6), "norms of all layers are added up in one op"
    layout, arrangement = found.arranged(chosen.signatures)
    parts = parts_of(found.space.graph, layout, arrangement, asked.cost)
    one = pipelined(parts, config, model.layers, (0, 0), overlap)
    assert one.step_ns == length_ns
    assert max(one.peak_bytes) == pytest.approx(max(allocated_bytes(asked, deep, solved)), rel=0.15)


def test_where_most_are_logits_their_gradients_lie_over_them() -> None:
    """They are half of what is allocated: counted twice, a plan that fits would not be proposed."""
    model = replace(LLAMA, vocabulary=1 << 14, sequence=512)
    asked = request(4, Training(8, precision=Precision.BF16), model=model, backend="cuda")
    config = PlanConfig(4, 1, 1, 1, 2, schedule=Schedule.ONE_F_ONE_B, zero_stage=3)
    found = template(asked, config)
    chosen = solved_template(found, config, even(1, 1, LLAMA.layers))
    layout, arrangement = found.arranged(chosen.signatures)
    parts = parts_of(found.space.graph, layout, arrangement, asked.cost)
    counted = max(pipelined(parts, config, LLAMA.layers, (0, 0), Overlap.of(asked.cost.cluster)).peak_bytes)
    deep = space_of(asked, config, free_rules(config))
    everywhere = expanded((found.space.graph, chosen.signatures), deep.graph)
    assert everywhere is not None
    held = max(allocated_bytes(asked, deep, evaluated(config, deep, everywhere, 0)))
    assert 2 * model.sequence * model.vocabulary * 4 > 0.4 * held
    assert counted == pytest.approx(held, rel=0.1)
    rows = stage_rows(config, LLAMA.layers, 0)
    at_head, beside = ([row for row in rows if bool(row[AT_HEAD]) is there] for there in (True, False))
    bounds = [max(float(row @ chosen.point) for row in some) for some in (at_head, beside)]
    assert bounds[1] < 0.75 * held < 0.9 * held < bounds[0] <= held


@pytest.mark.parametrize(
    ("schedule", "laps"),
    long_but(
        [
            (Schedule.ONE_F_ONE_B, 1),
            (Schedule.GPIPE, 1),
            (Schedule.INTERLEAVED, 2),
            (Schedule.ZB_H1, 1),
            (Schedule.ZBV, 2),
        ],
        *(0, 2, 4),
    ),
)
def test_stages_made_up_of_parts_take_what_stages_take(schedule: Schedule, laps: int) -> None:
    asked = request(4, Training(global_batch=16), model=GPT, backend="cuda")
    config = PlanConfig(1, 2, 2, 2, 8, schedule=schedule, virtual_stages=laps)
    found = template(asked, config)
    chosen = solved_template(found, config, even(8, 1, GPT.layers))
    layout, arrangement = found.arranged(chosen.signatures)
    parts = parts_of(found.space.graph, layout, arrangement, asked.cost)
    one = pipelined(parts, config, GPT.layers, (0, 0), Overlap.of(asked.cost.cluster))
    deep = space_of(asked, config, free_rules(config))
    everywhere = expanded((found.space.graph, chosen.signatures), deep.graph)
    assert everywhere is not None
    solved = evaluated(config, deep, everywhere, 0)
    assert one.step_ns == pytest.approx(solved.objective_ns, rel=0.1), "but for messages, which are left out here"
    for held, counted in zip(allocated_bytes(asked, deep, solved), one.peak_bytes, strict=True):
        assert counted == pytest.approx(held, rel=0.2)


def test_bytes_that_count_make_less_of_them() -> None:
    """Where a byte counts, no layout is found that holds more."""
    asked = request(4, Training(global_batch=8), model=GPT, backend="cuda")
    config = PlanConfig(2, 2, 1, 2, 2, schedule=Schedule.ONE_F_ONE_B)
    held, found = [], template(asked, config)
    for byte in (0.0, 1.0, 100.0, 1e10, 1e13):
        weights = even(2, 1, GPT.layers, byte)
        chosen = solved_template(found, config, weights)
        cost = float(weights @ chosen.point)
        assert (1 - 2 * CLOSE_ENOUGH) * cost <= chosen.cut.inequality.least <= cost, (
            "however large costs are, they are added exactly"
        )
        layout, arrangement = found.arranged(chosen.signatures)
        parts = parts_of(found.space.graph, layout, arrangement, asked.cost)
        held.append(max(pipelined(parts, config, GPT.layers, (0, 0), Overlap.of(asked.cost.cluster)).peak_bytes))
    assert held[:3] == sorted(held[:3], reverse=True)
    assert held[2] < held[0]
    assert held[3] <= held[2], "though times count next to nothing beside so many bytes"


def test_tables_that_are_made_take_no_more_memory_than_the_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    """An edge is of dozens of layouts, on three axes of hundreds: one table is made of all of them."""
    asked = request(4, Training(global_batch=8), model=GPT, backend="cuda")
    config = PlanConfig(2, 2, 1, 2, 2, schedule=Schedule.ONE_F_ONE_B, zero_stage=3)
    made_bytes, linear = list[int](), ProblemBuilder.linear

    def counted(builder: ProblemBuilder, name: str, weights: int) -> LinearProblem:
        made_bytes.append(sum(table.numbers.nbytes for table in builder._tables.values()))
        return linear(builder, name, weights)

    monkeypatch.setattr(ProblemBuilder, "linear", counted)
    found = template(asked, config)
    cells = found.problem.linear.cells
    assert 0 < sum(made_bytes) < math.prod(cells.numbers.shape) * cells.numbers.dtype.itemsize


def test_one_stage_keeps_mesh_and_batch() -> None:
    config = PlanConfig(2, 2, 4, 2, 8, schedule=Schedule.ZBV, virtual_stages=2)
    assert on_one_stage(config) == PlanConfig(2, 2, 1, 2, 8, schedule=Schedule.ONE_F_ONE_B)


def test_a_tensor_axis_alone_takes_no_more_than_with_a_data_axis_in_any_order() -> None:
    """Where links between nodes are the faster ones, by how much depends on the order; the bound on all is one."""
    training = replace(TRAINING, global_batch=16)
    asked = request(8, training, model=GPT, backend="cuda", per_node=4)
    cluster = asked.cost.cluster
    asked = replace(asked, cost=CostModel(replace(cluster, intra=cluster.inter, inter=cluster.intra), {}))
    weights = all_of_micro_batch(GPT.layers)
    short = shortened(asked.model)
    assert short is not None
    least: dict[int, set[int]] = {2: set(), 4: set()}
    with_data: dict[int, set[int]] = {2: set(), 4: set()}
    configs = [config for group in listed(asked) for config in group if (config.pp, config.micro_batch) == (1, 2)]
    for tp, found in least.items():
        some = [one for one in configs if one.tp == tp and one.recompute is Recompute.NONE and one.zero_stage == 0]
        assert len({one.strides for one in some}) > 1
        for config in {one.strides: one for one in some}.values():
            alone = LayerTemplate.of_tensor_axis(asked, short, config, UNLIMITED)
            name = TemplateName(config, tensor_axis=True)
            answer = solve_template(name, alone, weights, UNLIMITED)
            assert isinstance(answer, Chosen)
            found.add(answer.cut.least or 0)
            with_data[tp].add(int(solved_template(template(asked, config), config, weights).cut.inequality.least))
            assert answer.cut.inequality.least <= min(with_data[tp])
        assert len(found) == 1
    assert any(len(several) > 1 for several in with_data.values())


def test_along_a_tensor_axis_no_conversion_takes_more_than_in_any_order() -> None:
    """In one or two parts, inside of nodes and between them, by as many bytes and in as many hops or more."""
    rng, cheaper = random.Random(3), Counter[bool]()
    cluster = request(32, TRAINING, per_node=4).cost.cluster
    swapped = replace(cluster, intra=cluster.inter, inter=cluster.intra)
    late = replace(swapped, intra=replace(cluster.inter, latency_s=1e-3), inter=replace(cluster.intra, latency_s=1e-3))
    inside = replace(
        cluster, intra=replace(cluster.intra, latency_s=1e-3), inter=replace(cluster.inter, latency_s=1e-3)
    )
    for cost in (CostModel(swapped, {}), CostModel(late, {}), CostModel(inside, {})):
        for tp, dp, pp in ((2, 16, 1), (4, 4, 2), (8, 4, 1), (8, 2, 2), (16, 2, 1)):
            plain = PlanConfig(dp, tp, pp, 1, 2, schedule=Schedule.ONE_F_ONE_B)
            anywhere = Converter(cost.wherever_axes_lie(in_order=False), placements_of(without_data_axis(plain))[:1])
            orders = axis_orders(cost.cluster, plain)
            assert len(orders) > 1
            for strides in orders:
                there = Converter(cost, placements_of(replace(plain, strides=strides))[:1])
                for _ in range(12):
                    rows, columns = rng.randint(16, 400), rng.randint(16, 400)
                    one, all_samples = (TensorSpec((many * rows, columns), DType.FLOAT32) for many in (1, dp))
                    source, target = rng.sample([B, P, Split(0), Split(1)], 2)
                    if target == P:
                        continue
                    least, *_ = anywhere.prices_ns(one, Home(0, (B, source)), 0, (B, target))
                    samples = Split(0)
                    takes, *_ = there.prices_ns(all_samples, Home(0, (samples, source)), 0, (samples, target))
                    assert least <= takes, (tp, strides, one, source, target)
                    cheaper[least < takes] += 1
    assert cheaper[True] > 120, cheaper
