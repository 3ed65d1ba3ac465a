"""Intervals: as wide as the errors of runs like a job, wider the less a run is like it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from strategy.closed_form.interval import Residual, Stratum, extrapolated, half_width, kind_of, strata, stratum_of
from strategy.hardware.devices import device
from tests.strategy.closed_form.conftest import BASE, GPT


def residuals(
    count: int, near: float, far: float, source: str = "a", groups: int = 20, **changes: object
) -> list[Residual]:
    """Runs whose errors rise evenly to `near` and `far` in each of some groups."""
    job = replace(BASE, **changes)  # type: ignore[arg-type]
    each = count // groups
    return [
        Residual(job, source, (source, group), near * n / each, far * n / each)
        for group in range(groups)
        for n in range(1, each + 1)
    ]


KNOWN = strata(residuals(400, 0.1, 0.3) + residuals(4, 0.2, 0.9, "b", groups=1, framework="internevo"))


def covered(known: Mapping[str, Stratum], runs: Sequence[Residual]) -> float:
    return sum(abs(one.near) <= half_width(one.job, known) for one in runs) / len(runs)


def test_nine_of_ten_runs_of_a_stratum_lie_within_its_width() -> None:
    assert half_width(BASE, strata(residuals(8000, 0.1, 0.3))) == pytest.approx(0.09, rel=0.01)


def test_strata_are_as_wide_as_their_errors_and_are_covered_alike() -> None:
    """Errors of one kind are three times those of the other: so are the widths, and nine in ten of both are covered."""
    ways = [residuals(4000, near, 0.9, source, 40, framework=framework)
            for near, source, framework in ((0.3, "a", "internevo"), (0.1, "b", "nemo"))]  # fmt: skip
    known = strata(ways[0] + ways[1])
    wide, narrow = (half_width(runs[0].job, known) for runs in ways)
    assert 2 < wide / narrow < 3
    assert all(0.8 < covered(known, runs) < 1 for runs in ways)


def test_a_stratum_of_few_groups_is_drawn_towards_all_runs() -> None:
    alike = [one for source in "acdefghijklm" for one in residuals(20, 0.1, 0.3, source, 10)]
    widths = [
        half_width(replace(BASE, framework="internevo"),
                   strata(alike + residuals(4 * groups, 0.2, 0.9, "b", groups, framework="internevo")))
        for groups in (1, 4, 16)
    ]  # fmt: skip
    assert 0.09 < widths[0] < widths[1] < widths[2] < 0.25


def test_a_slow_node_hardly_widens_a_stratum() -> None:
    runs = residuals(400, 0.1, 0.3)
    slow = strata([*runs[1:], replace(runs[0], near=2.6)])
    assert half_width(BASE, slow) == pytest.approx(half_width(BASE, strata(runs)), rel=0.05)


def test_sources_have_the_same_say_in_what_is_unseen() -> None:
    """Half of the weight is of four runs that lay up to 0.9 off: the quantile is theirs."""
    elsewhere = replace(BASE, framework="torchtitan")
    assert extrapolated(elsewhere, KNOWN) == ("framework",)
    assert half_width(elsewhere, KNOWN) == pytest.approx(0.9)


def test_what_was_not_run_widens_and_is_named() -> None:
    known = half_width(BASE, KNOWN)
    routed = replace(BASE, shape=replace(GPT, moe_layers=48, experts=8, top_k=2, expert_ffn=1024))
    other = replace(BASE, device=device("MI300X"))
    assert extrapolated(other, KNOWN) == ("device",)
    assert half_width(other, KNOWN) == pytest.approx(1.5 * known)
    assert extrapolated(routed, KNOWN) == ("kind of model",)
    assert half_width(routed, KNOWN) == KNOWN[""].half_width > known
    sizes = [replace(BASE, seq=2048 * times) for times in (2, 4, 32)]
    assert [extrapolated(job, KNOWN) for job in sizes] == [(), ("seq",), ("seq",)]
    widths = [half_width(job, KNOWN) / known for job in sizes]
    assert widths == pytest.approx([1 + 0.05 * math.log2(max(times / 2, 1)) for times in (2, 4, 32)])


def test_what_was_guessed_adds_as_independent_errors_do() -> None:
    guesses = {"seq": 0.3, "gpu": 0.4}
    known = half_width(BASE, KNOWN)
    guessed = replace(BASE, guessed=("seq", "gpu"))
    assert extrapolated(guessed, KNOWN) == ("seq guessed", "gpu guessed")
    assert half_width(guessed, KNOWN, guesses) == pytest.approx(math.hypot(known, 0.3, 0.4))
    unmeasured = replace(BASE, guessed=("cut",))
    assert half_width(unmeasured, KNOWN, guesses) == pytest.approx(math.hypot(known, 0.4)), "the dearest, to be safe"


def test_kinds_tell_what_a_model_is_made_of() -> None:
    shapes = {
        "dense": GPT, "hybrid": replace(GPT, mamba_layers=4), "latent": replace(GPT, kv_rank=64, moe_layers=2),
        "encoder": replace(GPT, decoder_layers=24), "routed": replace(GPT, moe_layers=2),
        "images": replace(GPT, conv_flop=1.0),
    }  # fmt: skip
    assert {kind: kind_of(replace(BASE, shape=shape)) for kind, shape in shapes.items()} == {k: k for k in shapes}
    assert kind_of(replace(BASE, frozen=True)) == "adapted"
    assert stratum_of(replace(BASE, framework="nemo", frozen=True)) == "nemo/adapted"
