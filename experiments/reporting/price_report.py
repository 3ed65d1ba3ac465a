"""Price report: what `sbplan price --json` printed of a trainer's configuration, to be shown as a page."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from strategy.base.errors import InputError
from strategy.base.files import read_json

MOST_PRICE_BYTES = 2**20
"""Of a price; plans of small models may be as small, those that are larger are not read to tell."""
_FIGURES = ("step_time_s", "lo_s", "hi_s", "tokens_per_s_per_gpu", "mfu", "gpus", "global_batch", "peak_memory_bytes",
            "memory_limit_bytes", "memory_margin_bytes")  # fmt: skip
_TABLES = ("time_by_cause_s", "memory_by_cause", "model", "read", "defaults", "unused", "unpriced")
_LISTS = ("extrapolated", "assumed", "not_understood")
_OTHERS = ("file", "trainer", "gpu", "fits", "fit_probability", "search", "search_left_out", "training")


def read_price(path: Path) -> Mapping[str, Any] | None:
    """A price, or None of a file that is no price.

    Raises:
        InputError: it is one that lacks something.
    """
    if not path.is_file() or path.stat().st_size > MOST_PRICE_BYTES:
        return None
    try:
        found = read_json(path)
    except InputError:  # what a plan lacks is told by who reads plans
        return None
    if not isinstance(found, dict) or "memory_by_cause" not in found:
        return None
    wrong = [name for name in _FIGURES if not isinstance(found.get(name), int | float)]
    wrong += [name for name in _TABLES if not isinstance(found.get(name), dict)]
    wrong += [name for name in _LISTS if not isinstance(found.get(name), list)]
    wrong += [name for name in _OTHERS if name not in found]
    if wrong:
        hint = "write it again: sbplan price FILE --json > price.json"
        raise InputError("not a whole price", where=str(path), got=f"no {', '.join(wrong)}", hint=hint)
    return found
