"""Estimates: each moves the right way when the machine or the plan does."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.base.errors import InputError
from strategy.closed_form.calibration import shipped
from strategy.closed_form.estimate import estimate
from strategy.closed_form.job import Job, Jobs
from strategy.closed_form.price import Pricing
from strategy.hardware.devices import DEVICES, device
from tests.strategy.closed_form.conftest import BASE, GPT, Make


def seconds(*jobs: Job) -> list[float]:
    return [float(value) for value in estimate(jobs, shipped()).seconds]


def test_the_achieved_rate_is_that_of_large_models_on_a100() -> None:
    """39 B with full recompute: between 120 and 190 TFLOP/s counted as executed."""
    flop = 8 * 39.1e9 * BASE.global_batch * BASE.seq
    assert 120e12 < flop / BASE.gpus / seconds(BASE)[0] < 190e12


def test_recompute_costs_a_forward_pass(job: Make) -> None:
    full, none = seconds(job(), job(recompute="none"))
    assert 1.15 < full / none < 1.45


def test_interleaving_shortens_the_bubble(job: Make) -> None:
    plain, interleaved = seconds(job(pp=8, global_batch=64), job(pp=8, global_batch=64, virtual=3))
    assert interleaved < plain


@pytest.mark.parametrize(("release", "times"), [(0.0, 1.0), (1.0, 2.0)])
def test_messages_of_interleaved_stages_take_turns_where_all_parts_are_timed(
    job: Make, release: float, times: float
) -> None:
    """What the host spends on one message to a neighbour and one from it, of tests before and after release 0.16."""
    constants = dict(shipped().constants) | {"pp.exposed": 1e-12}

    def message(virtual: int) -> float:
        tested = job(framework="megatron-core-tested", virtual=virtual, release=release)
        return float(Pricing(Jobs.of([tested]), constants).terms(constants).stages.message[0]) / virtual

    assert message(3) / message(1) == pytest.approx(times)


def test_a_pipeline_of_few_micro_batches_is_mostly_bubble(job: Make) -> None:
    short, long = seconds(job(gpus=64, pp=8, global_batch=2), job(gpus=64, pp=8, global_batch=128))
    assert long / short < 16


def test_tensor_parallelism_over_nodes_pays_for_the_network(job: Make) -> None:
    near, far = seconds(job(tp=8), job(tp=16, pp=2))
    assert far > 1.3 * near


def test_half_the_network_hurts_what_is_bound_by_it_alone(job: Make) -> None:
    bound = job(tp=1, pp=1, zero=3, framework="deepspeed-zero", global_batch=64, micro_batch=1)
    slow, fast = seconds(replace(bound, nic_bytes_per_s=12.5e9), bound)
    assert slow / fast >= 1.6
    alone = job(gpus=8, tp=8, pp=1, global_batch=64)
    slow, fast = seconds(replace(alone, nic_bytes_per_s=12.5e9), alone)
    assert slow / fast <= 1.02


def test_newer_gpus_are_faster_and_memory_of_one_kind_does_not_matter(job: Make) -> None:
    names = ["V100-32", "A100-80", "H100", "B200"]
    times = seconds(*(job(device=DEVICES[name]) for name in names))
    assert times == sorted(times, reverse=True)


def test_an_unknown_gpu_works_from_its_data_sheet_and_is_flagged(job: Make) -> None:
    other = replace(device("H100"), name="X1", half=1500e12)
    found = estimate([job(), job(device=other)], shipped())
    assert found.extrapolated == ((), ("device",))
    width = found.high / found.low
    assert width[1] == pytest.approx(width[0] ** 1.5)
    assert found.seconds[1] < found.seconds[0]


def test_what_no_run_was_like_is_flagged(job: Make) -> None:
    found = estimate([job(), job(seq=2**17), job(framework="oneflow", gpus=512, global_batch=1024)], shipped())
    beside, long, elsewhere = found.extrapolated
    assert beside == ()
    assert long == ("seq",)
    assert "gpus" in elsewhere


def test_zero_stages_hold_less(job: Make) -> None:
    held = estimate([job(zero=stage, pp=1, gpus=256, global_batch=2048) for stage in (0, 1, 3)], shipped()).footprint
    assert list(held.allocated) == sorted(held.allocated, reverse=True)
    assert (held.driver > held.reserved).all()
    assert (held.reserved >= held.allocated).all()


def test_memory_that_cannot_be_enough_is_an_alarm(job: Make) -> None:
    fits, not_fits = job(framework="megatron-deepspeed"), job(framework="megatron-deepspeed", tp=1, pp=1)
    assert list(estimate([fits, not_fits], shipped()).out_of_memory) == [False, True]


def test_adapters_are_never_slower_than_training_everything(job: Make) -> None:
    for framework in ("megatron-core", "nemo", "nemo-automodel"):
        for zero in (0, 3):
            full, adapted = seconds(*(job(framework=framework, zero=zero, pp=1, recompute="none", frozen=frozen,
                                          adapter_rank=16 * frozen) for frozen in (False, True)))  # fmt: skip
            assert adapted < full


@pytest.mark.parametrize("name", ["H100", "B200", "GB200", "MI300X", "MI355X", "TPU-v7x"])
def test_eight_bits_are_never_slower_than_sixteen_at_large_sizes(name: str, job: Make) -> None:
    narrow = ("eight", "mx8", "four") if name in ("B200", "GB200") else ("eight",)
    half, *narrower = seconds(*(job(device=device(name), framework="nemo", precision=precision)
                                for precision in ("half", *narrow)))  # fmt: skip
    assert all(time <= half for time in narrower)


def test_more_experts_at_equal_active_parameters_are_never_faster(job: Make) -> None:
    shapes = [replace(GPT, dense_layers=0, moe_layers=48, experts=experts, top_k=2, expert_ffn=8192)
              for experts in (8, 16, 64, 256)]  # fmt: skip
    for ep in (1, 8):
        times = seconds(*(job(framework="megatron-core", shape=shape, ep=ep, tp=1, zero=1, recompute="none", flash=True)
                          for shape in shapes))  # fmt: skip
        assert times == sorted(times)


def test_a_second_attention_and_fewer_positions_make_a_decoder(job: Make) -> None:
    """A decoder's layer at all positions costs more than an encoder's; at a quarter of them, less."""
    encoder = replace(GPT, layers=24, attention_layers=24, dense_layers=24)
    whole = replace(encoder, attention_layers=36, decoder_layers=12)
    plain, long, short = seconds(*(job(shape=shape, recompute="none") for shape in
                                   (encoder, whole, replace(whole, decoder_share=0.25))))  # fmt: skip
    assert short < plain < long


def test_layers_computed_again_cost_what_they_are_of_all(job: Make) -> None:
    none, half, full = seconds(job(recompute="none"), job(recompute_layers=24), job())
    assert half - none == pytest.approx((full - none) / 2, rel=0.05)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"gpus": 0}, "gpus must be a whole number of at least 1"),
        ({"tp": 3}, "tp 3 x pp 4 x cp 1 does not divide 64 GPUs"),
        ({"nic_bytes_per_s": -1.0}, "nic_bytes_per_s must be above zero"),
        ({"nic_bytes_per_s": float("nan")}, "nic_bytes_per_s must be above zero"),
        ({"recompute": "some"}, "recompute must be none, selective or full"),
        ({"framework": "caffe"}, "framework"),
        ({"precision": "ternary"}, "precision"),
        ({"fabric": "pigeons"}, "fabric"),
    ],
)
def test_what_cannot_be_is_refused(changes: dict[str, object], message: str, job: Make) -> None:
    with pytest.raises(InputError, match=message):
        job(**changes)
