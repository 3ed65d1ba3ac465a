"""Figures with units: read exactly, refused without one, printed so that they read back."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategy.base.errors import InputError
from strategy.base.units import (
    BANDWIDTH_UNITS,
    COMPUTE_UNITS,
    SIZE_UNITS,
    TIME_UNITS,
    format_bytes,
    format_duration,
    format_seconds,
    parse_bandwidth,
    parse_bytes,
    parse_compute,
    parse_seconds,
    to_ns,
)

PARSERS = {
    parse_bytes: SIZE_UNITS,
    parse_bandwidth: BANDWIDTH_UNITS,
    parse_compute: COMPUTE_UNITS,
    parse_seconds: TIME_UNITS,
}


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("80 GiB", 80 * 2**30),
        ("1 B", 1),
        ("1.5kB", 1500),
        ("2 KiB", 2048),
        ("  3 MB ", 3_000_000),
        ("1e3 B", 1000),
        ("3 MiB", 3 * 1024**2),
        ("2 TiB", 2 * 1024**4),
    ],
)
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes
    assert isinstance(parse_bytes(text), int)


def test_rates_and_times() -> None:
    assert parse_bandwidth("400 Gbit/s") == 50e9 == parse_bandwidth("50 GB/s")
    assert parse_bandwidth("1 GiB/s") == 2**30
    assert parse_compute("312 TFLOP/s") == 312e12
    assert parse_seconds("5 us") == pytest.approx(5e-6)
    assert parse_seconds("0 s") == 0


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: parse.__name__)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "5.",
        "GB",
        "5 X",
        "five GB",
        "1,5 GB",
        "1_0 GB",
        "nan B",
        "inf B",
        "nan GB/s",
        "inf s",
        "5 5 GB",
        "0x5 B",
        "5 gb",
        "5 GB/S",
        "5 Gb/s",
        "5 TFLOPS",
        "5 sec",
        "5 Us",
        "--5 GB",
        "5e GB",
    ],
)
def test_what_is_no_figure_with_a_unit_is_refused(parse: object, text: str) -> None:
    assert callable(parse)
    with pytest.raises(InputError, match=r"^c\.toml: key: not a figure with a unit .*got .*expected .*units: "):
        parse(text, where="c.toml: key")


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: parse.__name__)
@pytest.mark.parametrize("value", [5, 5.0, None, True, ["5 GB"], {"GB": 5}, math.nan, b"5 GB"])
def test_what_is_no_text_is_refused(parse: object, value: object) -> None:
    assert callable(parse)
    with pytest.raises(InputError, match="not a figure with a unit"):
        parse(value)


@pytest.mark.parametrize("parse", PARSERS, ids=lambda parse: parse.__name__)
@pytest.mark.parametrize("figure", ["-1", "-0.5", "1e999", "-1e999"])
def test_figures_that_cannot_be_are_refused(parse: object, figure: str) -> None:
    assert callable(parse)
    for unit in PARSERS[parse]:
        with pytest.raises(InputError, match="not a possible figure"):
            parse(f"{figure} {unit}")


def test_zero_is_a_time_and_nothing_else() -> None:
    for parse, text in ((parse_bytes, "0 GB"), (parse_bandwidth, "0 GB/s"), (parse_compute, "0 FLOP/s")):
        with pytest.raises(InputError, match="expected 1 to "):
            parse(text)


def test_less_than_a_byte_is_no_size() -> None:
    with pytest.raises(InputError, match="expected 1 to "):
        parse_bytes("0.3 B")


def test_units_of_another_quantity_are_refused() -> None:
    for parse, units in PARSERS.items():
        for unit in {u for others in PARSERS.values() for u in others} - set(units):
            with pytest.raises(InputError, match="not a figure with a unit"):
                parse(f"5 {unit}")


@given(st.floats(8, 1e3), st.sampled_from(sorted(BANDWIDTH_UNITS)))
def test_figures_scale_with_their_unit(figure: float, unit: str) -> None:
    assert parse_bandwidth(f"{figure!r} {unit}") == pytest.approx(figure * parse_bandwidth(f"8 {unit}") / 8)


@given(st.integers(1, 2**50))
def test_printed_sizes_read_back_nearly(nbytes: int) -> None:
    assert parse_bytes(format_bytes(nbytes)) == pytest.approx(nbytes, rel=0.01)


@given(st.floats(1e-9, 1e5))
def test_printed_times_read_back_nearly(seconds: float) -> None:
    assert parse_seconds(format_seconds(seconds)) == pytest.approx(seconds, rel=0.01, abs=0.5e-9)


def test_printed_figures() -> None:
    assert [format_bytes(n) for n in (0, 1023, 1024, 3 * 2**29, 2**40)] == [
        "0 B",
        "1023 B",
        "1.00 KiB",
        "1.50 GiB",
        "1.00 TiB",
    ]
    assert [format_seconds(s) for s in (0, 5e-9, 12e-6, 0.0123, 2)] == ["0 ns", "5 ns", "12 us", "12.3 ms", "2 s"]
    longer = [format_duration(s) for s in (0.5, 100, 300, 5400, 1.8e8, 172800)]
    assert longer == ["500 ms", "100 s", "5 min", "90 min", "2.08e+03 d", "2 d"]


def test_nanoseconds_round_to_nearest() -> None:
    assert [to_ns(s) for s in (0, 1.4e-9, 1.6e-9, 2.5)] == [0, 1, 2, 2_500_000_000]


@pytest.mark.parametrize("seconds", [1e7, math.inf, math.nan])
def test_an_act_that_no_clock_could_count_is_refused(seconds: float) -> None:
    with pytest.raises(InputError, match="takes too long to be counted"):
        to_ns(seconds)
    assert to_ns(1e6) == 10**15


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        (parse_bandwidth, "1e-300 B/s"),
        (parse_bandwidth, "1e300 B/s"),
        (parse_compute, "1e-300 FLOP/s"),
        (parse_bytes, "1e300 B"),
        (parse_seconds, "1e300 s"),
    ],
)
def test_figures_of_no_machine_are_refused(parse: object, text: str) -> None:
    assert callable(parse)
    with pytest.raises(InputError, match="not a possible figure"):
        parse(text)
