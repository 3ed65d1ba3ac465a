"""The contest's file format: read, refused with a reason, written back."""

from __future__ import annotations

import copy
import gzip
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from strategy.base.errors import InputError
from strategy.ilp.problem import Edge, Node, Problem, Usage
from strategy.ilp.problem_file import read_problem, write_problem

EXAMPLE: dict[str, Any] = {
    "problem": {
        "name": "example",
        "nodes": {
            "intervals": [[30, 70], [40, 70], [50, 120], [110, 140], [110, 150]],
            "costs": [[15], [55, 65], [25, 45, 35], [85, 75], [95]],
            "usages": [[10], [25, 25], [15, 20, 15], [10, 10], [15]],
        },
        "edges": {
            "nodes": [[0, 1], [0, 2], [1, 3], [2, 4], [3, 4]],
            "costs": [[30, 40], [50, 10, 40], [90, 10, 20, 80], [60, 20, 30], [70, 60]],
        },
        "usage_limit": 50,
    }
}


def _read(folder: Path, document: object) -> Problem:
    path = folder / "problem.json"
    path.write_text(json.dumps(document))
    return read_problem(path)


def test_the_example_is_read(tmp_path: Path) -> None:
    problem = _read(tmp_path, EXAMPLE)
    assert (problem.name, problem.limit, len(problem.nodes)) == ("example", 50, 5)
    assert problem.nodes[2] == Node("n2", (25, 45, 35), (Usage(50, 120, (15, 20, 15)),))
    assert problem.edges[2] == Edge(1, 3, (90, 10, 20, 80))


def test_the_limit_and_the_name_may_be_absent(tmp_path: Path) -> None:
    document = copy.deepcopy(EXAMPLE)
    del document["problem"]["usage_limit"], document["problem"]["name"]
    assert _read(tmp_path, document).limit is None


@pytest.mark.parametrize("suffix", [".json", ".json.gz"])
def test_writing_and_reading_gives_the_same_problem_and_the_same_bytes(tmp_path: Path, suffix: str) -> None:
    problem = _read(tmp_path, EXAMPLE)
    first, second = tmp_path / f"first{suffix}", tmp_path / f"second{suffix}"
    write_problem(problem, first)
    assert read_problem(first) == problem
    write_problem(read_problem(first), second)
    assert first.read_bytes() == second.read_bytes()


def _set(*keys: str | int, value: object) -> Callable[[dict[str, Any]], None]:
    def change(document: dict[str, Any]) -> None:
        place: Any = document["problem"]
        for key in keys[:-1]:
            place = place[key]
        place[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda document: document["problem"].pop("nodes"), "missing required field `nodes`"),
        (lambda document: document["problem"]["edges"].pop("costs"), "missing required field `costs`"),
        (lambda document: document["problem"]["nodes"]["costs"].pop(), "nodes.intervals has 5 entries (expected 4"),
        (lambda document: document["problem"]["edges"]["nodes"].pop(), "edges.costs has 5 entries (expected 4"),
        (_set("nodes", "usages", 1, value=[25]), "nodes.usages[1] has 1 entries (expected 2"),
        (_set("nodes", "costs", 0, value=[]), "nodes.costs[0] is empty"),
        (_set("edges", "costs", 3, value=[60, 20]), "edges.costs[3] has 2 entries (expected 3"),
        (_set("edges", "nodes", 4, value=[3, 5]), "edges.nodes[4] is [3, 5] (expected indices in 0..4)"),
        (_set("edges", "nodes", 4, value=[-1, 4]), "edges.nodes[4] is [-1, 4]"),
        (_set("nodes", "intervals", 0, value=[70, 30]), "nodes.intervals[0] is [70, 30]"),
        (_set("nodes", "intervals", 0, value=[-3, 30]), "nodes.intervals[0] is [-3, 30]"),
        (_set("nodes", "costs", 1, value=[55, -65]), "nodes.costs[1][1] is -65"),
        (_set("nodes", "usages", 1, value=[25, -1]), "nodes.usages[1][1] is -1"),
        (_set("nodes", "costs", 1, value=[55, 6.5]), "$.problem.nodes.costs[1][1]"),
        (_set("nodes", "costs", 1, value=[55, float("nan")]), "JSON is malformed"),
        (_set("nodes", "costs", 1, value=[55, True]), "Expected `int`, got `bool`"),
        (_set("nodes", "costs", 1, value=[55, 2**63]), "nodes.costs[1][1] is 9223372036854775808 (expected 0 to 2^63"),
        (_set("nodes", "costs", 1, value=[55, 10**30]), "nodes.costs[1][1] is 1000000000000000000000000000000 "),
        (_set("nodes", "usages", 1, value=[2**64 - 1, 0]), "nodes.usages[1][0] is 18446744073709551615"),
        (_set("nodes", "intervals", 0, value=[3, 2**63]), "nodes.intervals[0] is [3, 9223372036854775808]"),
        (_set("edges", "costs", 2, value=[1, 2, 3, 2**63, 5, 6]), "edges.costs[2][3] is 9223372036854775808"),
        (_set("edges", "costs", 0, value=[1, "2"]), "Expected `int`, got `str` - at `$.problem.edges.costs[0][1]`"),
        (_set("edges", "costs", 0, value=[1, None]), "Expected `int`, got `null` - at `$.problem.edges.costs[0][1]`"),
        (_set("usage_limit", value=2**63), "usage_limit is 9223372036854775808"),
        (_set("usage_limit", value=-1), "usage_limit is -1"),
        (_set("usage_limit", value="50"), "usage_limit"),
    ],
)
def test_each_fault_is_named(tmp_path: Path, change: Callable[[dict[str, Any]], None], words: str) -> None:
    document = copy.deepcopy(EXAMPLE)
    change(document)
    with pytest.raises(InputError) as caught:
        _read(tmp_path, document)
    assert words in str(caught.value)
    assert "problem.json" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("truncated.json.gz", gzip.compress(json.dumps(EXAMPLE).encode(), mtime=0)[:-20]),
        ("not-gzip.json.gz", b"plain text"),
        ("corrupt.json.gz", gzip.compress(json.dumps(EXAMPLE).encode(), mtime=0)[:30] + bytes(60)),
        ("empty.json", b""),
        ("latin.json", b'{"problem": "\xff"}'),
        ("deep.json", b"[" * 200_000 + b"]" * 200_000),
        ("deep_problem.json", b'{"problem": ' * 200_000 + b"1" + b"}" * 200_000),
        ("deep_unknown_field.json", b'{"other": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
        ("list.json", b"[]"),
    ],
)
def test_a_broken_file_is_an_input_error(tmp_path: Path, name: str, raw: bytes) -> None:
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(InputError, match=name):
        read_problem(tmp_path / name)


_TEXT = json.dumps(EXAMPLE)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (_TEXT.replace('"name":', '"usage_limit": 7, "name":'), "usage_limit"),
        (_TEXT.replace('"costs":', '"costs": [], "costs":', 1), "costs"),
        (_TEXT.replace('"costs":', '"c\\u006fsts": [], "costs":', 1), "costs"),
        (_TEXT.replace('"edges":', '"nodes": {"x": [[1, 2]]}, "edges":'), "nodes"),
        ('{"problem": 1, ' + _TEXT[1:], "problem"),
    ],
)
def test_a_key_that_is_given_twice_is_refused(tmp_path: Path, text: str, key: str) -> None:
    (tmp_path / "twice.json").write_text(text)
    with pytest.raises(InputError, match=rf"twice\.json: key '{key}' is given 2 times in one object"):
        read_problem(tmp_path / "twice.json")


def test_words_of_the_format_may_be_names_and_strangers_keys(tmp_path: Path) -> None:
    document = copy.deepcopy(EXAMPLE)
    document["problem"]["name"] = "edges [0] \\ costs"
    document["notes"] = {"costs": [["costs"], {"nodes": 1}], "nodes": "nodes", "[1]": 0, "[2]": 0}
    assert _read(tmp_path, document).name == "edges [0] \\ costs"


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.json"):
        read_problem(tmp_path / "nowhere.json")


def test_a_file_that_may_not_be_read_is_an_input_error(tmp_path: Path) -> None:
    path = tmp_path / "closed.json"
    path.write_text(json.dumps(EXAMPLE))
    path.chmod(0)
    user = os.geteuid()
    try:
        if user == 0:
            os.seteuid(65534)  # no permission stops root
        with pytest.raises(InputError, match=r"closed\.json: cannot be read: Permission denied"):
            read_problem(path)
    finally:
        os.seteuid(user)


def test_several_usages_cannot_be_written(tmp_path: Path) -> None:
    node = Node("a", (1,), (Usage(0, 1, (1,)), Usage(1, 2, (1,))))
    with pytest.raises(InputError, match="one usage per node"):
        write_problem(Problem("p", (node,), ()), tmp_path / "p.json")
