"""All-reduces as nccl-tests and all_reduce_bench.py print them, recorded by others."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.logs.collective_log import AllReduceTime, measurements_of, read_collective_log
from strategy.base.errors import InputError
from strategy.hardware.presets import find_cluster

LOGS = Path(__file__).parents[3] / "experiments" / "reference" / "trainer_logs"


def test_columns_may_be_cut_and_digits_grouped() -> None:
    rows = read_collective_log(LOGS / "nccl_tests_all_reduce_a100.txt")
    assert len(rows) == 20
    assert rows[0] == AllReduceTime(32768, pytest.approx(43.83e-6))  # type: ignore[arg-type]
    assert rows[-1].nbytes == 17_179_869_184
    # The printed algbw: bytes over time.
    assert rows[-1].nbytes / rows[-1].seconds / 1e9 == pytest.approx(134.22, rel=1e-3)


def test_rates_of_the_bench_are_times() -> None:
    rows = read_collective_log(LOGS / "all_reduce_bench_h200.txt")
    assert len(rows) == 20
    assert rows[-1].seconds == pytest.approx(2**34 / 275.58e9)


def test_whole_rows_of_nccl_tests(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text(
        "#   size   count   type  redop  root   time  algbw  busbw #wrong   time  algbw  busbw #wrong\n"
        " 1048576  262144  float    sum    -1  92.79  11.30  19.78      0  92.15  11.38  19.91      0\n"
        "# Avg bus bandwidth    : 19.8\n"
    )
    assert read_collective_log(path) == (AllReduceTime(1048576, pytest.approx(92.79e-6)),)  # type: ignore[arg-type]


def test_measurements_are_of_a_ring() -> None:
    cluster = find_cluster("dgx-a100:1")
    (row,) = measurements_of((AllReduceTime(8000, 1.0),), 8, cluster, "here")
    assert (row.features.nbytes, row.features.hops, row.features.level) == (14000, 7, "intra")
    with pytest.raises(InputError, match="2 to 8"):
        measurements_of((AllReduceTime(8000, 1.0),), 16, cluster, "here")


def test_other_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("3 little pigs\n")
    with pytest.raises(InputError, match="no all-reduces"):
        read_collective_log(path)
