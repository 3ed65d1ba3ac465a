"""Exit codes that no error has (see `strategy.base.errors` for those of errors)."""

from __future__ import annotations

EXIT_LIMIT = 4
"""A limit was reached; the best found is written."""
EXIT_INTERRUPTED = 130
"""By Ctrl-C, as shells say it: 128 and the signal's number."""
EXIT_READER_GONE = 141
"""Whoever read the output closed it."""
EXIT_TERMINATED = 143
"""By SIGTERM."""
