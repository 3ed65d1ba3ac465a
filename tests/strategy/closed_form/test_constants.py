"""Constants: what is believed of them before any run, and before one source's runs."""

from __future__ import annotations

from strategy.closed_form.calibration import TIME
from strategy.closed_form.constants import Constant, without_source


def test_what_one_source_alone_tells_is_believed_as_of_other_systems_without_it() -> None:
    own, other = Constant("host.a", 8e-5, 0.1, "of a", "a", 3e-5), Constant("host.b", 2e-5, 0.1, "of b")
    found = without_source([own, other], "a")
    assert (found[0].name, found[0].prior, found[0].spread) == ("host.a", 3e-5, 0.8)
    assert found[1] == other
    assert without_source([own, other], "b") == [own, other]


def test_constants_of_one_source_say_what_is_believed_elsewhere() -> None:
    told = [constant for constant in TIME if constant.told_by]
    assert len(told) >= 5
    assert all(constant.elsewhere > 0 for constant in told)
