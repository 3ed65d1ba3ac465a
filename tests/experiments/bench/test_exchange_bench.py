"""What follows from trials of the exchange: by hand, and the simulator's figures for the same gradients."""

from __future__ import annotations

import pytest

from experiments.bench.exchange_bench import PAYLOAD, Inside, lines, simulated, summary
from experiments.bench.exchange_trials import OURS, RIVAL_FUSION_BYTES, TrialTimes, gradient_sizes

TRIALS = [
    TrialTimes("compute", "", (0.4, 0.5, 9.0)),
    TrialTimes("communication", "", (0.2, 0.2, 0.3)),
    TrialTimes("serial", "", (0.7, 0.7, 0.7)),
    TrialTimes("ahead", "", (0.54, 0.54, 0.6)),
    TrialTimes("two streams", "ours", (0.56, 0.56, 0.1)),
    TrialTimes("four streams", "ours", (0.8, 0.8, 0.8)),
    TrialTimes("two streams, alone", "ours alone", (0.2, 0.3, 0.3)),
    TrialTimes("four streams, alone", "ours alone", (0.2, 0.2, 0.3)),
    TrialTimes("64 bytes, alone", "rival alone", (0.32, 0.3, 0.3)),
    TrialTimes("64 bytes", "rival", (0.7, 0.7, 0.2)),
    TrialTimes("128 bytes", "rival", (0.71, 0.72, 0.73)),
]


def test_shares_are_of_medians_and_each_side_is_at_its_best() -> None:
    found = summary(TRIALS)
    assert (found["ours"], found["rival"]) == ("two streams", "64 bytes")
    assert found["hidden_share"] == pytest.approx((0.7 - 0.56) / 0.2)
    assert found["rival_over_ours"] == pytest.approx(0.7 / 0.56)
    assert found["rival_over_ours_alone"] == pytest.approx(0.3 / 0.2)
    assert (found["ddp"], found["ddp_s"]) == (None, None)
    ddp = [TrialTimes("ddp, 1 MiB", "ddp", (0.8, 0.9, 0.9)), TrialTimes("ddp, 25 MiB", "ddp", (0.9, 0.8, 0.8))]
    assert (summary([*TRIALS, *ddp])["ddp"], summary([*TRIALS, *ddp])["ddp_s"]) == ("ddp, 25 MiB", 0.8)
    assert found["slowdown"] == pytest.approx(0.04 / 0.2 / (1 - 0.04 / 0.2))


def test_eight_sizes_of_the_rival_and_the_tensors_of_an_encoder() -> None:
    assert len(set(RIVAL_FUSION_BYTES)) == 8
    assert {streams for streams, _ in OURS} == {2, 4}
    sizes = gradient_sizes()
    assert len(sizes) == 12 * 16 + 5
    assert sum(size < 1000 for size in sizes) > len(sizes) / 2, "most are small"
    assert 5e6 < sum(sizes) < 8e6


def test_the_simulator_takes_the_link_as_it_is_and_hides_what_fits() -> None:
    nbytes = [4 * size for size in gradient_sizes()]
    found = simulated(nbytes, [size // 1000 + 1 for size in nbytes], 0.6, 1.0)
    wire_s = sum(nbytes) / (125e6 * PAYLOAD)
    assert wire_s < found["communication_s"] < 1.2 * wire_s
    assert 0.6 < found["ours_s"] <= found["rival_s"] * 1.001
    assert found["ours_s"] < 0.6 + 0.3 * wire_s
    assert 0.7 < found["hidden_share"] < 1
    slowed = simulated(nbytes, [size // 1000 + 1 for size in nbytes], 0.6, 1.0, slowdown=0.25)
    lost_s = wire_s * 0.25 / 1.25
    assert slowed["ours_s"] == pytest.approx(found["ours_s"] + lost_s, abs=0.3 * lost_s)
    slower = simulated(nbytes, [1] * len(nbytes), 0.6, 0.5)
    assert slower["communication_s"] == pytest.approx(2 * found["communication_s"], rel=0.1)


def test_of_two_ranks_on_a_node_a_ring_sends_half_as_much_again_between_nodes() -> None:
    nbytes = [4 * size for size in gradient_sizes()]
    found = simulated(nbytes, nbytes, 0.1, 1.0, inside=Inside(2, 1e9))
    wire_s = sum(nbytes) / (125e6 * PAYLOAD)
    assert wire_s < found["ours_alone_s"] < 1.2 * wire_s
    assert 1.5 * wire_s < found["rival_alone_s"] < 1.7 * wire_s
    assert found["rival_over_ours"] > 1.25, "compute hides less than the wire takes"


def test_the_lines_name_every_figure() -> None:
    size = {
        "nbytes": 64,
        "one_level_s": [0.2],
        "two_levels_s": [0.1],
        "plan_chooses_two": True,
        "predicted_one_level_s": 0.3,
        "predicted_chosen_s": 0.15,
    }
    said = summary(TRIALS)
    both = {**said, "simulated": said}
    told = lines({**both, "two_ranks_a_node": {**both, "ddp": "ddp, 25 MiB", "ddp_s": 0.9}, "levels": [size]})
    assert told.count("hidden 70%") == 2
    assert told.count("PyTorch's ddp, 25 MiB: 900 ms") == 1
    assert told.count("without compute 300 ms (simulated 300) over 200 ms (simulated 200): 1.50 (simulated 1.50)") == 2
    assert "64 bytes over 4 ranks: one level 200.0 ms (predicted 300.0), two levels 100.0 ms" in told
