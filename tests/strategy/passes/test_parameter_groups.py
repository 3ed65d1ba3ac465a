"""Parameter groups: who is in which, what is wrong with them, what they do to updates, and how plans hold them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from strategy.base.errors import InputError, PlanError
from strategy.graph.ops.base import float_attr
from strategy.models import find_model
from strategy.passes.parameter_groups import ParameterGroup, check_groups, group_of
from strategy.passes.training import Training, training_graph
from strategy.passes.updates import Optimizer
from strategy.plan.document_reader import DocumentReader
from strategy.plan.plan import _parameter_group_of

GROUPS = (ParameterGroup(("*.bias", "*norm*"), weight_decay=0.3), ParameterGroup(("token",), 0.1, optimizer="sgd"))


def test_the_first_group_that_means_a_parameter_counts() -> None:
    assert [group_of(name, GROUPS) for name in ("a.bias", "token", "a.norm.weight", "a.weight")] == [0, 1, 0, None]
    check_groups(GROUPS, ["a.bias", "norm", "token"])
    with pytest.raises(InputError, match=r"a pattern matches no parameter .*'token'.*did you mean 'tokens'"):
        check_groups(GROUPS, ["a.bias", "norm", "tokens"])


@pytest.mark.parametrize(
    "wrong",
    [{"names": ()}, {"names": "*.bias"}, {"lr_scale": -1.0}, {"lr_scale": float("inf")}, {"weight_decay": -0.1}],
)
def test_impossible_groups_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="parameter group"):
        ParameterGroup(**{"names": ("*",), **wrong})


@pytest.mark.parametrize("optimizer", Optimizer)
def test_updates_follow_the_groups(optimizer: Optimizer) -> None:
    graph = training_graph(find_model("gpt-tiny"), Training(4, optimizer=optimizer, groups=GROUPS, weight_decay=0.1))
    kinds = {op.updates[0]: op for op in graph.ops if op.updates and "token" in op.updates}
    assert kinds["token"].kind == "sgd"
    assert kinds["token"].inputs[2] == "learning_rate:1"
    (update,) = [op for op in graph.ops if op.parameter == "norm.bias" and "weight_decay" in op.attrs]
    assert float_attr(update.attrs, "weight_decay") == 0.3
    weights = [op for op in graph.ops if op.parameter == "layers.0.mlp.fc1.weight" and "weight_decay" in op.attrs]
    assert [float_attr(op.attrs, "weight_decay") for op in weights] == [0.1]
    scaled = {op.name: float_attr(op.attrs, "factor") for op in graph.ops if op.inputs == ("learning_rate",)}
    assert scaled == {"learning_rate:0": 1.0, "learning_rate:1": 0.1}


def test_a_training_without_groups_has_the_graph_that_it_had() -> None:
    names = {op.name for op in training_graph(find_model("gpt-tiny"), Training(4)).ops}
    assert not {name for name in names if "learning_rate:" in name}


def test_a_group_of_a_plan_file_is_checked() -> None:
    reader = DocumentReader(str(Path("plan.json")))
    given = {"names": ["*.bias"], "lr_scale": 1, "weight_decay": None, "optimizer": ""}
    assert _parameter_group_of(reader, given) == ParameterGroup(("*.bias",))
    for wrong in ({"names": "x"}, {"lr_scale": "1"}, {"weight_decay": "0"}, {"more": 1}):
        with pytest.raises(PlanError):
            _parameter_group_of(reader, {**given, **wrong})
