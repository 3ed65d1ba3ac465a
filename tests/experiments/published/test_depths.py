"""A job at two depths: every cause is counted for itself, together they are the step, and both move as they should."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache

import pytest

from experiments.published import megatron
from experiments.published.depths import CAUSES, Depth, Depths, closed_form, depths, document, line
from strategy.closed_form.calibration import shipped
from strategy.closed_form.job import Job
from tests.experiments.conftest import Command
from tests.support.long_parameters import long_but

SMALL = megatron.megatron_job(megatron.gpt(2, 2048, 16), 4, tp=2, pp=2, global_batch=8, micro_batch=2)


@cache
def priced(job: Job) -> Depths:
    return depths("small", job, shipped())


def of(depth: Depth, cause: str) -> float:
    return depth.causes[cause] / depth.step_s


def test_the_table_is_that_of_the_paper() -> None:
    """Table 1: GPUs are the product of the degrees, and what its formula says has so many parameters."""
    billions = []
    for job in megatron.TABLE.values():
        shape = job.shape
        h, layers = shape.hidden, shape.layers
        billions.append(12 * layers * h**2 * (1 + 13 / (12 * h) + (shape.vocab + job.seq) / (12 * layers * h)) / 1e9)
        assert job.global_batch % (job.dp * job.micro_batch) == 0
        assert layers % (job.pp * job.virtual) == 0
    assert [round(one, 1) for one in billions] == [1.7, 3.6, 7.5, 18.4, 39.1, 76.1, 145.6, 310.1, 529.6, 1008.0]
    assert [job.gpus for job in megatron.TABLE.values()] == [32, 64, 128, 256, 512, 1024, 1536, 1920, 2520, 3072]


def test_little_of_the_papers_jobs_is_other() -> None:
    for name, job in megatron.TABLE.items():
        found = closed_form(job, shipped())
        assert of(found, "other") <= 0.01, name
        assert sum(found.causes.values()) == pytest.approx(found.step_s, rel=1e-9), name


@pytest.mark.parametrize("changes", [{}, {"pp": 1, "tp": 1, "gpus": 2}], ids=str)
def test_causes_are_counted_each_for_itself_and_are_the_step(changes: dict[str, int]) -> None:
    found = priced(replace(SMALL, **changes))
    for depth in (found.closed_form, found.acts):
        assert set(depth.causes) == set(CAUSES)
        assert all(seconds >= 0 for of_cause in depth.parts.values() for seconds in of_cause.values())
        assert sum(depth.causes.values()) == pytest.approx(depth.step_s, rel=1e-9)
        assert depth.causes == {cause: sum(depth.parts[cause].values()) for cause in CAUSES}
        assert (of(depth, "bubble") > 0.02) == ("gpus" not in changes), "one stage has none"
    assert of(found.acts, "other") <= 0.01
    assert sum(found.difference.values()) == pytest.approx(found.acts.step_s - found.closed_form.step_s)


def test_more_micro_batches_are_less_bubble_and_slower_links_more_exposed() -> None:
    """The same in both depths."""
    base, longer = priced(SMALL), priced(replace(SMALL, global_batch=32))
    whole = priced(replace(SMALL, pp=1, tp=1, gpus=2, global_batch=32))
    for depth in ("closed_form", "acts"):
        plain = getattr(base, depth)
        assert of(getattr(longer, depth), "bubble") < 0.5 * of(plain, "bubble")
        assert of(getattr(whole, depth), "exposed_communication") < of(plain, "exposed_communication")


@pytest.mark.parametrize("name", long_but(megatron.TABLE))
def test_depths_of_the_papers_jobs_agree(name: str) -> None:
    """Both price one software with one layout: that of Megatron's rule, op by op, on streams."""
    found = depths(name, megatron.TABLE[name], shipped())
    assert abs(found.acts.step_s / found.closed_form.step_s - 1) < 0.051
    assert all(abs(seconds) < 0.055 * found.closed_form.step_s for seconds in found.difference.values())


def test_streams_hide_what_is_exchanged_and_nobody_waits() -> None:
    """Of a tensor axis, in the backward pass; slow links show what computation does not hide."""
    trained, acts = (closed_form(replace(SMALL, framework=name), shipped()) for name in ("megatron", "acts"))
    assert 2 / 3 < acts.parts["exposed_communication"]["tensor"] / trained.parts["exposed_communication"]["tensor"] < 1
    assert acts.parts["exposed_communication"]["replicas"] == acts.parts["other"]["beside"] == 0
    data = replace(SMALL, framework="acts", tp=1, pp=1, gpus=16)
    near, far = (
        closed_form(replace(data, nic_bytes_per_s=rate), shipped()).parts["exposed_communication"]["reduced"]
        for rate in (25e9, 0.25e9)
    )
    assert far > 100 * near > 0, "a hundred times as long, and nothing hidden"


def test_the_command_prints_every_job_and_cause(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(megatron, "TABLE", {"small": SMALL})
    monkeypatch.setattr("experiments.published.depths.depths", lambda name, job, fitted: priced(job))
    said = command("validate", "--depths", "--json")
    assert said.code == 0, said.err
    (found,) = json.loads(said.out)["depths"]
    assert found == json.loads(json.dumps(document(priced(SMALL))))
    assert set(found["difference"]) == set(CAUSES)
    assert line(priced(SMALL)) in said.err
    assert said.err.count("small") == 1


def test_nothing_is_fitted_beside(command: Command) -> None:
    said = command("validate", "--depths", "--search")
    assert said.code == 2
    assert "fits nothing" in said.err
