"""How many GPUs: every count in the range has its bound, those on the front a plan, and both in days and GPU-hours."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from experiments.cli import main
from experiments.figures.counts_figure import draw, figure, interval
from experiments.planning.gpu_counts import CountAnswer, clusters_of_gpus, on_front
from experiments.planning.training_cost import TrainingCost
from strategy.hardware.presets import find_cluster
from strategy.passes.training import Training
from strategy.plan.plan import read_plan
from strategy.plan.verify import verify
from tests.experiments.conftest import Command
from tests.support.small_plans import exchange_left_alone, request

SMALL = ["gpt-tiny", "--seq", "16", "--global-batch", "16"]
ONE_WAY = "[config]\ntp = 1\npp = 1\nmicro_batch = 1\nrecompute = 'none'\nzero_stage = 0\n"
TOKENS = 10**9


@pytest.fixture
def one_way(tmp_path: Path) -> Path:
    path = tmp_path / "pins.toml"
    path.write_text(ONE_WAY)
    return path


@pytest.mark.parametrize(
    ("gpu", "least", "most", "counts"),
    [
        ("h100", 64, 1024, [64, 128, 256, 512, 1024]),
        ("A100-80", 48, 200, [48, 64, 128, 200]),
        ("v100-16", 8, 8, [8]),
        ("gb200", 72, 576, [72, 144, 288, 576]),
    ],
)
def test_the_ends_and_powers_of_two_of_nodes_are_counts(gpu: str, least: int, most: int, counts: list[int]) -> None:
    clusters = clusters_of_gpus(gpu, least, most)
    assert [cluster.devices for cluster in clusters] == counts
    assert all(cluster == find_cluster(cluster.name) for cluster in clusters)
    assert all(cluster.device.name.lower() == gpu.lower() for cluster in clusters)


def test_the_front_is_what_nothing_surpasses() -> None:
    costs = [TrainingCost(1, 1, days, hours) for days, hours in ((4.0, 10.0), (2.0, 10.5), (3.0, 12.0), (1.0, 30.0))]
    assert on_front([*costs, None]) == [True, True, False, True, False]
    assert on_front([*costs, None], 0.2) == [True, True, True, True, False]


@pytest.mark.long
@exchange_left_alone()
def test_every_count_has_a_bound_and_those_on_the_front_a_plan(command: Command, tmp_path: Path, one_way: Path) -> None:
    argv = [
        *SMALL,
        "--gpu",
        "v100",
        "--gpus",
        "8..16",
        "--tokens",
        "1B",
        "--pin",
        one_way,
        "--time-limit",
        60,
        "--gap",
        0.2,
    ]
    said = command("search", *argv, "--out", tmp_path / "plan.json", "--json")
    found = json.loads(said.out)
    assert (said.code, found["status"]) == (0, "feasible")
    assert [one["gpus"] for one in found["gpu_counts"]] == [8, 16]
    for one in found["gpu_counts"]:
        path = tmp_path / f"plan-{one['gpus']}.json"
        plan, search, bound = read_plan(path), one["search"], one["bound"]
        assert (search["plan"], verify(plan)) == (str(path), [])
        assert plan.cluster == find_cluster(one["cluster"])
        assert bound["step_time_s"] <= search["lower_bound_s"] * (1 + 1e-9) <= search["objective_s"] * (1 + 2e-9)
        assert bound["config"]["dp"] == search["config"]["dp"] == one["gpus"]
        steps = math.ceil(TOKENS / (16 * 16))
        for part in (search, bound):
            days, hours = part["training"]["days"], part["training"]["gpu_hours"]
            kept = part["training"]["lost"]["goodput"]
            assert 0.99 < kept < 1
            assert part["training"]["steps"] == steps
            assert days == pytest.approx(steps * part["step_time_s"] / kept / 86400)
            assert hours == pytest.approx(24 * days * one["gpus"])
        assert f"{one['gpus']}" in said.err
    assert "assumed: a GPU fails every 50,000 h (--mtbf" in said.err


@pytest.mark.long
def test_one_count_is_a_cluster_without_a_name(command: Command, tmp_path: Path, one_way: Path) -> None:
    plans = []
    for words in (["--gpu", "V100-16", "--gpus", "8"], ["--cluster", "v100-ib100:1"]):
        out = tmp_path / "plan.json"
        said = command(
            "search", *SMALL, *words, "--tokens", "1e9", "--pin", one_way, "--out", out, "--time-limit", 60, "--json"
        )
        assert said.code == 0
        assert json.loads(said.out)["training"]["tokens"] == TOKENS
        plans.append(out.read_bytes())
    assert plans[0] == plans[1]


def test_where_nothing_fits_no_count_has_a_bound(command: Command, tmp_path: Path, one_way: Path) -> None:
    argv = ["gpt3-175b", "--gpu", "v100", "--gpus", "8..16", "--tokens", "1T", "--pin", one_way]
    said = command("search", *argv, "--out", tmp_path / "plan.json", "--json")
    found = json.loads(said.out)
    assert (said.code, found["status"]) == (3, "infeasible")
    assert [(one["bound"], one["search"]) for one in found["gpu_counts"]] == [(None, None)] * 2
    assert said.err.count("nothing fits") == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--cluster", "dgx-h100:8", "--gpus", "64", "--gpu", "h100"], "--cluster and --gpus both say what there is"),
        (["--cluster", "dgx-h100:8", "--gpu", "h100"], "--cluster and --gpus both say what there is"),
        ([], "nothing says what to train on (expected --cluster CLUSTER, or --gpus N[..M] with --gpu NAME)"),
        (["--gpus", "64"], "nothing says what to train on"),
        (["--gpu", "h100"], "nothing says what to train on"),
        (["--gpu", "h10", "--gpus", "8"], "no preset has nodes of this GPU (got 'h10'); did you mean 'H100'?"),
        (["--gpu", "h100", "--gpus", "12..64"], "--gpus: no whole nodes (got 12, expected a multiple of 8"),
        (["--gpu", "h100", "--gpus", "8..63"], "--gpus: no whole nodes (got 63"),
        (["--gpu", "h100", "--gpus", "64..8"], "got '64..8', expected N or N..M"),
        (["--gpu", "h100", "--gpus", "8.."], "got '8..', expected N or N..M"),
        (["--gpu", "h100", "--gpus", "0..8"], "got '0..8', expected N or N..M"),
        (["--gpu", "h100", "--gpus", "8..16777216", "--tokens", "1T"], "--gpus: more than a plan can list"),
        (["--gpu", "h100", "--gpus", "8..64"], "counts of GPUs are compared by days and GPU-hours; give --tokens too"),
        (["--gpu", "h100", "--gpus", "8", "--tokens", "12"], "--tokens: less than a step (got 12, expected at least "),
        (["--gpu", "h100", "--gpus", "8..64", "--tokens", "12"], "--tokens: less than a step (got 12"),
        (["--gpu", "h100", "--gpus", "8", "--tokens", "1Q"], "got '1Q', expected a number of tokens of at least 1"),
        (["--gpu", "h100", "--gpus", "8", "--tokens", "nan"], "got 'nan', expected a number of tokens of at least 1"),
        (["--gpu", "h100", "--gpus", "8", "--tokens", "1e400"], "got '1e400', expected a number of tokens"),
    ],
)
def test_mistakes_are_one_message(command: Command, tmp_path: Path, words: list[str], message: str) -> None:
    said = command("search", *SMALL, *words, "--out", tmp_path / "plan.json")
    assert (said.code, said.out, list(tmp_path.iterdir())) == (2, "", [])
    assert message in said.err
    assert said.err.count("\n") == 1


def test_days_are_drawn_against_gpu_hours_with_intervals(tmp_path: Path) -> None:
    asked = [request(devices, Training(8)) for devices in (2, 4)]
    cost = TrainingCost(100, 10, 5.0, 240.0)
    worse = TrainingCost(100, 10, 6.0, 480.0)
    answers = [CountAnswer(asked[0], bound=cost, cost=cost), CountAnswer(asked[1], bound=cost, cost=worse)]
    (axes,) = figure(answers).axes
    lines = [line for line in axes.lines if line.get_linestyle() == "-"]
    assert [tuple(line.get_ydata()) for line in lines] == [
        (pytest.approx(one / interval()), pytest.approx(one * interval())) for one in (5.0, 6.0)
    ]
    assert [text.get_text() for text in axes.texts] == ["2 GPUs", "4 GPUs"]
    (front,) = [line for line in axes.lines if line.get_linestyle() == ":"]
    assert list(front.get_xdata()) == [240.0]
    draw(answers, tmp_path / "days.png")
    assert (tmp_path / "days.png").stat().st_size > 5000
    assert figure([CountAnswer(asked[0])]).axes, "where nothing fits there is nothing to draw"


def test_one_count_is_no_figure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    words = ["search", "gpt-tiny", "--gpu", "h100", "--gpus", "8", "--figure", str(tmp_path / "days.png")]
    assert main(words) == 2
    assert "a range of --gpus" in capsys.readouterr().err
    words[5:6] = ["8..16", "--tokens", "1B"]
    assert main([*words[:-1], str(tmp_path / "days.txt")]) == 2
    assert "no such format of pictures" in capsys.readouterr().err
