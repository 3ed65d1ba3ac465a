"""graph: the logical program of a step, the ops that it is made of, and their signatures."""

from strategy.graph.graph import Graph, Op, Value

__all__ = ["Graph", "Op", "Value"]
