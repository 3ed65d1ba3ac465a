"""Layer mixes: the same share on every stage, priced as the deep model is, and never below the bound of mixes."""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategy.base.budget import UNLIMITED
from strategy.bounds.closed_forms import ClosedForms
from strategy.bounds.crossings import crossings_of
from strategy.bounds.kept_layers import ways_of
from strategy.bounds.layer_template import LayerTemplate
from strategy.bounds.one_mesh import on_one_stage
from strategy.bounds.pipeline_parts import parts_at
from strategy.bounds.point import ADDED, HELD, MESSAGES, SAVED, SIZE, SUMS, WAITING
from strategy.bounds.quick_bound import least_work
from strategy.graph.signature import op_signatures
from strategy.layout.config import KeptLayers, PlanConfig, Recompute
from strategy.layout.convert import lay_out
from strategy.layout.layout import assign_stages, layer_runs
from strategy.layout.schedule import Schedule, at_position
from strategy.layout.step_times import Overlap
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.planned import planned_graph
from strategy.passes.training import Training
from strategy.search.candidate.candidate_solve import Solved, solved_as
from strategy.search.full_layout import priced_in_full
from strategy.search.search_state import LayoutProposal
from strategy.search.template.answers import Proposed, Question, Templates
from strategy.search.template.layer_mix import LayerMix, mixed_at, mixed_layers, most_between, seam_of
from strategy.search.template.outer_approximation import OuterApproximation
from strategy.search.template.stages import between_places, made_up
from strategy.space.axis_orders import placements_of
from strategy.space.request import Pins, Request
from strategy.space.short_model import MIDDLE, expanded, shortened
from tests.support.long_parameters import long_but
from tests.support.small_plans import request
from tests.support.solved_templates import solved_template

GPT = GptConfig(layers=10, width=64, heads=4, sequence=16, vocabulary=96)
TRAINING = Training(global_batch=16, precision=Precision.BF16)
CONFIGS = [
    PlanConfig(2, 2, 1, 2, 4, Schedule.ONE_F_ONE_B),
    PlanConfig(1, 2, 2, 2, 8, Schedule.ONE_F_ONE_B),
    PlanConfig(1, 4, 1, 4, 4, Schedule.ONE_F_ONE_B, recompute=Recompute.SELECTIVE),
    PlanConfig(2, 1, 2, 2, 4, Schedule.INTERLEAVED, virtual_stages=2, zero_stage=3),
    PlanConfig(1, 2, 2, 1, 16, Schedule.ZBV, virtual_stages=2),
    PlanConfig(1, 2, 2, 2, 8, Schedule.ZB_H1),
]


@given(
    layers=st.integers(4, 130),
    pp=st.integers(1, 8),
    laps=st.integers(1, 4),
    share=st.fractions(0, 1, max_denominator=32),
)
def test_every_stage_has_the_same_share(layers: int, pp: int, laps: int, share: Fraction) -> None:
    if pp * laps > layers or (pp == 1 and laps > 1):
        return
    schedule = Schedule.INTERLEAVED if laps > 1 else Schedule.ONE_F_ONE_B
    config = PlanConfig(1, 1, pp, 1, 4 * pp, schedule, virtual_stages=laps)
    mixed, where = mixed_layers(config, layers, share), mixed_at(config, layers, share)
    assert mixed <= set(range(1, layers - 1))
    assert (where >= 0).all()
    assert (where[..., [0, 3]] == parts_at(config, layers)[..., [0, 2]]).all()
    assert (where[..., 1] + where[..., 2] == parts_at(config, layers)[..., 1]).all()
    assert where[..., 2].sum() == len(mixed)
    between, others = where[..., 1:3].sum((1, 2)), where[..., 2].sum(1)
    assert all(
        abs(other - share * count) <= Fraction(1, 2)
        for other, count in zip(others.tolist(), between.tolist(), strict=True)
    )
    assert between.max() == most_between(config, layers)
    places = itertools.chain.from_iterable([i] * run for i, run in enumerate(layer_runs(layers, schedule, pp, laps)))
    stages = [at_position(schedule, pp, place)[0] for place in places]
    assert Counter(stages[layer] for layer in mixed) == Counter(dict(enumerate(others.tolist())))


def freely() -> Request:
    """Layers may keep what others compute again."""
    return replace(request(4, TRAINING, model=GPT, backend="cuda"), pins=Pins(kept_layers=KeptLayers.ANY))


def ways(asked: Request, config: PlanConfig) -> tuple[list[tuple[Proposed, np.ndarray]], OuterApproximation]:
    """Two ways or more to lay out a model, fast and light, with their points; and cuts that hold of all.

    Where something is computed again, layers between compute it again, or keep it.
    """
    short = shortened(GPT)
    assert short is not None
    forms = ClosedForms(asked, least_work(asked))
    both, overlap = ways_of(asked, config), Overlap.of(asked.cost.cluster)
    known = [(forms.least(way), forms.inequalities(way)) for way in both]
    crossings = crossings_of(asked.cost.cluster, config)
    within = OuterApproximation.of(asked.model.layers, asked.memory_limit_bytes, known, overlap, crossings)
    templates, found = Templates(asked, short), []
    for byte in (0.0, 1e-2, 1.0, 1e3):
        weights = within.bound(config).weights.copy()
        weights[HELD] = weights[SUMS] = weights[SAVED] = weights[WAITING] = byte * np.array([1.0, GPT.layers - 2, 1.0])
        for i, way in enumerate(both):
            answer = templates.answer(Question(way, weights, False, 60.0, UNLIMITED, proposes=True))
            assert answer.point is not None
            assert answer.proposed is not None
            assert answer.proposed.keeps == (way != config)
            within.add_cut(answer.cut.inequality, answer.cut, i)
            found.append((answer.proposed, answer.point))
            assert (answer.kept is not None) == (way != both[-1])
            if answer.kept is not None:
                assert answer.kept.seam.meets(answer.proposed.seam, alike=False)
    return found, within


def are_legal(asked: Request, solved: Solved) -> bool:
    """Whether the signatures of a layout are, as the verifier asks."""
    graph, stages = planned_graph(GPT, asked.training_with(solved.config), solved.config), solved.layout.stages
    return all(
        solved.layout.signatures[op.name] in op_signatures(graph, op, stages.placement(op.name).mesh)
        for op in graph.ops
    )


@pytest.mark.parametrize(("configs", "least"), long_but([([CONFIGS[1]], 1), (CONFIGS, 8)], 0), ids=["few", "all"])
def test_a_mix_is_priced_as_the_deep_model_is(configs: list[PlanConfig], least: int) -> None:
    asked, differ, partly = freely(), 0, 0
    for config in configs:
        found, within = ways(asked, config)
        for (one, _), (other, _) in itertools.permutations(found, 2):
            if not one.seam.meets(other.seam, alike=one.keeps == other.keeps):
                continue
            partly += one.keeps != other.keeps
            differ += one.signatures != other.signatures
            each = (one.parts.first, one.parts.middle, other.parts.middle, one.parts.last)
            between_ns = between_places(one.messages, config)
            for share in (Fraction(1, 3), Fraction(3, 4)):
                mix = made_up(each, mixed_at(config, GPT.layers, share), config, between_ns, within.overlap)
                way = LayerMix(other.signatures, share, other.keeps)
                proposal = LayoutProposal(mix, one.signatures, one.deep_ops, one.keeps, way)
                laid_out = solved_as(proposal.config(GPT.layers), priced_in_full(asked, proposal), 0)
                assert mix.step_ns == pytest.approx(laid_out.objective_ns, rel=0.01)
                assert are_legal(asked, laid_out)
                pairs = zip(mix.peak_bytes, laid_out.peaks, strict=True)
                assert all(0.8 <= peak / true <= 1.3 for peak, true in pairs)
    assert differ >= least, differ
    assert (partly > 0) == any(config.recompute is not Recompute.NONE for config in configs)


@pytest.mark.parametrize(("configs", "least"), long_but([([CONFIGS[2]], 1), (CONFIGS, 8)], 0), ids=["few", "all"])
def test_no_mix_takes_less_than_the_bound_of_mixes(configs: list[PlanConfig], least: int) -> None:
    """Where its share is the same on all stages, in no more memory than its parts' mean holds by the program's rows."""
    asked, pairs, partly = freely(), 0, 0
    work = least_work(asked)
    for config in (one for one in configs if one.virtual_stages == 1):
        found, within = ways(asked, config)
        count = most_between(config, GPT.layers)
        for (one, first), (other, second) in itertools.permutations(found, 2):
            alike = one.keeps == other.keeps
            if not one.seam.meets(other.seam, alike=alike) or (alike and one.signatures == other.signatures):
                continue
            pairs += 1
            partly += not alike
            each = (one.parts.first, one.parts.middle, other.parts.middle, one.parts.last)
            for share in (Fraction(number, count) for number in range(count)):
                mean = first.copy()
                for at in (slice(1, MESSAGES.start, 3), slice(MESSAGES.stop + 1, ADDED.stop, 3)):
                    mean[at] = (1 - float(share)) * first[at] + float(share) * second[at]
                limited = replace(within, limit_bytes=int(within.held_bytes(config, mean)) + 1, programs={})
                where = mixed_at(config, GPT.layers, share)
                mix = made_up(each, where, config, between_places(one.messages, config), within.overlap)
                bound_ns = limited.bound(config).step_ns
                assert bound_ns is not None
                assert bound_ns <= mix.step_ns
                forms = ClosedForms(replace(asked, memory_limit_bytes=limited.limit_bytes), work)
                assert all(forms.fitting([config]))
                assert forms.first_bounds_ns([config])[0] <= mix.step_ns
    assert (pairs >= least, partly >= 4) == (True, True), (pairs, partly)


def test_single_numbers_are_no_seam() -> None:
    """Sums of squares may be added up in another layout by every layer; what layers hand on may not."""
    short, config = shortened(GPT), CONFIGS[0]
    assert short is not None
    asked = request(4, TRAINING, model=GPT, backend="cuda")
    template = LayerTemplate.of(asked, short, config, UNLIMITED)
    graph, stages = template.space.graph, template.space.stages
    signatures = solved_template(template, config, np.ones(SIZE)).signatures
    seam, seen = seam_of(graph, stages, signatures), Counter[str]()
    for op in (op for op in graph.ops if op.layer == MIDDLE):
        outside = [name for name in op.outputs if any(one.layer != MIDDLE for one in graph.consumers[name])]
        others = [one for one in template.space.options(op) if one.outputs != signatures[op.name].outputs]
        if not outside or not others:
            continue
        meets = seam_of(graph, stages, {**signatures, op.name: others[0]}).meets(seam, alike=True)
        assert meets == all(graph.values[name].spec.size == 1 for name in outside), op.name
        seen["numbers" if meets else "tensors"] += 1
    assert min(seen["numbers"], seen["tensors"]) >= 1, seen


def test_numbers_that_layers_add_up_otherwise_are_converted() -> None:
    """What adds up a number of every layer has one legal signature, however it adds up those of the other way."""
    short, config = shortened(GPT), CONFIGS[0]
    assert short is not None
    asked = request(4, TRAINING, model=GPT, backend="cuda")
    template = LayerTemplate.of(asked, short, config, UNLIMITED)
    graph, alone = template.space.graph, on_one_stage(config)
    signatures = solved_template(template, config, np.ones(SIZE)).signatures
    deep, seen = planned_graph(GPT, asked.training_with(alone), alone), Counter[str]()
    sums = [op for op in graph.ops if op.layer is None and len(op.inputs) < len(deep.by_name[op.name].inputs)]
    every = [(op.name, option) for op in sums for option in template.space.options(op)]
    for name, option in every:
        found = expanded((graph, signatures), deep, (graph, {**signatures, name: option}), {2})
        assert found is not None
        assert all(found[one.name] in op_signatures(deep, one, config.mesh) for one in deep.ops), option
        lay_out(deep, assign_stages(deep, placements_of(alone)), found, template.space.converter)
        seen[name] += option != signatures[name]
    assert seen
    assert min(seen.values()) >= 2, seen
