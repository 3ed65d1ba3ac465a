"""Path mixes: as long as their shares say, and as long as they can be."""

from __future__ import annotations

from fractions import Fraction

from strategy.bounds.path_mix import mixed
from strategy.layout.step_times import MeanPath, Overlap, StepTimes, no_times
from strategy.search.candidate.path_mix import longest_mix

OVERLAP = Overlap(allowed=True)
NAMES = ("forward_ns", "backward_ns")


def of_one_pass(name: str, ns: int) -> StepTimes:
    """One stage that does nothing else."""
    found = no_times(1, 1)
    found[name][...] = ns
    return StepTimes(**found, overlap=OVERLAP)


def test_a_mix_is_the_mean_of_its_paths() -> None:
    """Also of paths that are means of several themselves."""
    paths = [MeanPath(of_one_pass(name, 6), number) for name, number in zip(NAMES, (1, 4), strict=True)]
    mix = mixed(paths, [1, 2])
    lengths = [Fraction(mix.length(of_one_pass(name, 10)), mix.number) for name in NAMES]
    assert lengths == [Fraction(60, 3), Fraction(2 * 60, 3 * 4)]


def test_the_longest_mix_is_as_long_as_it_can_be() -> None:
    """Of two paths of which each is short where the other is long, one half of each."""
    paths = [MeanPath(of_one_pass(name, 1), 1) for name in NAMES]
    known = [of_one_pass(name, 100) for name in NAMES]
    mix = mixed(paths, longest_mix(paths, known))
    assert [Fraction(mix.length(times), mix.number) for times in known] == [50, 50]
