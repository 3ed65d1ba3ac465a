"""Limits of figures: what a file, an option or a clock of 64 bits can hold."""

from __future__ import annotations

LARGEST = 2**63 - 1
"""No whole number in a file is larger, and no figure in bytes, or in bytes or FLOPs per second."""
LONGEST_S = 1e9
"""No time that is written with a unit is longer: thirty years."""
LONGEST_ACT_S = 1e6
"""No act, no latency, and no time per FLOP or byte is longer: clocks in nanoseconds can add thousands of them up."""
