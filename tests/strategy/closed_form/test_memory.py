"""Memory by cause: parameters as counted by hand, stages and schedules as their papers draw them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from strategy.closed_form.calibration import shipped
from strategy.closed_form.job import Job, Jobs, Shape
from strategy.closed_form.memory import Footprint, fitting, footprint, lacking, overflows
from strategy.closed_form.price import Pricing
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
    """Three layers of 12 h^2 + 8 h parameters and the logits' weights: 2 bytes each, 4 of gradients, 12 of Adam.

    Of one layer, gradients are there once more, in half precision, as products make them.
    """
    layer = 12 * 512**2 + 8 * 512
    parameters = 3 * layer + 50304 * 512
    found = held(TEST)
    assert found.parameters[0] == 2 * parameters
    assert found.gradients[0] == 4 * parameters + 2 * layer
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


def test_stages_keep_the_weights_that_they_gathered_and_their_gradients_where_all_is_shared_out() -> None:
    """Two replicas of three layers: of a pipeline all of a stage is there, without one two layers of twelve."""
    staged = held(replace(TEST, framework="torchtitan", zero=3))
    layer = 12 * 512**2 + 8 * 512
    stage = 3 * layer + 50304 * 512
    assert staged.parameters[0] == 2 * (stage / 2 + stage)
    assert staged.gradients[0] == 4 * stage
    alone = held(replace(TEST, framework="torchtitan", zero=3, pp=1))
    assert alone.parameters[0] == pytest.approx(2 * ((12 * layer + 50304 * 512) / 8 + 2 * layer))


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


def test_an_optimiser_with_one_moment_holds_four_bytes_less_per_parameter() -> None:
    adam, muon = held(TEST, replace(TEST, moments=1)).optimiser
    assert muon == adam * 8 / 12


def test_narrow_operands_are_kept_narrow_and_held_twice_where_hardware_wants_rows(job: Make) -> None:
    """Per token of a layer of 10 h and 6 f bytes: norms' outputs, attention's and the gate's; 1 byte less each."""
    shape = Shape.transformer(layers=32, hidden=4096, heads=32, ffn=14336, vocab=128256, kv_heads=8, gated=True)
    base = job(shape=shape, framework="nemo", device=device("B200"), tp=1, pp=1, gpus=8, recompute="none", flash=True)
    half, eight = held(base, replace(base, precision="eight")).activations
    kept = 8 * 4096 + 4 * 4096 + 4 * 1024 + 6 * 14336
    assert eight / half == pytest.approx((kept - 2 * 4096 + 4096 - 14336) / kept)
    devices = [replace(base, precision="eight", device=device(name)) for name in ("B200", "H100")]
    once, twice, blocks = held(*devices, replace(base, precision="mx8")).parameters
    assert twice == blocks == 2 * once


def test_what_selective_recompute_names_is_not_kept(job: Make) -> None:
    base = job(framework="megatron-core", recompute="selective", flash=False)
    none, core, more = held(
        replace(base, recompute="none"), base, replace(base, modules=("core_attn", "layernorm", "mlp"))
    ).activations
    assert more < core < none
    fused = held(replace(base, flash=True, recompute="none")).activations[0]
    assert core == fused, "scores are all that is computed again"


def test_what_the_allocator_can_give_back_is_no_alarm(job: Make) -> None:
    base = job(framework="torchtitan", device=device("H100"), tp=1, pp=1, gpus=8, zero=3, recompute="none", flash=True,
               shape=Shape.transformer(layers=32, hidden=4096, heads=32, ffn=14336, vocab=128256, gated=True),
               micro_batch=1, global_batch=8)  # fmt: skip
    jobs = [replace(base, seq=seq) for seq in range(2048, 20480, 1024)]
    columns = Jobs.of(jobs)
    found = held(*jobs)
    alarms = overflows(columns, found)
    spare = (found.driver > columns.memory_bytes) & ~alarms
    assert alarms[-1]
    assert not alarms[0]
    assert spare.any()
    assert list(alarms) == sorted(alarms)


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


def test_where_recomputing_is_one_switch_what_does_not_fit_is_computed_again_as_a_whole(job: Make) -> None:
    """A step takes what one takes that says that it recomputes all; memory is full, as where a share is recomputed."""
    large = job(framework="nemo-automodel", device=device("H100"), tp=1, pp=1, gpus=64, zero=3, recompute="none",
                precision="half", micro_batch=2, flash=True, seq=8192)  # fmt: skip
    columns = Jobs.of([large, replace(large, recompute="full"), replace(large, micro_batch=1, seq=512)])
    found = footprint(columns, measure(columns), shipped().constants)
    assert found.allocated[0] > 80 * GIB > found.allocated[1]
    assert list(lacking(columns, found)) == [1, 0, 0]
    assert list(fitting(columns, found).allocated[1:]) == list(found.allocated[1:])
    seconds = Pricing(columns, shipped().constants).seconds(shipped().constants)
    assert seconds[0] == pytest.approx(seconds[1])


def test_one_rank_shares_nothing_out() -> None:
    alone = replace(TEST, framework="nemo-automodel", gpus=4, last_stage=False)
    assert held(replace(alone, zero=3)).parameters[0] == held(replace(alone, zero=1)).parameters[0]
