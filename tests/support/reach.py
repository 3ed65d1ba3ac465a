"""A plugin of pytest under coverage: which test runs which line, and how long it takes.

    python -m coverage run -m pytest -p reach ...

Every line is recorded under the identifier of the test that ran it, and the phase: what a fixture of many tests runs
is under the first that asked for it. `reach.times` has a line per phase of a test: its identifier, seconds, passed.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from coverage import Coverage

TIMES = "reach.times"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fixtures of a test."""
    _record_under(f"{item.nodeid}|setup")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> None:
    """The test."""
    _record_under(f"{item.nodeid}|call")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """What a phase of a test took."""
    with Path(TIMES).open("a") as times:
        times.write(json.dumps([report.nodeid, report.duration, report.outcome != "failed"]) + "\n")


def _record_under(context: str) -> None:
    measured = Coverage.current()
    if measured is not None:
        measured.switch_context(context)
