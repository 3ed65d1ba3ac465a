"""Presets have their published sizes, and their traced graphs declare exactly that many parameters."""

from __future__ import annotations

import pytest

from strategy.errors import InputError
from strategy.graph import Graph, Role
from strategy.models import PRESETS, GptConfig, find_model
from strategy.training import Training, training_graph


@pytest.mark.parametrize(("name", "parameters"), [("gpt2-small", 124_439_808), ("gpt2-345m", 354_823_168)])
def test_published_counts(name: str, parameters: int) -> None:
    """Of the released checkpoints (openai-community/gpt2 and gpt2-medium)."""
    assert find_model(name).parameters == parameters


def test_large_models_have_about_their_published_size() -> None:
    assert 174.6e9 <= find_model("gpt3-175b").parameters <= 175.3e9
    assert round(find_model("gpt-1t").parameters / 1e9, 1) == 1008.0


def declared(graph: Graph) -> int:
    moments = (":m", ":v")
    return sum(value.spec.size for value in graph.with_role(Role.VARIABLE) if not value.name.endswith(moments))


@pytest.mark.parametrize("name", ["gpt-tiny", "gpt2-small"])
def test_a_traced_graph_declares_exactly_that_many(name: str) -> None:
    config = find_model(name)
    graph = training_graph(config, Training(global_batch=1))
    assert declared(graph) == config.parameters
    moments = sum(value.spec.size for value in graph.with_role(Role.VARIABLE)) - config.parameters
    assert moments == 2 * config.parameters


@pytest.mark.parametrize("config", [GptConfig(1, 6, 3, 2, 5), GptConfig(3, 8, 1, 7, 11)])
def test_the_formula_holds_for_other_dimensions(config: GptConfig) -> None:
    assert declared(training_graph(config, Training(global_batch=1))) == config.parameters


def test_every_preset_is_found_and_may_be_shortened() -> None:
    for name, config in PRESETS.items():
        assert find_model(name) == config
        short = find_model(name, sequence=16)
        assert short.sequence == 16
        assert (short.layers, short.width, short.vocabulary) == (config.layers, config.width, config.vocabulary)


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
