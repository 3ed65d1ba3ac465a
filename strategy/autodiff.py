"""Reverse-mode differentiation of a graph: for every op, its `gradient` appends the backward ops.

Gradients of a value with several consumers are added. The loss is a sum and its own gradient is one, so the loss op
starts the walk without reading an output gradient.
"""

from __future__ import annotations

from strategy.builder import GraphBuilder
from strategy.errors import GraphError
from strategy.gradient import GradientBuilder
from strategy.graph import Role
from strategy.ops import op_definition
