"""`sbplan price`: its document, what it says, what it refuses, and what the search would do instead."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from experiments.cli import main
from tests.support.trainer_configs import ROOT

LLAMA = ROOT / "torchtitan" / "llama3__llama3_8b.toml"
SMALL = """--num-layers 4 --hidden-size 128 --num-attention-heads 4 --seq-length 128 --max-position-embeddings 128
--vocab-size 256 --make-vocab-size-divisible-by 1 --micro-batch-size 1 --global-batch-size 16 --bf16 --lr 1e-3
--tensor-model-parallel-size 2 --new-flag 3 --hidden-dropout 0.1
"""


def document(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, object]:
    assert main(["price", *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert isinstance(found, dict)
    return found


def test_the_document_has_the_keys_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--gpus", "64", "--gpu", "h100", "--no-search", "--tokens", "15T")
    found = document(capsys, str(LLAMA), *words)
    contract = {"step_time_s", "lo_s", "hi_s", "tokens_per_s_per_gpu", "mfu", "peak_memory_bytes", "fits",
                "memory_by_cause", "unused", "search"}  # fmt: skip
    assert contract <= set(found)
    assert (found["search"], found["search_left_out"], found["not_understood"]) == (None, "--no-search", [])
    tokens = found["tokens_per_s_per_gpu"]
    assert tokens == pytest.approx(64 * 8192 / found["step_time_s"] / 64)
    training = found["training"]
    kept = training["lost"]["goodput"]
    assert training["days"] == pytest.approx(15e12 / tokens / 64 / 86400 / kept, rel=1e-6)
    assert training["lo_days"] < training["days"] < training["hi_days"]
    assert sum(found["memory_by_cause"].values()) == found["peak_memory_bytes"]
    assert found["unused"]["lr_scheduler.warmup_steps"] == "figures of the optimiser and its schedule"
    assert set(found["unpriced"]) == {"compile.components", "profiling.enable_profiling"}
    assert found["unused"]["compile.enable"] == "False, as it stands, changes nothing"
    assert found["defaults"]["parallelism.fsdp_reshard_after_forward"] == "default"
    assert document(capsys, str(LLAMA), *words) == found, "the same every time"


def test_what_fits_to_the_last_byte_has_room_that_the_allocator_keeps(capsys: pytest.CaptureFixture[str]) -> None:
    """NeMo's Llama-3.1-405B in FP8 on 256 H100: the allocator keeps all that there is, and gives it back."""
    path = ROOT / "nemo" / "llama31_405b_v5.0__DGXH100_64x8x288xtp8pp8cp2.yaml"
    found = document(capsys, str(path), "--gpus", "256", "--gpu", "h100", "--no-search")
    assert found["fits"]
    kept = found["memory_by_cause"]["kept by the allocator"]
    free = found["memory_limit_bytes"] - found["peak_memory_bytes"]
    assert found["memory_margin_bytes"] == free + kept > 2**30
    assert main(["price", str(path), "--gpus", "256", "--gpu", "h100", "--no-search"]) == 0
    said = capsys.readouterr().err
    assert "too much" not in said
    assert "GiB from running out: parameters" in said
    assert "ZeRO 1, FP8" in said


def test_days_have_failures_in_them_as_those_of_a_search(capsys: pytest.CaptureFixture[str]) -> None:
    """Eight nodes write the state of 8.03 billion parameters under AdamW; a GPU in 64 fails every 100 hours."""
    words = (str(LLAMA), "--gpus", "64", "--gpu", "h100", "--no-search", "--tokens", "1B")
    never = document(capsys, *words, "--mtbf", "never")["training"]
    failing = document(capsys, *words, "--mtbf", "6400 h", "--storage", "1 GB/s")["training"]
    assert never["lost"] is None
    lost = failing["lost"]
    assert lost["mtbf_s"] == 100 * 3600
    assert lost["stall_s"] == pytest.approx(3 * 4 * 8.03e9 / 8e9, rel=0.01)
    assert failing["days"] == pytest.approx(never["days"] / lost["goodput"])
    assert main(["price", *words]) == 0
    said = capsys.readouterr().err
    assert "assumed: a GPU fails every 50,000 h (--mtbf" in said
    assert re.search(r"days \(.* to .*\), .* GPU-hours; \d\d\.\d% of the time is kept", said)


def test_fewer_tokens_than_a_step_takes_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    words = (str(LLAMA), "--gpus", "64", "--gpu", "h100", "--no-search", "--tokens", "7")
    assert main(["price", *words]) == 2
    assert "--tokens: less than a step (got 7, expected at least the 524288 of one step)" in capsys.readouterr().err


@pytest.mark.long
def test_the_search_says_what_it_would_do_and_why(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.sh"
    path.write_text(SMALL)
    assert main(["price", str(path), "--gpus", "4", "--gpu", "h100", "--time-limit", "20", "--json"]) == 0
    out, said = capsys.readouterr()
    found = json.loads(out)
    search = found["search"]
    assert search["config"]["tp"] == 1
    assert search["step_time_s"] < found["step_time_s"]
    saved = sum(search["saved_s"].values())
    assert saved == pytest.approx(found["step_time_s"] - search["step_time_s"], rel=1e-6)
    assert "times as fast: dp " in said
    assert "since: " in said
    assert found["not_understood"] == ["new-flag"]
    assert "not understood: new-flag" in said
    assert "not priced: hidden-dropout (masks of dropout are kept, and drawn)" in said


def test_what_we_have_no_model_of_is_priced_and_not_searched(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "megatron" / "t5__t5_mcore_te_tp2_pp1_vp1_sequence_parallel.yaml"
    found = document(capsys, str(path), "--gpu", "a100-80")
    assert found["search"] is None
    assert "no model of ours is like this" in str(found["search_left_out"])
    found = document(capsys, str(LLAMA), "--gpus", "8", "--gpu", "B300")
    assert found["search_left_out"] == "no preset has nodes of B300"


def test_deepspeed_is_priced_with_what_calls_it(capsys: pytest.CaptureFixture[str]) -> None:
    folder = ROOT / "deepspeed"
    words = ("--model", str(folder / "tr11_176B__args.sh"), "--gpus", "384", "--gpu", "A100-80", "--no-search")
    beside = document(capsys, str(folder / "tr11_176B.json"), *words)
    called = document(capsys, str(folder / "tr11_176B__args.sh"), *words[2:])
    assert called["step_time_s"] == beside["step_time_s"]
    alone = document(capsys, str(folder / "jz_ds_zero3.json"), "--model", "gpt2", "--seq", "512",
                     "--cluster", "dgx-a100:2", "--no-search")  # fmt: skip
    assert alone["read"]["sequence"] == 512
    assert "parameters" in alone["read"]["offload"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--gpus", "8"), "nothing says on what it trains"),
        (("--cluster", "dgx-h100:1", "--gpus", "8"), "both say what there is"),
        (("--gpus", "8", "--gpu", "H101"), "no data sheet of this GPU"),
        (("--gpus", "12", "--gpu", "h100"), "no whole nodes"),
        (("--gpus", "64", "--gpu", "h100", "--from", "nanotron"), "is missing"),
    ],
)
def test_what_cannot_be_priced_is_refused(
    words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["price", str(LLAMA), *words]) == 2
    assert message in capsys.readouterr().err
