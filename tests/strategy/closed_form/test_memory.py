"""Memory by cause: parameters as counted by hand, stages and schedules as their papers draw them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from strategy.closed_form.calibration import shipped
from strategy.closed_form.job import Job, Jobs, Shape
from strategy.closed_form.memory import Footprint, fitting, footprint
from strategy.closed_form.work import measure
from strategy.hardware.devices import GIB, device
from tests.strategy.closed_form.conftest import BASE, Make

SMALL = Shape.transformer(layers=12, hidden=512, heads=8, ffn=2048, vocab=50304)
TEST = replace(BASE, shape=SMALL, framework="megatron-core-tested", gpus=8, tp=1, pp=4, global_batch=32, micro_batch=4,
               seq=1024, recompute="none", flash=True, last_stage=True)  # fmt: skip


def held(*jobs: Job) -> Footprint:
    columns = Jobs.of(jobs)
    return footprint(columns, measure(columns), shipped().constants)


def test_states_of_the_last_stage_are_those_of_the_hand() -> None:
    """Three layers of 12 h^2 + 8 h parameters and the logits' weights: 2 bytes each, 4 of gradients, 12 of Adam."""
    parameters = 3 * (12 * 512**2 + 8 * 512) + 50304 * 512
    found = held(TEST)
    assert found.parameters[0] == 2 * parameters
    assert found.gradients[0] == 4 * parameters
    assert found.optimiser[0] == 12 * parameters
    spread = held(replace(TEST, zero=1))
    assert spread.optimiser[0] == 12 * parameters / 2, "two replicas"


def test_unfused_attention_keeps_five_bytes_for_each_pair_of_positions_and_head() -> None:
    fused, unfused = held(TEST, replace(TEST, flash=False)).activations
    assert unfused - fused == 3 * 5 * 8 * 1024**2 * 4


def test_stages_hold_what_their_schedule_has_in_flight() -> None:
    """A first stage of 1F1B holds as many micro-batches as there are stages, the last one; interleaved ones more."""
    last, first = held(TEST, replace(TEST, last_stage=False, shape=replace(SMALL, vocab=128))).activations
    assert first == pytest.approx(4 * last)
    plain, interleaved = held(TEST, replace(TEST, virtual=3)).activations
    assert interleaved == pytest.approx(3 * plain), "nine chunks of one layer, over three layers"
    whole, half, least = held(*(replace(TEST, in_flight=share, shape=replace(SMALL, layers=16)) for share in
                                (1, 1 / 2, 1 / 4))).activations  # fmt: skip
    assert (half, least) == pytest.approx((whole / 2, whole / 4))


def test_frozen_weights_have_no_gradients_and_no_optimiser(job: Make) -> None:
    full, adapted = job(recompute="none"), job(recompute="none", frozen=True, adapter_rank=16)
    found = held(full, adapted)
    assert found.gradients[1] == found.optimiser[1] == 0
    assert found.activations[1] <= found.activations[0]


def test_layers_that_are_computed_again_count_one_by_one(job: Make) -> None:
    ways = [job(recompute="none"), *(job(recompute="full", recompute_layers=n) for n in (12, 24, 36)), job()]
    kept = held(*ways).activations
    assert list(kept) == sorted(kept, reverse=True)
    assert np.diff(kept) == pytest.approx(np.diff(kept)[0])


def test_twice_the_replicas_at_a_fixed_batch_hold_no_more(job: Make) -> None:
    for zero in (0, 1, 3):
        few, many = held(*(job(gpus=gpus, zero=zero, global_batch=256) for gpus in (64, 128))).allocated
        assert many <= few


def test_experts_are_cut_by_both_of_their_degrees() -> None:
    routed = Shape(layers=12, hidden=512, heads=8, kv_heads=8, head_qk=64, head_v=64, vocab=50304,
                   attention_layers=12, moe_layers=12, experts=8, top_k=2, expert_ffn=2048)  # fmt: skip
    job = replace(TEST, shape=routed, pp=1, tp=2, ep=2)
    whole, cut = held(job, replace(job, etp=2)).parameters
    assert whole - cut == 2 * 12 * 4 * 2 * 512 * 2048 / 2


def test_what_runs_fits_and_states_are_never_computed_again(job: Make) -> None:
    large = job(framework="nemo", device=device("B200"), tp=1, pp=1, gpus=64, recompute="none", frozen=True,
                precision="eight", micro_batch=8)  # fmt: skip
    columns = Jobs.of([large])
    found = footprint(columns, measure(columns), shipped().constants)
    fits = fitting(columns, found)
    assert found.allocated[0] > 180 * GIB > fits.allocated[0]
    assert fits.parameters[0] == found.parameters[0]
