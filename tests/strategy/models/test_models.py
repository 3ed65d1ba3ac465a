"""Presets have their published sizes, and their traced graphs declare exactly that many parameters."""

from __future__ import annotations

import pytest

from strategy.base.errors import InputError
from strategy.graph.graph import Graph, Role
from strategy.models import FAMILIES, PRESETS, GptConfig, Integers, Model, Tokens, family_of, find_model, find_preset
from strategy.passes.training import Training, training_graph


@pytest.mark.parametrize(("name", "parameters"), [("gpt2-small", 124_439_808), ("gpt2-345m", 354_823_168)])
def test_published_counts(name: str, parameters: int) -> None:
    """Of the released checkpoints (openai-community/gpt2 and gpt2-medium)."""
    assert find_model(name).parameters == parameters


def test_large_models_have_about_their_published_size() -> None:
    assert 174.6e9 <= find_model("gpt3-175b").parameters <= 175.3e9
    assert round(find_model("gpt-1t").parameters / 1e9, 1) == 1008.0
    assert round(find_model("mt-nlg-530b").parameters / 1e9) == 530


LARGEST_TRACED = 2 * 10**9
"""Parameters of the largest preset that is traced here: larger ones differ in dimensions alone."""
SMALL = [name for name, preset in PRESETS.items() if preset.model.parameters <= LARGEST_TRACED]


def declared(graph: Graph) -> int:
    """Elements that are trained: running statistics and moments are not."""
    trained = [op.updates[0] for op in graph.ops if op.kind == "adamw"]
    return sum(graph.values[name].spec.size for name in trained)


@pytest.mark.parametrize("name", SMALL)
def test_a_traced_graph_declares_exactly_that_many(name: str) -> None:
    config = find_model(name)
    graph = training_graph(config, Training(global_batch=1))
    assert declared(graph) == config.parameters
    moments = [v.spec.size for v in graph.with_role(Role.VARIABLE) if v.name.endswith((":m", ":v"))]
    assert sum(moments) == 2 * config.parameters


@pytest.mark.parametrize("config", [GptConfig(1, 6, 3, 2, 5), GptConfig(3, 8, 1, 7, 11)])
def test_the_formula_holds_for_other_dimensions(config: GptConfig) -> None:
    assert declared(training_graph(config, Training(global_batch=1))) == config.parameters


def test_every_preset_is_found_and_may_be_shortened() -> None:
    for name, preset in PRESETS.items():
        assert find_model(name) == preset.model
    for name, preset in FAMILIES["gpt"].presets.items():
        short, config = find_model(name, sequence=16), preset.model
        assert isinstance(short, GptConfig)
        assert isinstance(config, GptConfig)
        assert short.sequence == 16
        assert (short.layers, short.width, short.vocabulary) == (config.layers, config.width, config.vocabulary)


def test_a_model_without_tokens_has_no_sequence_to_shorten() -> None:
    with pytest.raises(InputError, match=r"mlp-tiny: a model without tokens \(got 'a sequence of 16'\)"):
        find_model("mlp-tiny", sequence=16)


@pytest.mark.parametrize("name", PRESETS)
def test_a_model_says_what_a_batch_is(name: str) -> None:
    """Every input has a source that fits its dtype, and samples come first."""
    model: Model = find_model(name)
    assert isinstance(model, family_of(model).model)
    assert find_preset(name).global_batch >= 1
    one, three = model.inputs(1), model.inputs(3)
    assert set(one) == set(model.batch) == set(three)
    for key, source in model.batch.items():
        assert three[key].shape == (3, *one[key].shape[1:])
        assert three[key].dtype.is_float is not isinstance(source, Integers | Tokens)
    assert model.layers >= 1
    assert model.tokens_per_sample >= 1
    assert hash(model) == hash(find_model(name))


def test_an_unknown_model_gets_a_hint() -> None:
    with pytest.raises(InputError, match=r"unknown model \(got 'gpt2-smal'\); did you mean 'gpt2-small'"):
        find_model("gpt2-smal")
    with pytest.raises(InputError, match=r"known: .*gpt-tiny"):
        find_model("zebra")


@pytest.mark.parametrize("name", ["layers", "width", "heads", "sequence", "vocabulary"])
@pytest.mark.parametrize("value", [0, -1])
def test_dimensions_are_positive(name: str, value: int) -> None:
    dims = {"layers": 2, "width": 8, "heads": 2, "sequence": 4, "vocabulary": 11, name: value}
    with pytest.raises(InputError, match=rf"{name}.*got {value}.*expected"):
        GptConfig(**dims)


def test_a_sequence_of_nothing_is_refused() -> None:
    with pytest.raises(InputError, match=r"sequence.*got 0"):
        find_model("gpt-tiny", sequence=0)


def test_heads_divide_the_width() -> None:
    with pytest.raises(InputError, match="multiple of the heads"):
        GptConfig(2, 9, 2, 4, 11)
