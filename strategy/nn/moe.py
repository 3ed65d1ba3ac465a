"""Mixture of experts as a layer: routing, dispatch, the experts' MLP, combination, and the balancing loss.

    x[g,s,d] -> router -> softmax -> top k: weights[g,s,k], experts[g,s,k]
    with a capacity   slots -> buffer[e,g,c,d] -> batched products over e -> combine
    without one       ragged rows[e,g,s,d] -> grouped products -> combine

Expert parallelism is a layout: the experts' weights S(0), the buffer or rows S(e) for the products and S(g) around
them; the conversion between the two is the all-to-all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from strategy.base.errors import InputError, present
from strategy.graph.graph import Attrs
from strategy.nn.layers import swiglu
from strategy.nn.module import Module, Parameter
from strategy.nn.tracer import Tensor


@dataclass(frozen=True, slots=True)
class Routes:
    """Where the tokens of a layer go.

    Attributes:
        weights: [g, s, k], the chosen experts' shares of a token, which sum to one.
        chosen: [g, s, k], the experts.
        balance: [], the balancing loss, a sum over the tokens.
    """

    weights: Tensor
    chosen: Tensor
    balance: Tensor


def route(odds: Tensor, *, choices: int) -> Routes:
    """Every token's k likeliest experts, with weights that sum to one.

    Args:
        odds: [g, s, e], the router's soft-max.
        choices: k.
    """
    best, chosen = odds.tracer.apply("top", "top_k", (odds,), {"k": choices}, labels=("experts",))
    weights = best / best.sum(-1, keepdims=True)
    counts = chosen.apply("demand", "moe_demand", attrs={"experts": odds.shape[2]})
    return Routes(weights, chosen, balance_loss(odds, counts, choices=choices))


def balance_loss(odds: Tensor, counts: Tensor, *, choices: int) -> Tensor:
    """Sum over the tokens of e sum_i f_i P_i, which is 1 per token where all experts are alike in demand.

    f_i is the share of a group's choices that fell on expert i and P_i the mean of its odds there (Fedus et al. 2022,
    arXiv:2101.03961, equations 4 to 6, taken per group). The gradient flows through the odds alone.
    """
    demand = counts.cast(odds.spec.dtype)
    return (odds.mean(1) * demand).sum() * (odds.shape[2] / choices)


class Moe(Module):
    """An MLP of which every token uses `choices` of `experts` copies.

    Args:
        width: of the tokens.
        hidden: width inside an expert.
        experts: how many.
        choices: experts per token.
        capacity_factor: slots over those that an even demand would fill; None drops nothing.
        std, std_out: of the weights at the start; of the way out, where that is given.
        gated: an expert has a SwiGLU of two hidden layers, as in Llama, instead of a GELU of one.
        imbalance: where nothing is dropped, rows of the busiest rank's experts over those of an even demand, as prices
            assume it; what is computed does not depend on it.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        experts: int,
        *,
        choices: int = 2,
        capacity_factor: float | None = 1.25,
        std: float = 0.02,
        std_out: float | None = None,
        gated: bool = False,
        imbalance: float = 1.0,
    ) -> None:
        if not 1 <= choices <= experts:
            raise InputError("more choices than experts", where="MoE", got=choices, expected=f"1 to {experts}")
        if capacity_factor is not None and not 0 < capacity_factor < math.inf:
            raise InputError("no capacity", where="MoE", got=capacity_factor, expected="a finite figure above zero")
        self.choices = choices
        self.capacity_factor = capacity_factor
        self.imbalance = imbalance
        self.router = Parameter((width, experts), f"normal({std})")
        self.gate = Parameter((experts, width, hidden), f"normal({std})") if gated else None
        self.up = Parameter((experts, width, hidden), f"normal({std})")
        self.down = Parameter((experts, hidden, width), f"normal({std if std_out is None else std_out})")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """[g, s, width] -> ([g, s, width], balancing loss []); groups are what capacity is counted in."""
        (x,) = inputs
        odds = x.apply("logits", "matmul", self.parameter("router", x)).softmax()
        routes = route(odds, choices=self.choices)
        experts = self._dropless if self.capacity_factor is None else self._capped
        return experts(x, routes), routes.balance

    def _capacity(self, x: Tensor) -> int:
        """Slots per expert and group."""
        factor = present(self.capacity_factor, "a capacity factor")
        return max(1, math.ceil(self.choices * x.shape[1] * factor / self.router.shape[1]))

    def _capped(self, x: Tensor, routes: Routes) -> Tensor:
        """[g, s, width] -> [g, s, width] by way of [e, g, c, width]."""
        attrs = {"experts": self.router.shape[1], "capacity": self._capacity(x)}
        slots = routes.chosen.apply("slots", "moe_slots", attrs=attrs)
        buffer = x.apply("dispatch", "moe_dispatch", slots, attrs=attrs)
        experts, groups, capacity, width = buffer.shape
        rows = buffer.reshape((experts, groups * capacity, width))
        out = self._experts(rows, "batch_matmul", _PLAIN)
        filled = out.reshape((experts, groups, capacity, width))
        return filled.apply("combine", "moe_combine", slots, routes.weights, attrs=attrs)

    def _dropless(self, x: Tensor, routes: Routes) -> Tensor:
        """[g, s, width] -> [g, s, width] by way of ragged [e, g, s, width]."""
        attrs = {"experts": self.router.shape[1], "imbalance": self.imbalance}
        rows = x.apply("dispatch", "dropless_dispatch", routes.chosen, attrs=attrs)
        out = self._experts(rows, "grouped_matmul", {"transpose": 0})
        return out.apply("combine", "dropless_combine", routes.chosen, routes.weights)

    def _experts(self, rows: Tensor, kind: str, attrs: Attrs) -> Tensor:
        """The experts' MLP on their rows, by one kind of product."""

        def product(x: Tensor, weight: str) -> Tensor:
            return x.apply(f"{weight}_matmul", kind, self.parameter(weight, rows), attrs=attrs)

        up = product(rows, "up")
        return product(up.gelu() if self.gate is None else swiglu(product(rows, "gate"), up, "hidden"), "down")


_PLAIN: Attrs = {"transpose_a": 0, "transpose_b": 0}
