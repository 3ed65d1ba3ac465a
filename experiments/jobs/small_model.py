"""The small model that `demo` trains and `profile` measures."""

from __future__ import annotations

MODEL = "gpt-tiny"
GLOBAL_BATCH = 16
