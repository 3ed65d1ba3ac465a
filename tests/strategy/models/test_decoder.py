"""Decoders by description: their graphs are those of our presets, and they train on ranks as on one device."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from strategy.base.errors import InputError
from strategy.models import Model, find_model
from strategy.models.decoder import DecoderConfig
from strategy.models.llama import LlamaConfig
from strategy.models.mixtral import MixtralConfig
from strategy.passes.training import Training, training_graph
from strategy.plan.plan import read_plan, write_plan
from strategy.sbp.tensor import DType
from tests.campaigns.transparency import check, check_under_mpi
from tests.pytorch.decoders import CONFIGS, FOLDER
from tests.support.long_parameters import long_but
from tests.support.small_plans import config_of, deduced_plan, random_plan, request

TRAINING = Training(global_batch=4, num_micro_batches=2, dtype=DType.FLOAT64, epsilon=1e-4)
FAMILIES = [name for name in CONFIGS if name != "gpt2"]
FEW = ["gemma3_text", "gpt_oss", "deepseek_v3"]
ALL_KINDS = [*FEW, "gpt_neox", "qwen2_moe"]
"""Those that have most of the features between them."""
STEPS = 2


def family(name: str) -> Model:
    """A small model of a family; half as long as that of the reference, and still longer than its windows."""
    return find_model(str(FOLDER / name), sequence=8)


def described(model: LlamaConfig | MixtralConfig) -> DecoderConfig:
    """A preset as a description."""
    common: dict[str, Any] = {
        "layers": model.layers,
        "width": model.width,
        "heads": model.heads,
        "key_heads": model.key_heads,
        "head_width": model.width // model.heads,
        "hidden": model.hidden,
        "sequence": model.sequence,
        "vocabulary": model.vocabulary,
        "rotary_base": model.rotary_base,
    }
    if isinstance(model, LlamaConfig):
        return DecoderConfig(**common)
    experts = {"experts": model.experts, "choices": model.choices, "expert_hidden": model.hidden}
    return DecoderConfig(**common, **experts, sparse=(1,), balance=model.balance)


@pytest.mark.parametrize("name", ["llama-tiny", "mixtral-tiny", "llama3-8b"])
def test_presets_are_descriptions(name: str) -> None:
    """The graph of a preset is that of its description, op by op and value by value."""
    model = find_model(name)
    assert isinstance(model, LlamaConfig | MixtralConfig)
    ours, theirs = training_graph(described(model), Training(4)), training_graph(model, Training(4))
    assert ours.ops == theirs.ops
    assert list(ours.values.items()) == list(theirs.values.items())
    assert described(model).parameters == model.parameters


@pytest.mark.parametrize("name", FAMILIES)
def test_the_formula_counts_what_is_declared(name: str) -> None:
    model = family(name)
    assert sum(math.prod(parameter.shape) for _, parameter in model.module().parameters()) == model.parameters


@pytest.mark.parametrize("name", long_but(FAMILIES, *map(FAMILIES.index, FEW)))
def test_it_trains_data_parallel_as_on_one_device(name: str, tmp_path: Path) -> None:
    plan = deduced_plan(request(2, TRAINING, model=family(name)), config_of(TRAINING, dp=2), ("data", "tensor"))
    assert list(check(plan, steps=STEPS)) == []
    write_plan(plan, tmp_path / "plan.json")
    assert read_plan(tmp_path / "plan.json") == plan


@pytest.mark.parametrize("name", long_but(FAMILIES, FAMILIES.index("gpt_oss")))
def test_it_trains_in_a_pipeline_as_on_one_device(name: str) -> None:
    model = family(name)
    assert isinstance(model, DecoderConfig)
    asked = request(2, TRAINING, model=replace(model, layers=max(2, model.layers)))
    assert list(check(random_plan(asked, config_of(TRAINING, pp=2), random.Random(name)), steps=STEPS)) == []


@pytest.mark.parametrize(
    ("name", "context"),
    long_but(itertools.product(["mistral", "gemma2", "gpt_oss", "deepseek_v2"], ["ring", "all_to_all"]), 5, 6),
)
def test_windows_sinks_and_bounds_hold_where_positions_are_shared_out(name: str, context: str) -> None:
    model = family(name)
    assert isinstance(model, DecoderConfig)
    asked = request(2, TRAINING, model=replace(model, balance=0.0))  # demand is counted over whole samples
    config = config_of(TRAINING, cp=2, context=context)
    assert list(check(deduced_plan(asked, config, ("data", "context", "tensor")), steps=STEPS)) == []


def test_learned_positions_are_counted_and_train_on_ranks_as_on_one_device() -> None:
    """A table of a vector per position, the one parameter that a decoder without positions lacks."""
    plain = DecoderConfig(2, 16, 4, 2, 4, 32, 8, 32, rotary_base=0.0)
    model = replace(plain, learned_positions=True)
    declared, others = (dict(one.module().parameters()) for one in (model, plain))
    assert declared.keys() - others.keys() == {"position"}
    assert declared["position"].shape == (8, 16)
    assert model.parameters == sum(math.prod(one.shape) for one in declared.values()) == plain.parameters + 8 * 16
    for degrees in ({"dp": 2}, {"tp": 2}, {"pp": 2}):
        config = config_of(TRAINING, **degrees)
        plan = random_plan(request(2, TRAINING, model=model), config, random.Random(1))
        assert list(check(plan, steps=2)) == []


@pytest.mark.mpi
@pytest.mark.long
def test_they_train_under_mpiexec_and_random_layouts_as_on_one_device() -> None:
    plans = {
        number: random_plan(request(2, TRAINING, model=family(name)), config_of(TRAINING, tp=2), random.Random(name))
        for number, name in enumerate(FAMILIES)
    }
    assert check_under_mpi(2, plans, steps=STEPS) == {number: [] for number in plans}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"width": 0}, "width: not a size"),
        ({"key_heads": 3}, "no multiple of the key heads"),
        ({"windows": (0, 0), "before": 2}, "windows and sparse do not name the layers"),
        ({"windows": (-1,)}, "no such layers"),
        ({"sparse": (1,)}, "not so many choices of experts"),
        ({"experts": 4}, "experts in no layer"),
        ({"rotary_width": 3}, "no such part of a head turns"),
        ({"rotary_frequencies": (1.0,)}, "not a frequency per pair that turns"),
        ({"epsilon": math.nan}, "epsilon: not a figure"),
        ({"score_cap": math.inf}, "score_cap: not a figure"),
        ({"rotary_base": 1.0}, "rotary_base: not a base"),
        ({"norm_position": "within"}, "norm_position: unknown word"),
        ({"key_latent": 4}, "no such latent attention"),
        ({"width": 0, "heads": 0, "router": "hash"}, "3 problems"),
    ],
)
def test_wrong_descriptions_are_refused(change: dict[str, Any], message: str) -> None:
    model = described(find_model("llama-tiny"))  # type: ignore[arg-type]
    with pytest.raises(InputError, match=message):
        replace(model, **change)
