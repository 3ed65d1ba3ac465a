"""Mixture of experts as a layer: routing, dispatch, the experts' MLP, combination, and the balancing loss.

    x[g,s,d] -> router -> softmax -> top k: weights[g,s,k], experts[g,s,k] -> slots
    with a capacity   buffer[e,g,c,d] -> batched products over e -> combine
    without one       rows[g,s*k,d], sorted by expert -> grouped products over ragged rows -> combine

Expert parallelism is a layout: the experts' weights S(0), the buffer S(e) for the products and S(g) around them; the
conversion between the two is the all-to-all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from strategy.errors import InputError
from strategy.graph import Attrs
from strategy.nn.layers import swiglu
from strategy.nn.module import Module, Parameter
from strategy.nn.tracer import Tensor


@dataclass(frozen=True, slots=True)
class Routes:
    """Where the tokens of a layer go.

    Attributes:
        weights: [g, s, k], the chosen experts' shares of a token, which sum to one.
        slots: [g, s, k], the slot of every choice; -1 is none.
        counts: [g, e], how many choices fell on each expert, dropped ones included.
        balance: [], the balancing loss, a sum over the tokens.
    """

    weights: Tensor
    slots: Tensor
    counts: Tensor
    balance: Tensor


def route(odds: Tensor, *, choices: int, capacity: int) -> Routes:
    """Every token's k likeliest experts, with weights that sum to one, and its slots there.

    Args:
        odds: [g, s, e], the router's soft-max.
        choices: k.
        capacity: slots per expert and group; 0 drops nothing.
    """
    apply, experts = odds.tracer.apply, odds.shape[2]
    best, chosen = apply("top", "top_k", (odds,), {"k": choices}, labels=("experts",))
    weights = best / best.sum(-1, keepdims=True)
    attrs = {"experts": experts, "capacity": capacity}
    slots, counts = apply("slots", "moe_slots", (chosen,), attrs, labels=("counts",))
    return Routes(weights, slots, counts, balance_loss(odds, counts, choices=choices))


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
    ) -> None:
        if not 1 <= choices <= experts:
            raise InputError("more choices than experts", where="MoE", got=choices, expected=f"1 to {experts}")
        if capacity_factor is not None and not 0 < capacity_factor < math.inf:
            raise InputError("no capacity", where="MoE", got=capacity_factor, expected="a finite figure above zero")
        self.choices = choices
        self.capacity_factor = capacity_factor
        self.router = Parameter((width, experts), f"normal({std})")
        self.gate = Parameter((experts, width, hidden), f"normal({std})") if gated else None
        self.up = Parameter((experts, width, hidden), f"normal({std})")
        self.down = Parameter((experts, hidden, width), f"normal({std if std_out is None else std_out})")

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """[g, s, width] -> ([g, s, width], balancing loss []); groups are what capacity is counted in."""
        (x,) = inputs
        odds = x.apply("logits", "matmul", self.parameter("router", x)).softmax()
        routes = route(odds, choices=self.choices, capacity=self._capacity(x))
        experts = self._dropless if self.capacity_factor is None else self._capped
        return experts(x, routes), routes.balance

    def _capacity(self, x: Tensor) -> int:
        """Slots per expert and group."""
        if self.capacity_factor is None:
            return 0
        return max(1, math.ceil(self.choices * x.shape[1] * self.capacity_factor / self.router.shape[1]))

    def _capped(self, x: Tensor, routes: Routes) -> Tensor:
        """[g, s, width] -> [g, s, width] by way of [e, g, c, width]."""
        attrs = {"experts": self.router.shape[1], "capacity": self._capacity(x)}
        buffer = x.apply("dispatch", "moe_dispatch", routes.slots, attrs=attrs)
        experts, groups, capacity, width = buffer.shape
        rows = buffer.reshape((experts, groups * capacity, width))
        out = self._experts(rows, "batch_matmul", (), _PLAIN)
        filled = out.reshape((experts, groups, capacity, width))
        return filled.apply("combine", "moe_combine", routes.slots, routes.weights, attrs=attrs)

    def _dropless(self, x: Tensor, routes: Routes) -> Tensor:
        """[g, s, width] -> [g, s, width] by way of [g, s * choices, width], sorted by expert."""
        attrs = {"experts": self.router.shape[1], "capacity": 0}
        rows = x.apply("dispatch", "moe_dispatch", routes.slots, attrs=attrs)
        out = self._experts(rows, "grouped_matmul", (routes.counts,), {"transpose": 0})
        return out.apply("combine", "moe_combine", routes.slots, routes.weights, attrs=attrs)

    def _experts(self, rows: Tensor, kind: str, counts: tuple[Tensor, ...], attrs: Attrs) -> Tensor:
        """The experts' MLP on their rows, by one kind of product."""

        def product(x: Tensor, weight: str) -> Tensor:
            return x.apply(f"{weight}_matmul", kind, self.parameter(weight, rows), *counts, attrs=attrs)

        up = product(rows, "up")
        return product(up.gelu() if self.gate is None else swiglu(product(rows, "gate"), up, "hidden"), "down")


_PLAIN: Attrs = {"transpose_a": 0, "transpose_b": 0}
