"""Suites as TOML: what is drawn out, what `--quick` changes, and what is wrong by its path."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.suites.experiment import PipelineExperiment, SearchExperiment
from experiments.suites.suite import SHIPPED, find_suite, read_suite
from strategy.base.errors import InputError

SUITE = """
name = "small"

[[experiments]]
kind = "pipeline"
name = "{schedule} {micro_batches}"
stages = 4
quick = {micro_batches = [8]}
[experiments.over]
schedule = ["1f1b", "zbv"]
micro_batches = [8, 16]

[[experiments]]
kind = "search"
name = "tp {pins.tp}"
model = "gpt-tiny"
cluster = "dgx-a100:1"
global_batch = 16
quick = false
pins = {pp = 1}
[experiments.over]
"pins.tp" = [1, 2]
"""


def written(tmp_path: Path, text: str, name: str = "suite.toml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_experiments_are_drawn_out_over_lists(tmp_path: Path) -> None:
    found = [one.experiment for one in read_suite(written(tmp_path, SUITE))]
    assert [one.name for one in found] == ["1f1b 8", "1f1b 16", "zbv 8", "zbv 16", "tp 1", "tp 2"]
    assert found[1] == PipelineExperiment("1f1b 16", "1f1b", 4, 16)
    assert isinstance(found[-1], SearchExperiment)
    assert dict(found[-1].pins) == {"pp": 1, "tp": 2}


def test_quick_changes_lists_and_leaves_out(tmp_path: Path) -> None:
    found = read_suite(written(tmp_path, SUITE), quick=True)
    assert [one.experiment.name for one in found] == ["1f1b 8", "zbv 8"]


def test_included_suites_come_first_and_keep_their_names(tmp_path: Path) -> None:
    written(tmp_path, SUITE)
    found = read_suite(written(tmp_path, 'name = "all"\ninclude = ["suite.toml"]\n', "all.toml"))
    assert len(found) == 6
    assert {one.suite for one in found} == {"small"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[experiments]]\nkind = "pipeline"\nname = "a"\n', "name: a suite has a name"),
        ('name = "s"\n[[experiments]]\nkind = "pipeline"\nname = "a"\n', r"experiments\[0\]: .*missing required field"),
        (
            'name = "s"\n[[experiments]]\nkind = "pipeline"\nname = "a"\nschedule = "1f1b"\nstages = "4"\n'
            "micro_batches = 8\n",
            r"experiments\[0\]\.stages: Expected `int`, got `str`",
        ),
        ('name = "s"\n[[experiments]]\nkind = "guess"\nname = "a"\n', r"experiments\[0\]\.kind: Invalid value 'guess'"),
        ('name = "s"\nexperiment = 1\n', "unknown key .*did you mean 'experiments'"),
        ('name = "s"\n[[experiments]]\nkind = "frameworks"\nname = "a"\nover = {name = 3}\n', "not lists of values"),
        ('name = "s"\ninclude = ["s.toml"]\n', "includes itself"),
        ('name = "s"\n' + '[[experiments]]\nkind = "frameworks"\nname = "a"\n' * 2, "names that several experiments"),
        ("name = ", "cannot be read as TOML"),
    ],
)
def test_what_is_wrong_is_said_by_its_path(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read_suite(written(tmp_path, text, "s.toml"))


def test_all_problems_are_said_at_once(tmp_path: Path) -> None:
    text = 'name = "s"\n' + '[[experiments]]\nkind = "frameworks"\nname = "a"\nodd = 1\n' * 2
    with pytest.raises(InputError, match=r"2 problems[\s\S]*experiments\[0\][\s\S]*experiments\[1\]"):
        read_suite(written(tmp_path, text))


def test_a_suite_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(InputError, match=r"no such suite.*all\.toml"):
        read_suite(find_suite("nothing.toml"))


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.toml")), ids=lambda path: path.stem)
def test_every_shipped_suite_can_be_read(path: Path) -> None:
    whole, quick = read_suite(find_suite(path.name)), read_suite(path, quick=True)
    assert whole
    assert 0 < len(quick) <= len(whole)


def test_all_holds_every_shipped_suite_that_runs_on_any_machine() -> None:
    """Emulated nodes want namespaces."""
    names = {one.suite for one in read_suite(SHIPPED / "all.toml")}
    assert names == {path.stem for path in SHIPPED.glob("*.toml")} - {"all", "emulated"}
    assert all(one.experiment.nodes == 2 for one in read_suite(SHIPPED / "emulated.toml"))
