"""Recorded models: the same graph as the code's, for any number of samples and, where layers are alike, of layers."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping
from typing import Any

import pytest

from strategy.base.errors import InputError, SbplanError
from strategy.graph.graph import Graph
from strategy.models import PRESETS, Model, Tokens, find_model
from strategy.models.recorded import MOST_TEXT, PER_SAMPLE, Feed, Recorded, RecordedModel, Source, read_recording
from strategy.models.recorded_layers import RecordedLayers
from strategy.models.recording import TracedLoss, record
from strategy.nn.layers import set_training
from strategy.nn.tracer import Tracer
from strategy.passes.training import Training, training_graph
from strategy.sbp.tensor import DType
from tests.support.long_parameters import long_but

TINY = sorted(name for name in PRESETS if name.endswith("-tiny"))
FEW_MICRO_BATCHES = Training(12, num_micro_batches=4), Training(8), Training(7)


def recorded(model: Model) -> Recorded:
    """A preset, recorded as one's own code is."""

    def traced(samples: int) -> TracedLoss:
        tracer, module = Tracer(), model.module()
        set_training(module, True)
        tracer.adopt(module, DType.FLOAT32)
        loss, count = module(*(tracer.input(name, spec) for name, spec in model.inputs(samples).items()))
        return TracedLoss(tracer.graph, loss.name, count.name)

    batch: Mapping[str, Source] = model.batch
    feeds = {name: Feed(batch[name], spec.shape[1:]) for name, spec in model.inputs(2).items()}
    found = record(traced, feeds)
    assert isinstance(found, Recorded)
    return found


def same(one: Graph, other: Graph) -> bool:
    """Ops, values and loss."""
    return one.ops == other.ops and dict(one.values) == dict(other.values) and one.loss == other.loss


@pytest.mark.parametrize("name", TINY)
def test_a_preset_that_is_recorded_is_the_same_graph(name: str) -> None:
    model = find_model(name)
    found = recorded(model)
    assert found.parameters == model.parameters
    assert found.heads == getattr(model, "heads", 0)
    if any(isinstance(source, Tokens) for source in model.batch.values()):
        assert found.tokens_per_sample == model.tokens_per_sample
    assert found.batch == model.batch
    assert found.inputs(5) == model.inputs(5)
    for training in FEW_MICRO_BATCHES:
        assert same(training_graph(found, training), training_graph(model, training))


@pytest.mark.parametrize("name", long_but(["gpt-tiny", "llama3-8b", "bert-large", "gpt2-small"], 0, 3))
def test_alike_layers_may_be_fewer(name: str) -> None:
    model = find_model(name)
    found = recorded(model)
    assert isinstance(found, RecordedLayers)
    assert found.layers == model.layers
    for layers in sorted({3, model.layers - 1, model.layers}):
        fewer, wanted = dataclasses.replace(found, layers=layers), dataclasses.replace(model, layers=layers)
        graph, expected = (training_graph(one, Training(6, num_micro_batches=3)) for one in (fewer, wanted))
        assert graph.ops == expected.ops
        started = {name: dataclasses.replace(value, init="") for name, value in graph.values.items()}
        assert started == {name: dataclasses.replace(value, init="") for name, value in expected.values.items()}
        assert fewer.parameters == wanted.parameters
    for layers in (2, model.layers + 1, -1):
        with pytest.raises(InputError, match="not that many layers were recorded"):
            dataclasses.replace(found, layers=layers)


@pytest.mark.parametrize("name", ["resnet-tiny", "mlp-tiny"])
def test_layers_that_are_unlike_or_few_are_all_kept(name: str) -> None:
    found = recorded(find_model(name))
    assert isinstance(found, RecordedModel)
    assert found.layers == find_model(name).layers


def test_a_document_is_read_as_it_was_written() -> None:
    for name in TINY:
        found = recorded(find_model(name))
        assert read_recording(found.recording.text()) == found.recording
        assert str(found) == str(type(found)(**dataclasses.asdict(found)))  # type: ignore[call-overload]
        assert len(str(found)) < 40


def test_what_is_no_recording_is_told() -> None:
    for text in ("{}", "[]", "null", '{"inputs": 3}'):
        with pytest.raises(InputError, match=r"model.text: not a recorded graph .*record it anew"):
            RecordedModel(text)
    for text, message in (("", "the file is empty"), ("{" * 10**5, "not JSON"), ("[" * 10**5, "nested too deeply")):
        with pytest.raises(InputError, match=f"model.text.*: {message}"):
            RecordedModel(text)


def changed(**parts: Any) -> str:
    return json.dumps({**json.loads(recorded(find_model("vit-tiny")).text), **parts})


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"heads": -1}, "not a whole number .got -1"),
        ({"loss": 7}, "not a text .got 7"),
        ({"loss": "x"}, "nothing computes loss or count"),
        ({"inputs": {}}, "without inputs or ops"),
        ({"inputs": {"images": [[3, 4], "features", ""]}}, "not an input of a recorded graph"),
        ({"inputs": {"images": [[PER_SAMPLE, 2**40], "features", ""]}}, "not a whole number"),
        ({"inputs": {"images": [[PER_SAMPLE], "integers", 2**70]}}, "not a whole number"),
        ({"parameters": [[[], [1], "zeros", ""]]}, "no path of a parameter"),
        ({"parameters": [[["a"], [1], "zeros", ""]] * 2}, "a parameter or an input is there twice"),
        ({"parameters": [[["a"], [1], "zeros", 5]]}, "not a text"),
        ({"ops": [{"name": "loss", "kind": "relu", "inputs": ["a"]}]}, "an op reads what is not there"),
        (
            {
                "ops": [{"name": "loss", "kind": "relu", "inputs": ["images"], "labels": ["count"], "layer": 3}],
                "parameters": [],
            },
            "not numbered one by one",
        ),
        (
            {
                "ops": [{"name": "loss", "kind": "relu", "inputs": ["images"], "labels": ["count"]}],
                "parameters": [[["layers", 4, "a"], [1], "zeros", ""]],
            },
            "a parameter of a layer without ops",
        ),
    ],
)
def test_wrong_documents_are_refused(parts: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        RecordedModel(changed(**parts))


def test_a_document_has_bounds() -> None:
    with pytest.raises(InputError, match="too long"):
        RecordedModel(" " * (MOST_TEXT + 1))


def test_changed_documents_are_refused_or_mean_something() -> None:
    """Whatever stands in a document, what comes of it is a graph or one of our errors."""
    document = json.loads(recorded(find_model("mlp-tiny")).text)
    rng, refused = random.Random(0), 0
    for _ in range(400):
        changed = json.loads(json.dumps(document))
        _change(changed, rng)
        try:
            training_graph(RecordedModel(json.dumps(changed)), Training(4, num_micro_batches=2))
        except SbplanError:
            refused += 1
    assert 200 < refused < 400


def _change(found: Any, rng: random.Random) -> None:
    """Change one place deep inside."""
    while True:
        places = list(found) if isinstance(found, dict) else range(len(found))
        place = rng.choice(list(places))
        inner = found[place]
        if isinstance(inner, dict | list) and inner and rng.random() < 0.85:
            found = inner
            continue
        wrong = rng.choice([None, -1, 2**70, "x", 0.5, [], {}, True, "add", float(2**60)])
        if rng.random() < 0.3 and isinstance(found, dict):
            del found[place]
        else:
            found[place] = wrong
        return
