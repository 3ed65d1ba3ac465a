"""Reading: all published configurations, by all trainers; what becomes of their keys; what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strategy.base.errors import InputError
from strategy.layout.schedule import Schedule
from strategy.models.decoder import DecoderConfig
from strategy.trainers.architecture import description
from strategy.trainers.read import TRAINERS, read_configuration, read_document
from strategy.trainers.trained import TrainerName, batch_of, micro_batch_of
from tests.campaigns import trainer_keys
from tests.support.trainer_configs import ROOT, ShippedConfiguration, shipped_configurations
from tests.support.trainer_pins import trainer_pins

SHIPPED = shipped_configurations()


def read(name: str, caller: str = "") -> object:
    return read_configuration(ROOT / name, model=str(ROOT / caller) if caller else "").trained


@pytest.mark.parametrize("one", SHIPPED, ids=lambda one: one.name)
def test_every_published_configuration_is_read_and_every_key_understood(one: ShippedConfiguration) -> None:
    found = one.read(one.documents())
    assert found.not_understood == ()
    assert found.trained.micro_batch or found.trained.global_batch
    assert all(found.unused.values())
    assert not set(found.unused) & set(found.unpriced)


def test_every_trainer_has_fifteen_that_differ() -> None:
    folders: dict[str, set[object]] = {}
    for one in SHIPPED:
        folders.setdefault(one.path.parent.name, set()).add(one.read(one.documents()).trained)
    assert set(folders) == set(TRAINERS)
    assert sum(len(found) for found in folders.values()) >= 100
    assert {name: len(found) for name, found in folders.items() if len(found) < 15} == {}


@pytest.mark.long
def test_a_key_that_is_not_listed_changes_what_is_read() -> None:
    """The whole is the campaign `trainer-keys`."""
    outcome = trainer_keys.run(600, seed=3)
    assert outcome.failures == []
    assert outcome.unmet() == []


SHORT_GPT = {"num-layers": 2, "hidden-size": 64, "num-attention-heads": 2, "seq-length": 32, "global-batch-size": 8}


@pytest.mark.parametrize(
    ("key", "value", "changes"),
    [
        ("clip-grad", 1.0, False),
        ("clip-grad", 0.0, True),
        ("attention-dropout", 0.0, False),
        ("attention-dropout", 0.1, True),
        ("distributed-backend", "nccl", False),
        ("distributed-backend", "gloo", True),
        ("log-interval", 1, False),
        ("log-num-zeros-in-grad", True, True),
        ("log-params-norm", True, True),
        ("timing-log-level", 2, True),
        ("async-save", True, False),
        ("muon-momentum", 0.9, False),
        ("muon-tp-mode", "distributed", True),
        ("record-memory-history", True, True),
        ("sync-tp-duplicated-parameters", True, True),
    ],
)
def test_what_takes_time_at_some_value_is_not_said_to_take_none(key: str, value: object, changes: bool) -> None:
    found = read_document({**SHORT_GPT, "micro-batch-size": 1, key: value}, Path("run.yaml"), trainer="megatron")
    assert (key in found.unpriced, key in found.unused) == (changes, not changes)


def test_megatron_says_what_bloom_was() -> None:
    found = read("deepspeed/tr11_176B.json", "deepspeed/tr11_176B__args.sh")
    model = found.model
    assert (model.layers, model.width, model.heads, model.vocabulary) == (70, 14336, 112, 250880)
    assert (found.trainer, found.tp, found.pp, found.zero, found.gpus) == (TrainerName.DEEPSPEED, 4, 12, 0, 192)
    assert (found.half, found.recompute, found.micro_batch, found.global_batch) == ("bf16", "full", 2, 2048)


def test_a_layout_of_the_pipeline_says_its_laps() -> None:
    text = {"num-layers": 6, "hidden-size": 64, "num-attention-heads": 4, "seq-length": 8, "micro-batch-size": 1,
            "vocab-size": 128, "pipeline-model-parallel-size": 2}  # fmt: skip
    found = read_document({**text, "pipeline-model-parallel-layout": "Et|(tt|)*2tL"}, Path("x.sh")).trained
    assert (found.virtual, found.schedule) == (2, Schedule.INTERLEAVED)
    with pytest.raises(InputError, match="with 6 t in all"):
        read_document({**text, "pipeline-model-parallel-layout": "Et|tL"}, Path("x.sh"))


def test_torchtitan_counts_its_batch_by_ranks() -> None:
    found = read_document(
        {"model": {"name": "llama3", "flavor": "8B"}, "training": {"local_batch_size": 4, "seq_len": 8192},
         "parallelism": {"data_parallel_shard_degree": 4, "data_parallel_replicate_degree": 2,
                         "tensor_parallel_degree": 2}}, Path("x.toml")).trained  # fmt: skip
    assert (found.gpus, found.replicas, found.zero, found.sequence_parallel) == (16, 2, 3, True)
    assert batch_of(found, 16) == 32
    pins = trainer_pins(found, 16)
    assert (pins.num_micro_batches, pins.dp, pins.zero_stage, pins.zero_group) == (1, 8, 3, 4)
    with pytest.raises(InputError, match="the groups do not divide the ranks"):
        trainer_pins(replace(found, replicas=3), 16)


def test_a_named_configuration_of_torchtitan_is_overridden() -> None:
    plain = ["--module", "llama3", "--config", "llama3_8b"]
    document = dict(zip([word[2:] for word in plain[::2]], plain[1::2], strict=True))
    found = read_document(document, Path("run.sh")).trained
    changed = read_document({**document, "parallelism.tensor-parallel-degree": 2}, Path("run.sh")).trained
    assert changed == replace(found, tp=2, sequence_parallel=True)
    with pytest.raises(InputError, match=r"no such configuration is known.*llama3_8b"):
        read_document({**document, "config": "llama3_8c"}, Path("run.sh"))


@pytest.mark.parametrize(
    ("words", "sequence", "micro_batch"),
    [
        ({"training.seq_len": 4096}, 4096, 2),
        ({"training.local_batch_size": 4}, 8192, 4),
        ({"training.seq_len": 4096, "training.local-batch-size": 4}, 4096, 4),
    ],
)
def test_what_releases_before_called_otherwise_overrides_a_named_configuration(
    words: dict[str, int], sequence: int, micro_batch: int
) -> None:
    found = read_document({"module": "llama3", "config": "llama3_8b", **words}, Path("run.sh"))
    assert (found.trained.sequence, found.trained.micro_batch) == (sequence, micro_batch)
    assert not found.not_understood


def test_a_matrix_of_recipes_is_read_for_a_gpu() -> None:
    path = ROOT / "megatron-bridge" / "perf__llama3_8b_llm_pretrain.yaml"
    assert read_configuration(path, gpu="h100").trained.cp == 2
    assert read_configuration(path, gpu="gb200").trained.cp == 1


@pytest.mark.parametrize(
    ("document", "name", "message"),
    [
        ({"nothing": 1}, "x.json", "of no trainer that is known"),
        ({"train_batch_size": 8}, "x.json", "is missing.*a model"),
        ({"num-layers": 2, "hidden-size": 8, "num-attention-heads": 2, "seq-length": 8, "micro-batch-size": 0,
          "recompute-granularity": "sometimes"}, "x.sh", "2 problems"),
        ({"num-layers": 2, "deepspeed-config": "gone.json"}, "x.sh", "not beside the arguments"),
        ({"model": {"name": "llama3", "flavor": "9B"}}, "x.toml", "a model that is known"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_told(document: dict[str, object], name: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        read_document(document, Path(name))


def test_learned_positions_of_any_model_are_what_a_search_lays_out() -> None:
    """Megatron's default beside a head of its own, which no GPT has; ALiBi has no parameters, and that is said."""
    words = {"num-layers": 4, "hidden-size": 128, "num-attention-heads": 4, "seq-length": 64,
             "max-position-embeddings": 64, "micro-batch-size": 1, "vocab-size": 256,
             "untie-embeddings-and-output-weights": True}  # fmt: skip
    found = read_document(words, Path("run.sh"))
    model = description(found.trained.model, 64)
    assert isinstance(model, DecoderConfig)
    assert model.learned_positions
    assert found.assumed == ()
    (said,) = read_document({**words, "position-embedding-type": "alibi"}, Path("run.sh")).assumed
    assert "ALiBi" in said


def test_what_deepspeed_leaves_to_its_caller_is_stated(tmp_path: Path) -> None:
    """Transformers fills `auto` in; a file that leaves bf16 open is trained in bf16, not in single precision."""
    path = tmp_path / "ds.json"
    document: dict[str, Any] = {
        "zero_optimization": {"stage": 3},
        "bf16": {"enabled": "auto"},
        "fp16": {"enabled": "auto"},
    }
    document |= {"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
    path.write_text(json.dumps(document))
    read = read_configuration(path, model="llama2-7b")
    assert (read.trained.half, read.trained.precision, read.trained.micro_batch) == ("bf16", "half", 1)
    stated = "\n".join(read.assumed)
    for line in (
        'bf16.enabled is "auto"',
        'fp16.enabled is "auto"',
        'micro_batch_size_per_gpu is "auto"',
        ": false",
        ": true",
    ):
        assert line in stated
    document |= {"bf16": {"enabled": False}, "train_micro_batch_size_per_gpu": 4}
    path.write_text(json.dumps(document))
    read = read_configuration(path, model="llama2-7b")
    assert (read.trained.half, read.trained.micro_batch) == ("single", 4)
    assert "micro_batch_size" not in "".join(read.assumed)
    path.write_text(json.dumps({"zero_optimization": {"stage": 1}, "train_batch_size": 64}))
    read = read_configuration(path, model="llama2-7b")
    assert not any("micro_batch_size" in line for line in read.assumed)
    assert [micro_batch_of(read.trained, gpus) for gpus in (8, 64)] == [8, 1]
    assert [batch_of(read.trained, gpus) for gpus in (8, 64)] == [64, 64]
    with pytest.raises(InputError, match="64 samples for 48 data-parallel ranks, 1 times each"):
        batch_of(read.trained, 48)
    path.write_text(json.dumps({"train_batch_size": 64, "gradient_accumulation_steps": 2}))
    read = read_configuration(path, model="llama2-7b")
    assert micro_batch_of(read.trained, 8) == 4
    assert trainer_pins(read.trained, 8).num_micro_batches == 2


MEGATRON = """--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --vocab-size 32000
    --max-position-embeddings 4096 --micro-batch-size 1 --global-batch-size 512"""


def test_degrees_that_do_not_divide_what_they_cut_are_told(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(f"{MEGATRON} --pipeline-model-parallel-size 5")
    assert any("a divisor of 32 layers: pp 5" in line for line in read_configuration(path).assumed)
    path.write_text(f"{MEGATRON} --tensor-model-parallel-size 64")
    with pytest.raises(InputError, match=r"no multiple of the tensor degree \(got '32 heads, tp 64'\)"):
        batch_of(read_configuration(path).trained, 64)


def test_slips_of_the_pen_are_told(tmp_path: Path) -> None:
    path = tmp_path / "train.sh"
    path.write_text(MEGATRON.replace("--num-layers", "--num-layer"))
    with pytest.raises(InputError, match=r"num-layers: is missing .*; is 'num-layer' meant\?"):
        read_configuration(path)
    path.write_text(f"{MEGATRON} --tensor-model-paralel-size 8")
    read = read_configuration(path)
    assert "tensor-model-parallel-size is 1, unless tensor-model-paralel-size means it" in read.assumed
    assert read.not_understood == ("tensor-model-paralel-size",)
