"""The fit: what it finds, by how few evaluations, and how little noise moves it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pytest

from strategy.closed_form.constants import Constant
from strategy.closed_form.fit import Model, fit

RUNS, OWN = 60, 12
"""Runs, and constants of which each has a say in a twelfth of them; one more has a say in all."""
RNG = np.random.default_rng(3)
SIZES = RNG.uniform(1, 5, (RUNS, 2))
NOISE = np.exp(RNG.normal(0, 0.05, RUNS))
OWNER = np.arange(RUNS) % OWN
DECLARED = [*(Constant(f"own.{number}", 1.0, 0.5, "") for number in range(OWN)), Constant("all", 1.0, 0.5, "")]
TOUCHED = np.array([*(number == OWNER for number in range(OWN)), np.ones(RUNS, dtype=bool)])
TRUE = {f"own.{number}": 0.5 + 0.1 * number for number in range(OWN)} | {"all": 1.7}


def model(constants: Mapping[str, float]) -> npt.NDArray[np.float64]:
    own = np.array([constants[f"own.{number}"] for number in range(OWN)])[OWNER]
    return np.asarray(own * SIZES[:, 0] + constants["all"] * SIZES[:, 1])


MEASURED = model(TRUE) * NOISE


class Counted:
    """The model, which counts how often it is asked."""

    def __init__(self, noise: float = 0.0) -> None:
        self.asked = 0
        self.noise = noise

    def __call__(self, constants: Mapping[str, float]) -> npt.NDArray[np.float64]:
        self.asked += 1
        shaken = np.random.default_rng(self.asked).standard_normal(RUNS)
        return np.asarray(model(constants) * (1 + self.noise * shaken))


def fitted(asked: Model, touched: npt.NDArray[np.bool_] | None = TOUCHED) -> dict[str, float]:
    return dict(fit(asked, MEASURED, np.ones(RUNS), DECLARED, touched=touched).values)


def test_constants_are_found_within_the_noise_of_their_runs() -> None:
    found = fitted(model)
    assert found["all"] == pytest.approx(TRUE["all"], rel=0.05)
    assert max(abs(np.log(found[name] / TRUE[name])) for name in TRUE) < 0.3


def test_constants_that_share_no_run_are_moved_at_once_and_found_alike() -> None:
    together, alone = Counted(), Counted()
    assert fitted(together) == fitted(alone, None)
    print(f"asked {together.asked} times, {alone.asked} one by one")
    assert together.asked < alone.asked / 3


def test_noise_in_the_last_digit_stays_there() -> None:
    kept = fitted(model)
    for noise in (1e-16, 1e-15):
        shaken = fitted(Counted(noise))
        assert max(abs(shaken[name] / kept[name] - 1) for name in kept) < 1e6 * noise


def test_what_no_run_tells_keeps_its_prior() -> None:
    untold = Constant("untold", 3.0, 0.5, "")
    touched = np.vstack([TOUCHED, np.zeros(RUNS, dtype=bool)])
    found = fit(model, MEASURED, np.ones(RUNS), [*DECLARED, untold], touched=touched)
    assert found.values["untold"] == pytest.approx(3.0)
    assert found.half_widths["untold"] == pytest.approx(1.645 * 0.5, rel=1e-6)
