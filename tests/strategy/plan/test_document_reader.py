"""Document reader: what a plan file may hold at a key, and what is said of what it may not."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest

from strategy.base.errors import PlanError, SbpError
from strategy.base.limits import LARGEST
from strategy.hardware.cluster import Link
from strategy.models.decoder import DecoderConfig
from strategy.plan.document_reader import DocumentReader
from strategy.sbp.sbp import B, P, Split

READER = DocumentReader("plan.json")
DECODER = DecoderConfig(
    layers=2, width=8, heads=2, key_heads=1, head_width=4, hidden=16, sequence=4, vocabulary=16,
    rotary_frequencies=(1.0, 0.5), windows=(2,),
)  # fmt: skip
WRITTEN: dict[str, Any] = json.loads(json.dumps(asdict(DECODER)))


def test_a_model_is_read_back_with_its_lists() -> None:
    assert READER.record(DecoderConfig, WRITTEN, "model") == DECODER
    whole: DecoderConfig = READER.record(DecoderConfig, {**WRITTEN, "rotary_frequencies": [1, 2]}, "model")
    assert [type(one) for one in whole.rotary_frequencies] == [float, float]


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("rotary_frequencies", 0.5, "not a list of numbers (got 0.5)"),
        ("rotary_frequencies", [1.0, "0.5"], "a wrong type (got '0.5', expected float)"),
        ("rotary_frequencies", [1.0, True], "a wrong type (got True, expected float)"),
        ("windows", {"0": 2}, "not a list of numbers (got {'0': 2})"),
        ("windows", [0, 2.0], "a wrong type (got 2.0, expected int)"),
        ("windows", [0, LARGEST + 1], "a number out of range (expected 64 bits)"),
        ("router", 7, "a wrong type (got 7, expected str)"),
        ("qkv_bias", 1, "a wrong type (got 1, expected bool)"),
    ],
)
def test_a_field_of_another_type_is_refused_by_its_key(key: str, value: object, said: str) -> None:
    with pytest.raises(PlanError) as refused:
        READER.record(DecoderConfig, {**WRITTEN, key: value}, "model")
    assert str(refused.value) == f"plan.json: model.{key}: {said}"


def test_of_keys_that_differ_both_sides_are_named() -> None:
    with pytest.raises(PlanError) as refused:
        READER.link({"bytes_per_s": 1e9, "latency": 1e-6}, "cluster.intra")
    assert str(refused.value) == "plan.json: cluster.intra: keys differ (got ['latency'], expected also ['latency_s'])"


@pytest.mark.parametrize("overlaps", [None, True, False])
def test_a_link_need_not_say_whether_it_overlaps(overlaps: bool | None) -> None:
    said = {} if overlaps is None else {"overlaps": overlaps}
    assert READER.link({"bytes_per_s": 1e9, "latency_s": 1e-6, **said}, "link") == Link(1e9, 1e-6, overlaps)
    with pytest.raises(PlanError, match=r"link\.overlaps: a wrong type \(got 'no', expected bool\)"):
        READER.link({"bytes_per_s": 1e9, "latency_s": 1e-6, "overlaps": "no"}, "link")


@pytest.mark.parametrize(
    ("read", "value", "said"),
    [
        (READER.mapping, [1], "not an object (got [1])"),
        (READER.listed, {"names": ["*"]}, "not a list (got {'names': ['*']})"),
        (READER.texts, "*.bias", "not a list of texts (got '*.bias')"),
        (READER.texts, ["*.bias", 7], "not a list of texts (got ['*.bias', 7])"),
        (READER.integers, 7, "not a list of numbers (got 7)"),
        (READER.integer, -LARGEST - 1, "a number out of range (expected 64 bits)"),
        (READER.figures, "1.0", "not a list of numbers (got '1.0')"),
        (READER.seconds, -1e-9, "a time out of range (got -1e-09)"),
        (READER.layout, "B", "not a list of SBPs (got 'B')"),
        (READER.layouts, {"B": 1}, "not a list of layouts (got {'B': 1})"),
    ],
)
def test_what_is_of_another_form_is_refused_by_its_key(read: Any, value: object, said: str) -> None:
    with pytest.raises(PlanError) as refused:
        read(value, "there")
    assert str(refused.value) == f"plan.json: there: {said}"


def test_layouts_are_read_axis_by_axis() -> None:
    assert READER.layouts([["B", "S(1)"], ["P(sum)", "B"]], "op") == ((B, Split(1)), (P, B))
    with pytest.raises(SbpError, match=r"plan\.json: op"):
        READER.layouts([["B", "Q"]], "op")
