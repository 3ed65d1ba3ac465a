"""Rows: what columns beside the model's say of a job."""

from __future__ import annotations

from experiments.published.cells import INPUTS, MORE
from experiments.published.rows import Row, candidates, defaults
from strategy.closed_form.job import Job
from strategy.hardware.devices import DEVICES, GIB


def cells(**given: str) -> dict[str, str]:
    return dict.fromkeys((*INPUTS, *MORE), "") | {
        "framework": "Megatron-Core", "gpu": "H100", "gpu_mem_gb": "80", "num_gpus": "64", "gpus_per_node": "8",
        "arch": "llama", "layers": "32", "hidden": "4096", "heads": "32", "ffn": "14336", "vocab": "128256",
        "seq": "8192", "dtype": "bf16", "tp": "2", "pp": "2", "cp": "1", "ep": "1", "vpp": "1", "global_batch": "128",
        "micro_batch": "1", "recompute": "none", "zero_stage": "1", "attention_impl": "flash",
    } | given  # fmt: skip


def jobs(**given: str) -> list[Job]:
    return [one.job for one in candidates(cells(**given))]


def job(**given: str) -> Job:
    (found,) = jobs(**given)
    return found


def test_an_optimiser_says_how_many_moments_it_keeps() -> None:
    assert {name: job(optimizer=name).moments for name in ("", "adam", "adamw", "muon", "lion")} == {
        "": 2, "adam": 2, "adamw": 2, "muon": 1, "lion": 1,
    }  # fmt: skip


def test_selective_recompute_names_modules() -> None:
    named = job(recompute="selective(layernorm mla_up_proj mlp moe_act)")
    assert (named.recompute, named.modules) == ("selective", ("layernorm", "mla_up_proj", "mlp", "moe_act"))
    assert job(recompute="selective").modules == ("core_attn",)
    assert job(recompute="selective", framework="torchtitan").modules == ("per-op",)
    assert job(recompute="selective(per-op)", framework="torchtitan").modules == ("per-op",)
    assert job(recompute="selective(wings)").modules == ("core_attn",), "none of those that are known"


def test_the_number_of_micro_batches_stands_in_for_what_is_blank() -> None:
    assert job(micro_batch="", num_microbatches="2").micro_batch == 4, "16 replicas share 128"
    assert {one.micro_batch for one in jobs(micro_batch="")} == {1, 2}
    assert job(global_batch="", num_microbatches="6").global_batch == 16 * 6


def test_a_schedule_of_one_lap_has_no_virtual_stages() -> None:
    assert job(vpp="2", schedule="interleaved-1f1b").virtual == 2
    assert job(vpp="2", schedule="zbb").virtual == 1
    assert job(vpp="2", schedule="zbv").in_flight == 1.0


def test_an_interleaved_schedule_has_as_many_laps_as_deal_out_its_layers() -> None:
    def laps(schedule: str, **given: str) -> list[int]:
        return [one.virtual for one in jobs(vpp="", schedule=schedule, **given)]

    assert laps("1f1b") == [1]
    assert laps("interleaved-1f1b") == [2, 4], "16 layers of a stage, in up to seven laps"
    assert laps("interleaved-1f1b(v unknown)") == [2, 4]
    assert laps("interleaved-1f1b", layers="31") == [2], "no number of laps deals out 31 layers evenly"
    assert laps("interleaved-1f1b", layers="2") == [1], "a layer for each stage"
    assert laps("interleaved-1f1b", pp="1") == [1]
    assert laps("zbv") == [2], "down the stages and up again"


def test_ranks_that_share_a_sequence_share_the_weights_too() -> None:
    assert job(fsdp_shard="4", cp="2", tp="1", pp="1", framework="torchtitan").shard == 8
    assert job(fsdp_shard="1", cp="8", tp="1", pp="1", framework="torchtitan").shard == 0


def test_deepspeed_of_which_nothing_is_said_shares_everything() -> None:
    assert job(framework="DeepSpeed (HF)", zero_stage="").zero == 3
    assert job(framework="DeepSpeed ZeRO-3", zero_stage="1").zero == 1


def test_the_number_of_gpus_goes_before_that_of_replicas() -> None:
    contradicts = cells(dp="8")
    assert job(dp="8").dp == 16, "64 GPUs over 2 x 2"
    assert "dp 16, by the number of GPUs" in defaults(Row(2, contradicts, candidates(contradicts)))
    assert "dp" not in defaults(Row(2, cells(dp="16"), candidates(cells(dp="16"))))
    assert job(dp="3", num_gpus="").gpus == 12
    assert (job(num_gpus="63").gpus, job(num_gpus="3").gpus) == (60, 4), "whole replicas, and one at least"
    assert job(num_gpus="63").guessed == ("num_gpus",)


def test_what_is_tuned_for_benchmarks_multiplies_8_bits_where_nothing_is_said() -> None:
    blank = {"framework": "Megatron-Bridge (NeMo)", "dtype": "", "recompute": ""}
    assert [(one.precision, one.recompute) for one in jobs(**blank)] == [("eight", "none")]
    assert {one.precision for one in jobs(**blank | {"gpu": "A100"})} == {"half"}
    assert job(**blank).guessed == ()
    assert {one.precision for one in jobs(**blank | {"framework": "InternEvo"})} == {"half"}


def test_attention_of_old_deterministic_tests_is_not_fused_but_that_of_releases_is() -> None:
    old = {"framework_version": "0.12.0 lts", "attention_impl": "auto"}
    assert not job(**old).flash
    assert job(**old, num_gpus="").flash
    assert job(**old | {"framework_version": "0.16.0 lts"}).flash


def test_what_was_taken_is_said() -> None:
    blank = cells(micro_batch="", recompute="")
    assert defaults(Row(2, blank, candidates(blank))) == "micro_batch 1 or 2; recompute none or selective or full"


def test_systems_that_share_all_out_do_so_where_a_row_is_blank() -> None:
    open_cut = {"tp": "", "pp": "", "cp": "", "vpp": "", "zero_stage": ""}
    for framework in ("torchtitan", "llm-foundry (Composer FSDP)", "NeMo AutoModel", "DeepSpeed (HF)"):
        found = job(framework=framework, **open_cut)
        assert (found.tp, found.pp, found.cp, found.zero, found.guessed) == (1, 1, 1, 3, ())
    (cut,) = {(one.tp * one.pp, one.guessed) for one in jobs(**open_cut, params_b="8")}
    assert cut == (2, ("cut",)), "as little as half of the memory holds"


def test_a_device_without_a_sheet_is_the_middle_one_of_its_memory() -> None:
    rates = {one.half for one in DEVICES.values() if one.memory_bytes == 80 * GIB}
    stand_in = job(gpu="NPU-9", gpu_mem_gb="80").device
    assert min(rates) < stand_in.half < max(rates)
    assert stand_in.name == "unknown"


def test_what_is_not_known_by_name_is_guessed() -> None:
    found = job(framework="Caffe", dtype="int3", recompute="full")
    assert (found.framework, found.precision, found.guessed) == ("unknown", "half", ("framework", "dtype"))
