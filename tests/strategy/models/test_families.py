"""Transformers, recommenders, faces: published sizes, and small ones trained on ranks as on one device."""

from __future__ import annotations

import math
import random
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strategy.base.errors import InputError
from strategy.graph.graph import Phase
from strategy.models import PRESETS, Model, find_model
from strategy.models.arcface import ArcFaceConfig
from strategy.models.bert import BertConfig
from strategy.models.llama import LlamaConfig
from strategy.models.mixtral import MixtralConfig
from strategy.models.vit import VitConfig
from strategy.models.wide_deep import WideDeepConfig
from strategy.passes.training import Training, training_graph
from strategy.plan.plan import read_plan, write_plan
from strategy.sbp.tensor import DType
from tests.campaigns.transparency import check
from tests.support.long_parameters import long_but
from tests.support.small_plans import config_of, deduced_plan, random_plan, request

PUBLISHED = {
    "llama2-7b": 6_738_415_616,
    "llama2-70b": 68_976_648_192,
    "llama3-8b": 8_030_261_248,
    "llama3-405b": 405_853_388_800,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_630_071_296,
    "bert-base": 110_106_428,
    "bert-large": 336_226_108,
    "vit-b16": 86_567_656,
    "vit-l16": 304_326_632,
}
"""Of the authors' checkpoints as transformers and torchvision load them; BERT with both heads of its pre-training."""
SMALL = ["llama-tiny", "mixtral-tiny", "bert-tiny", "vit-tiny", "wide-and-deep-tiny", "arcface-tiny"]
TRAINING = Training(global_batch=4, num_micro_batches=2, dtype=DType.FLOAT64, epsilon=1e-4)
"""A bias before a batch norm has a gradient of rounding alone, which AdamW with a small epsilon would scale up."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_counts(name: str) -> None:
    assert find_model(name).parameters == PUBLISHED[name]


@pytest.mark.parametrize(("name", "parameters"), [("bert-base", 109_482_240), ("bert-large", 335_141_888)])
def test_the_encoder_of_bert_is_what_is_published_without_heads(name: str, parameters: int) -> None:
    """Embeddings, layers and pooler: `BertModel` of transformers."""
    model = find_model(name)
    assert isinstance(model, BertConfig)
    assert model.encoder_parameters == parameters


def test_the_network_of_arcface_has_the_size_of_insightfaces() -> None:
    """`iresnet100` at 112 x 112; behind it a direction per person."""
    model = find_model("arcface-1m")
    assert isinstance(model, ArcFaceConfig)
    assert model.backbone_parameters == 65_156_160
    assert model.parameters == 65_156_160 + 512 * 1_000_000


def test_nearly_all_of_a_recommender_is_its_tables() -> None:
    model = find_model("wide-and-deep")
    assert isinstance(model, WideDeepConfig)
    assert model.vocabulary * 17 / model.parameters > 0.85


@pytest.mark.parametrize("name", PRESETS)
def test_a_module_declares_as_many_and_holds_none(name: str) -> None:
    """Shapes alone are counted: a module of 10^12 parameters takes a few megabytes."""
    model = find_model(name)
    tracemalloc.start()
    declared = {id(parameter): parameter for key, parameter in model.module().parameters() if "running_" not in key}
    _, peak_nbytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert sum(math.prod(parameter.shape) for parameter in declared.values()) == model.parameters
    assert peak_nbytes < 20e6


@pytest.mark.parametrize(
    "model",
    [
        LlamaConfig(1, 12, 3, 1, 5, 4, 7),
        MixtralConfig(3, 8, 4, 2, 6, 3, 1, 5, 9),
        BertConfig(3, 6, 3, 5, 9, segments=3),
        VitConfig(1, 6, 2, 5, 12, 3, 7),
        WideDeepConfig(1, 5, 9, 3, 2, 3, 4),
        ArcFaceConfig((2, 1, 1, 3), (2, 3, 4, 5), 20, 6, 7),
    ],
    ids=lambda model: type(model).__name__,
)
def test_the_formula_holds_for_other_dimensions(model: Model) -> None:
    named = model.module().parameters()
    assert sum(math.prod(p.shape) for key, p in named if "running_" not in key) == model.parameters


@pytest.mark.parametrize("name", long_but(SMALL, 1, 2, 4))
def test_a_small_one_trains_data_parallel_as_on_one_device(name: str, tmp_path: Path) -> None:
    model = find_model(name)
    assert 1000 < model.parameters < 20_000
    plan = deduced_plan(request(2, TRAINING, model=model), config_of(TRAINING, dp=2), ("data", "tensor"))
    assert list(check(plan)) == []
    write_plan(plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan


@pytest.mark.parametrize("name", long_but(SMALL, 1, 3, 4))
def test_a_small_one_trains_under_a_random_layout_as_on_one_device(name: str) -> None:
    asked = request(2, TRAINING, model=find_model(name))
    assert list(check(random_plan(asked, config_of(TRAINING, tp=2), random.Random(name)))) == []


@pytest.mark.parametrize("name", long_but(SMALL, 0, 2, 5))
def test_a_small_one_trains_in_a_pipeline_as_on_one_device(name: str) -> None:
    asked = request(2, TRAINING, model=find_model(name))
    assert list(check(random_plan(asked, config_of(TRAINING, pp=2), random.Random(name)))) == []


@pytest.mark.parametrize("name", long_but(["llama-tiny", "bert-tiny", "vit-tiny"], 0, 2))
def test_megatrons_rule_holds_for_every_transformer(name: str) -> None:
    asked = request(2, TRAINING, model=find_model(name))
    assert list(check(deduced_plan(asked, config_of(TRAINING, tp=2), ("data", "tensor")))) == []


@pytest.mark.parametrize("name", SMALL)
def test_no_forward_op_follows_a_backward_one(name: str) -> None:
    """Registers are shared by the order of the ops, and the passes of a micro-batch run one after the other."""
    phases = [op.phase for op in training_graph(find_model(name), TRAINING).ops]
    assert phases == sorted(phases, key=list(Phase).index)


def test_capacity_drops_tokens_alike_on_ranks() -> None:
    model = find_model("mixtral-tiny")
    assert isinstance(model, MixtralConfig)
    asked = request(2, TRAINING, model=replace(model, capacity_factor=0.75))
    assert list(check(random_plan(asked, config_of(TRAINING, dp=2), random.Random(0)))) == []


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("llama-tiny", {"key_heads": 0}, "key_heads: not a size"),
        ("llama-tiny", {"key_heads": 3}, "no multiple of the key heads"),
        ("llama-tiny", {"width": 18}, "does not divide into heads"),
        ("llama-tiny", {"width": 20}, "heads of an even width"),
        ("llama-tiny", {"rotary_base": 1.0}, "not a base"),
        ("mixtral-tiny", {"experts": 0}, "experts: not a size"),
        ("mixtral-tiny", {"choices": 5}, "more choices than experts"),
        ("mixtral-tiny", {"capacity_factor": -1.0}, "no capacity"),
        ("mixtral-tiny", {"balance": 0.0}, "no share"),
        ("bert-tiny", {"segments": 0}, "segments: not a size"),
        ("bert-tiny", {"heads": 3}, "no multiple of the heads"),
        ("vit-tiny", {"classes": 0}, "classes: not a size"),
        ("vit-tiny", {"heads": 3}, "no multiple of the heads"),
        ("vit-tiny", {"patch": 3}, "no multiple of the patch"),
        ("wide-and-deep-tiny", {"dense": 0}, "dense: not a size"),
        ("arcface-tiny", {"side": 0}, "side: not a size"),
        ("arcface-tiny", {"blocks": (1, 1)}, "not groups of blocks"),
    ],
)
def test_wrong_dimensions_are_refused(name: str, change: dict[str, Any], message: str) -> None:
    model: Any = find_model(name)
    with pytest.raises(InputError, match=message):
        replace(model, **change)
