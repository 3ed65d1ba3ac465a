"""The work of jobs: what is taken of many is what is counted of those alone."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from strategy.closed_form.job import Jobs
from strategy.closed_form.work import measure
from tests.strategy.closed_form.conftest import Make


def arrays(part: Any) -> dict[str, Any]:
    """Every array of a value, and of the values in it, by its path."""
    found = {}
    for field in fields(part):
        value = getattr(part, field.name)
        inner = {"": value} if isinstance(value, np.ndarray) else arrays(value)
        found |= {f"{field.name}.{path}": one for path, one in inner.items()}
    return found


def test_the_work_of_some_jobs_is_counted_of_those_alone(job: Make) -> None:
    jobs = [job(), job(tp=4), job(micro_batch=4), job(precision="single"), job(recompute="none")]
    some = np.array([True, False, True, True, False])
    taken = arrays(measure(Jobs.of(jobs)).of(some))
    alone = arrays(measure(Jobs.of([one for one, wanted in zip(jobs, some, strict=True) if wanted])))
    assert taken.keys() == alone.keys()
    assert len(taken) > 40
    for name, one in taken.items():
        assert one.tobytes() == alone[name].tobytes(), name
