"""Mixture of experts as a layer: routing, dispatch, the experts' MLP, combination, and the balancing loss.

    x[g,s,d] -> router -> softmax or sigmoid -> top k: weights[g,s,k], experts[g,s,k]
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
from strategy.nn.layers import gated as gated_by
from strategy.nn.module import Module, Parameter
from strategy.nn.tracer import Tensor


@dataclass(frozen=True, slots=True)
class Routing:
    """How a token's experts and their weights follow from a router's logits.

    Attributes:
        choices: experts per token.
        sigmoid: every expert has odds of its own; else they are a soft-max.
        normalised: the weights of a token sum to one; else they are the odds.
        scale: of the weights.
        groups: experts lie in so many groups, one after another.
        chosen_groups: a token chooses among the experts of so many groups: of those with the best expert, or, by
            sigmoids, with the best two (DeepSeek-V3, arXiv:2412.19437, section 2.1.2).
        balanced: there is a balancing loss.
    """

    choices: int
    sigmoid: bool = False
    normalised: bool = True
    scale: float = 1.0
    groups: int = 1
    chosen_groups: int = 1
    balanced: bool = True


@dataclass(frozen=True, slots=True)
class Routes:
    """Where the tokens of a layer go.

    Attributes:
        weights: [g, s, k], the chosen experts' shares of a token.
        chosen: [g, s, k], the experts.
        balance: [], the balancing loss, a sum over the tokens, if there is one.
    """

    weights: Tensor
    chosen: Tensor
    balance: Tensor | None


def route(odds: Tensor, routing: Routing) -> Routes:
    """Every token's k likeliest experts.

    Args:
        odds: [g, s, e], what the router's logits became.
        routing: how experts are chosen.
    """
    allowed = odds if routing.chosen_groups == routing.groups else _of_best_groups(odds, routing)
    best, chosen = _top(allowed, "top", routing.choices)
    weights = best / best.sum(-1, keepdims=True) if routing.normalised else best
    if routing.scale != 1.0:
        weights = weights * routing.scale
    if not routing.balanced:
        return Routes(weights, chosen, None)
    counts = chosen.apply("demand", "moe_demand", attrs={"experts": odds.shape[2]})
    return Routes(weights, chosen, balance_loss(odds, counts, choices=routing.choices))


def _top(x: Tensor, label: str, count: int) -> tuple[Tensor, Tensor]:
    """The largest of the last dim, and where they were."""
    best, places = x.tracer.apply(label, "top_k", (x,), {"k": count}, labels=("experts",))
    return best, places


def _of_best_groups(odds: Tensor, routing: Routing) -> Tensor:
    """The odds, zero outside of a token's best groups."""
    g, s, e = odds.shape
    by_group = odds.reshape("groups", (g, s, routing.groups, e // routing.groups))
    best = _top(by_group, "group_top", 2)[0].sum(-1) if routing.sigmoid else by_group.max(-1)
    _, chosen = _top(best, "top_groups", routing.chosen_groups)
    attrs: Attrs = {"depth": routing.groups, "dtype": str(odds.spec.dtype)}
    mask = chosen.apply("group_mask", "one_hot", attrs=attrs).sum(2)
    allowed = by_group * mask.reshape("mask", (g, s, routing.groups, 1))
    return allowed.reshape("allowed", (g, s, e))


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
        routing: how tokens choose; two experts each, by a soft-max, unless given.
        capacity_factor: slots over those that an even demand would fill; None drops nothing.
        std, std_out: of the weights at the start; of the way out, where that is given.
        gated: an expert has a SwiGLU of two hidden layers, as in Llama, instead of a GELU of one.
        router_bias: the router's logits have a bias.
        bounded: gates and inner layers of gated experts stay within this bound and their maps have biases, as those of
            gpt-oss; nothing may be dropped then.
        activation: the kind between the maps.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        experts: int,
        *,
        routing: Routing | None = None,
        capacity_factor: float | None = 1.25,
        std: float = 0.02,
        std_out: float | None = None,
        gated: bool = False,
        router_bias: bool = False,
        bounded: float = 0.0,
        activation: str = "",
    ) -> None:
        self.routing = routing or Routing(2)
        choices = self.routing.choices
        if not 1 <= choices <= experts:
            raise InputError("more choices than experts", where="MoE", got=choices, expected=f"1 to {experts}")
        if bounded and (capacity_factor is not None or not gated):
            raise InputError("only gated experts that drop nothing are bounded", where="MoE", got=capacity_factor)
        if capacity_factor is not None and not 0 < capacity_factor < math.inf:
            raise InputError("no capacity", where="MoE", got=capacity_factor, expected="a finite figure above zero")
        self.capacity_factor = capacity_factor
        self.bounded = bounded
        self.activation = activation or ("silu" if gated else "gelu")
        self.router = Parameter((width, experts), f"normal({std})")
        self.router_bias = Parameter((experts,)) if router_bias else None
        self.gate = Parameter((experts, width, hidden), f"normal({std})") if gated else None
        self.up = Parameter((experts, width, hidden), f"normal({std})")
        self.down = Parameter((experts, hidden, width), f"normal({std if std_out is None else std_out})")
        self.gate_bias = Parameter((experts, hidden)) if bounded else None
        self.up_bias = Parameter((experts, hidden)) if bounded else None
        self.down_bias = Parameter((experts, width)) if bounded else None

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """[g, s, width] -> [g, s, width], and the balancing loss [] if there is one.

        Groups are what capacity is counted in.
        """
        (x,) = inputs
        logits = x.apply("logits", "matmul", self.parameter("router", x))
        if self.router_bias is not None:
            logits = logits.apply("biased_logits", "add", self.parameter("router_bias", x))
        routes = route(logits.sigmoid() if self.routing.sigmoid else logits.softmax(), self.routing)
        experts = self._dropless if self.capacity_factor is None else self._capped
        return experts(x, routes), routes.balance

    def _capacity(self, x: Tensor) -> int:
        """Slots per expert and group."""
        factor = present(self.capacity_factor, "a capacity factor")
        return max(1, math.ceil(self.routing.choices * x.shape[1] * factor / self.router.shape[1]))

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
        attrs = {"experts": self.router.shape[1], "imbalance": 1.0, "room": 0.0}
        rows = x.apply("dispatch", "dropless_dispatch", routes.chosen, attrs=attrs)
        out = self._experts(rows, "grouped_matmul", {"transpose": 0})
        return out.apply("combine", "dropless_combine", routes.chosen, routes.weights)

    def _experts(self, rows: Tensor, kind: str, attrs: Attrs) -> Tensor:
        """The experts' MLP on their rows, by one kind of product."""

        def product(x: Tensor, weight: str) -> Tensor:
            y = x.apply(f"{weight}_matmul", kind, self.parameter(weight, rows), attrs=attrs)
            if not self.bounded:
                return y
            return y.apply(f"{weight}_biased", "add_by_expert", self.parameter(f"{weight}_bias", rows))

        up = product(rows, "up")
        if self.bounded:
            bound = {"limit": self.bounded}
            return product(product(rows, "gate").apply("hidden", "bounded_swiglu", up, attrs=bound), "down")
        if self.gate is None:
            return product(up.operate(self.activation), "down")
        return product(gated_by(product(rows, "gate"), up, "hidden", activation=self.activation), "down")


_PLAIN: Attrs = {"transpose_a": 0, "transpose_b": 0}
