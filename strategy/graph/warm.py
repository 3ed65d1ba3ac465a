"""Compiles the kernels of rows once, so that no rank waits for it: `python -m strategy.graph.warm`."""

from __future__ import annotations

from strategy.graph.ops.row_kernels import OBJECT_FILE

if __name__ == "__main__":
    OBJECT_FILE.load()
