"""The work of jobs: what is taken of many is what is counted of those alone."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest

from strategy.closed_form.job import Jobs, Shape
from strategy.closed_form.work import measure, trained_parameters
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


def test_trained_are_all_parameters_of_a_model_or_its_adapters(job: Make) -> None:
    """Llama-3-8B has 8.03 billion; adapters of rank 16 beside both products of attention, 9.4 million."""
    shape = Shape.transformer(32, 4096, 32, 14336, 128256, kv_heads=8, gated=True, tied=False)
    llama = job(shape=shape)
    whole, beside = trained_parameters(Jobs.of([llama, replace(llama, frozen=True, adapter_rank=16)]))
    assert whole == pytest.approx(8.03e9, rel=1e-3)
    assert beside == 32 * 16 * ((4096 + 6144) + (4096 + 4096))
