"""Rows B1-B18 of what a gradient exchange is: each is a check that real ranks, and ranks that are threads, have run.

B8, B9, B19 and B20 are of the simulator.
"""

from __future__ import annotations

import json
import math
from functools import cache
from typing import Any

import pytest

from tests.campaigns import exchange
from tests.mpi.exchange_checks import CHECKS, CODECS, on_threads
from tests.mpi.launch import run_ranks
from tests.support.long_parameters import long_but

RANKS = (2, 3, 4)
PAIRS = (64, 4096), (1, 3)

pytestmark = pytest.mark.mpi


@cache
def over_mpi(ranks: int) -> dict[str, list[Any]]:
    """All checks, by one job of so many ranks."""
    found: dict[str, list[Any]] = json.loads(run_ranks(ranks, "tests.mpi.exchange_checks"))
    assert list(found) == list(CHECKS)
    assert all(len(of_ranks) == ranks for of_ranks in found.values())
    return found


def alike(of_ranks: list[Any]) -> Any:
    """What all ranks saw."""
    assert all(seen == of_ranks[0] for seen in of_ranks)
    return of_ranks[0]


@pytest.mark.parametrize("ranks", long_but(RANKS, 1))
def test_b3_names_are_registered_once_and_by_all(ranks: int) -> None:
    (twice, unknown, other), _, right = alike(over_mpi(ranks)["registration"])
    assert "'large': is registered already" in twice
    assert "'lage': was never registered; did you mean 'large'?" in unknown
    assert "got 'float32[999]', expected float32[1000]" in other
    assert right


@pytest.mark.parametrize("ranks", long_but(RANKS, 1))
def test_b4_a_callback_comes_once_after_the_last_fragment(ranks: int) -> None:
    calls, _ = alike(over_mpi(ranks)["callbacks"])
    assert len(calls) == 3 * 21
    assert all(was_whole for _, was_whole in calls)
    assert {name: sum(one == name for one, _ in calls) for name, _ in calls} == {name: 3 for name, _ in calls}


@pytest.mark.parametrize("ranks", long_but(RANKS, 1))
def test_b5_a_slow_stream_holds_no_other_up(ranks: int) -> None:
    for arrived in over_mpi(ranks)["slow_stream"]:
        assert arrived[-2:] == ["t0", "t3"], "of six buckets on three streams, the first stream's"
        assert sorted(arrived[:-2]) == ["t1", "t2", "t4", "t5"]


@pytest.mark.parametrize("ranks", long_but(RANKS, 1))
def test_b6_lists_are_the_same_and_small_tensors_are_fused_and_large_ones_cut(ranks: int) -> None:
    found = alike(over_mpi(ranks)["main_loop"])
    assert all(right for _, _, right in found.values())
    assert found["fused"][1] < 21 < found["cut"][1] + found["apart"][1]
    assert found["cut"][1] >= math.ceil(4000 / 512)


@pytest.mark.parametrize("ranks", long_but(RANKS, 1))
def test_b7_fusion_and_fragments_are_set_apart(ranks: int) -> None:
    counts = {label: count for label, (_, count, _) in alike(over_mpi(ranks)["main_loop"]).items()}
    assert counts["apart"] > counts["cut"] > counts["fused"]


@pytest.mark.parametrize("ranks", long_but(RANKS, 1))
def test_b10_sums_of_two_levels(ranks: int) -> None:
    (_, plain), (_, halves) = alike(over_mpi(ranks)["two_levels"])
    assert plain < 1e-6
    if ranks > 2:
        assert 0 < halves < 3e-3, "between nodes there are halves"


@pytest.mark.parametrize("ranks", long_but(RANKS, 1))
def test_b11_no_rank_handles_more_than_two_messages_per_doubling(ranks: int) -> None:
    for rounds, messages in over_mpi(ranks)["messages"]:
        assert rounds >= 5
        assert messages == rounds * 2 * math.ceil(math.log2(ranks))


@pytest.mark.parametrize("ranks", long_but(RANKS, 1))
def test_b12_all_ranks_make_one_choice_and_make_it_again_when_asked(ranks: int) -> None:
    choices, steps = alike(over_mpi(ranks)["tuning"])
    assert all(size in PAIRS[0] and count in PAIRS[1] for size, count in choices)
    assert steps == [1 + 4 * 3, 4 * 3], "the first step only begins to count; each of four is tried for two after one"


@pytest.mark.parametrize("ranks", long_but(RANKS, 1))
@pytest.mark.parametrize("scale", ["1", "1e+06", "1e-09"])
def test_b13_halves_are_scaled_so_that_none_is_lost(ranks: int, scale: str) -> None:
    found = alike(over_mpi(ranks)["codecs"])
    assert 0 < found[f"fp16 {scale}"][1] < 2e-3
    assert 0 < found[f"bf16 {scale}"][1] < 1.6e-2


@pytest.mark.parametrize("ranks", long_but(RANKS, 1))
def test_b14_codecs_are_plugged_in_and_all_ranks_decode_the_same_bits(ranks: int) -> None:
    found = alike(over_mpi(ranks)["codecs"])
    assert len(found) == 3 * len(CODECS)
    assert 0 < found["int8 1"][1] < 2e-2
    assert found["own 1"][1] == 0


@pytest.mark.parametrize("ranks", long_but(RANKS, 1))
def test_b14_what_top_k_leaves_out_is_sent_later_also_after_a_restart(ranks: int) -> None:
    missing, without = alike(over_mpi(ranks)["residual"])
    assert missing < 1e-3 < 1 < without


@pytest.mark.parametrize("ranks", long_but(RANKS, 1))
def test_b15_what_is_not_finite_is_named_with_its_rank_on_all_ranks(ranks: int) -> None:
    said, unchecked = alike(over_mpi(ranks)["not_finite"])
    wanted = f"tensor 'small.07' is not finite on rank {ranks - 1}; no rank changed it True True"
    assert said == ["True", wanted, "True"], "the other tensors of the step are summed, and training goes on"
    assert unchecked == math.inf, "off by default"


@pytest.mark.parametrize("name", ["callbacks", "main_loop", "two_levels", "not_finite"])
def test_b16_threads_of_one_process_see_what_processes_see(name: str) -> None:
    assert on_threads(name, 3) == over_mpi(3)[name]


def test_b16_threads_register_as_processes_do() -> None:
    """Ranks of a job agree on one order; which tensors share a list in it is that job's own."""
    (said, _, right), (said_there, _, right_there) = (
        alike(on_threads("registration", 3)),
        alike(over_mpi(3)["registration"]),
    )
    assert (said, right) == (said_there, right_there)


def test_b16_codecs_of_threads_are_those_of_processes() -> None:
    """To the bit they are only in one job: tensors that are ready at once share a list, and with it a scale."""
    threads, processes = alike(on_threads("codecs", 3)), alike(over_mpi(3)["codecs"])
    assert threads.keys() == processes.keys()
    for label, (_, error) in threads.items():
        assert error <= 4 * processes[label][1] <= 16 * error, label


@pytest.mark.parametrize("ranks", long_but(RANKS, 1))
def test_b17_every_collective_in_orders_of_the_ranks_own(ranks: int) -> None:
    found, twice = alike(over_mpi(ranks)["operations"])
    assert found == {
        "least": [0, 1 - ranks],
        "most": [ranks - 1],
        "halves": [(ranks + 1) / 2] * 7,
        "rows": [[rank, rank] for rank in range(ranks) for _ in range(rank)],
        "root": ranks - 1,
    }
    assert "is announced a second time while it is under way" in twice


@pytest.mark.parametrize("ranks", long_but(RANKS, 1))
def test_b18_whoever_asked_is_told_of_every_step(ranks: int) -> None:
    assert alike(over_mpi(ranks)["callbacks"])[1] == [0, 1, 2]


@pytest.mark.parametrize("ranks", long_but(RANKS, 1))
def test_ranks_without_data_join(ranks: int) -> None:
    for rank, (means, last, after, mean) in enumerate(over_mpi(ranks)["uneven"]):
        assert means == [(step + ranks - 1) / 2 for step in range(rank + 1)], "over the ranks that have data"
        assert (last, after, mean) == (ranks - 1, ranks, (ranks - 1) / 2)


@pytest.mark.parametrize("ranks", long_but(RANKS, 1))
def test_what_differs_between_ranks_is_one_error_on_all(ranks: int) -> None:
    shapes, dtypes, names, settings = alike(over_mpi(ranks)["mismatched"])
    assert "'w' is not the same on all ranks: sum of float64[3] on rank" in shapes
    assert f"sum of float64[4] on rank {ranks - 1}" in shapes
    assert f"sum of float32[3] on rank {ranks - 1}" in dtypes
    assert "'b' is not the same on all ranks: mean of float64[3] on rank" in names
    assert f"not registered on rank {ranks - 1}" in names
    assert "streams=1" in settings
    assert "streams=2" in settings


@pytest.mark.parametrize("ranks", long_but(RANKS, 1))
def test_what_is_late_is_named_with_the_ranks_that_lack_it(ranks: int) -> None:
    seen = over_mpi(ranks)["late"]
    told_by = {rank: told for rank, (told, _, _) in enumerate(seen) if told}
    assert told_by == {1: ["after 0.3 s: tensor 'b' is not ready on rank 0"]}
    for _, never, waited_s in seen:
        assert never == "StalledTensor: after 1 s: tensor 'a' is not ready on rank 0"
        assert 0.9 < waited_s < 3


@pytest.mark.parametrize("ranks", long_but(RANKS, 1))
def test_who_shuts_down_while_others_wait_is_named(ranks: int) -> None:
    error = alike(over_mpi(ranks)["left_behind"])
    assert "rank 0 shut down without it" in error
    assert "join()" in error


@pytest.mark.long
def test_random_orders_of_arrival_end_and_leave_the_same_bits() -> None:
    """A part of `python -m tests.campaigns exchange --cases 500`."""
    outcome = exchange.run(40, seed=7)
    assert outcome.failures == []
    assert outcome.unmet() == []
    assert outcome.coverage["5 ranks"] == outcome.coverage["2 ranks"] == 20
