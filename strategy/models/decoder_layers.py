"""What decoders are made of: attention, MLP, experts, the layer and the model, each from the description.

`std_out` of the maps whose results are added to the residual stream falls with the depth, as GPT-2's.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from strategy.models.decoder_description import DecoderDescription, HeadNorm, NormPosition, Router
from strategy.nn.layers import Embedding, LayerNorm, Linear, RmsNorm, attention, gated, rotary
from strategy.nn.losses import cross_entropy, joint_loss
from strategy.nn.module import Layers, Module, Parameter
from strategy.nn.moe import Moe, Routing
from strategy.nn.tracer import Tensor


def std_out(config: DecoderDescription) -> float:
    """The spread at the start of what is added to the residual stream."""
    return 0.02 / math.sqrt(2 * config.depth)


def norm_of(config: DecoderDescription, width: int) -> Module:
    """A norm over so many elements."""
    return (LayerNorm if config.layer_norm else RmsNorm)(width, epsilon=config.epsilon)


def turned(config: DecoderDescription, x: Tensor, label: str, window: int) -> Tensor:
    """Heads [b, s, h, d] turned by their positions, as a layer with this window does."""
    if window and config.window_rotary_base:
        return rotary(x, label, base=config.window_rotary_base)
    if not config.rotary_base:
        return x
    return rotary(x, label, base=config.rotary_base, frequencies=config.rotary_frequencies, scale=config.rotary_scale)


class DecoderAttention(Module):
    """Self-attention of several heads of queries to one of keys and values."""

    def __init__(self, config: DecoderDescription, window: int) -> None:
        c = self.config = config
        self.window = window
        queries, keys, values = c.heads * c.head_width, c.key_heads * c.head_width, c.key_heads * c.values
        self.q = Linear(c.width, queries, bias=c.qkv_bias)
        self.k = Linear(c.width, keys, bias=c.qkv_bias)
        self.v = Linear(c.width, values, bias=c.qkv_bias)
        self.proj = Linear(c.heads * c.values, c.width, std=std_out(c), bias=c.output_bias)
        self.q_norm = self.k_norm = None
        if c.head_norm != HeadNorm.NONE:
            per_head = c.head_norm == HeadNorm.HEAD
            self.q_norm = RmsNorm(c.head_width if per_head else queries, epsilon=c.epsilon)
            self.k_norm = RmsNorm(c.head_width if per_head else keys, epsilon=c.epsilon)
        self.sinks = Parameter((c.heads,)) if c.sinks else None

    def forward(self, *inputs: Tensor) -> Tensor:
        """[b, s, w] -> [b, s, w]."""
        (x,) = inputs
        c, (b, s, _) = self.config, x.shape
        q = self._heads(self.q(x), self.q_norm, "q_heads", c.heads)
        k = self._heads(self.k(x), self.k_norm, "k_heads", c.key_heads)
        v = self.v(x).reshape("v_heads", (b, s, c.key_heads, c.values))
        q, k = turned(c, q, "q_turned", self.window), turned(c, k, "k_turned", self.window)
        sinks = None if self.sinks is None else self.parameter("sinks", x)
        mixed = attended(c, q, k, v, self.window, sinks)
        projected: Tensor = self.proj(mixed.reshape("merge", (b, s, c.heads * c.values)))
        return projected

    def _heads(self, x: Tensor, norm: Module | None, label: str, heads: int) -> Tensor:
        """[b, s, h d] -> [b, s, h, d], normalised before or after that."""
        b, s, _ = x.shape
        whole = norm is not None and self.config.head_norm == HeadNorm.WHOLE
        x = norm(x) if norm is not None and whole else x
        x = x.reshape(label, (b, s, heads, self.config.head_width))
        return x if norm is None or whole else norm(x)


def attended(
    c: DecoderDescription, q: Tensor, k: Tensor, v: Tensor, window: int, sinks: Tensor | None = None
) -> Tensor:
    """Causal attention by the description's scores; a window as long as the sample hides nothing."""
    seen = window if window < q.shape[1] else 0
    return attention(
        q, k, v, "attention", causal=True, sinks=sinks, window=seen, scale=c.score_scale, softcap=c.score_cap
    )


class LatentAttention(Module):
    """Attention by way of a latent that keys and values are made of (DeepSeek-V2, arXiv:2405.04434, section 2.1).

    A head's query and key have a part that does not turn and `rotary_key` elements that do; of a key the latter are the
    same for all heads, and made of the residual stream itself.
    """

    def __init__(self, config: DecoderDescription, window: int) -> None:
        c = self.config = config
        self.window = window
        still = c.head_width - c.rotary_key
        self.q_down = Linear(c.width, c.query_latent, bias=c.qkv_bias) if c.query_latent else None
        self.q_norm = RmsNorm(c.query_latent, epsilon=c.epsilon) if c.query_latent else None
        self.q = Linear(c.query_latent or c.width, c.heads * c.head_width, bias=False)
        self.kv_down = Linear(c.width, c.key_latent, bias=c.qkv_bias)
        self.k_turning = Linear(c.width, c.rotary_key, bias=c.qkv_bias)
        self.kv_norm = RmsNorm(c.key_latent, epsilon=c.epsilon)
        self.k = Linear(c.key_latent, c.heads * still, bias=False)
        self.v = Linear(c.key_latent, c.heads * c.values, bias=False)
        self.proj = Linear(c.heads * c.values, c.width, std=std_out(c), bias=c.output_bias)

    def forward(self, *inputs: Tensor) -> Tensor:
        """[b, s, w] -> [b, s, w]."""
        (x,) = inputs
        c, (b, s, _) = self.config, x.shape
        still = c.head_width - c.rotary_key
        latent = x if self.q_down is None or self.q_norm is None else self.q_norm(self.q_down(x))
        q = self.q(latent).reshape("q_heads", (b, s, c.heads, c.head_width))
        begin, end = (0, 0, 0, still), (b, s, c.heads, c.head_width)
        q_still = q.apply("q_still", "slice", attrs={"begin": (0, 0, 0, 0), "end": (b, s, c.heads, still)})
        q_turning = q.apply("q_turning", "slice", attrs={"begin": begin, "end": end})
        q_turned = turned(c, q_turning, "q_turned", self.window)
        q = q_still.apply("queries", "concat", q_turned, attrs={"axis": 3})
        latent = self.kv_norm(self.kv_down(x))
        k_still = self.k(latent).reshape("k_heads", (b, s, c.heads, still))
        k_turning = self.k_turning(x).reshape("k_head", (b, s, 1, c.rotary_key))
        shape = (b, s, c.heads, c.rotary_key)
        k_turned = turned(c, k_turning, "k_turned", self.window).apply("k_shared", "expand", attrs={"shape": shape})
        k = k_still.apply("keys", "concat", k_turned, attrs={"axis": 3})
        v = self.v(latent).reshape("v_heads", (b, s, c.heads, c.values))
        mixed = attended(c, q, k, v, self.window)
        projected: Tensor = self.proj(mixed.reshape("merge", (b, s, c.heads * c.values)))
        return projected


class DecoderMlp(Module):
    """Two maps with an activation between, or a hidden layer that another one gates."""

    def __init__(self, config: DecoderDescription, hidden: int) -> None:
        c = self.config = config
        self.gate = Linear(c.width, hidden, bias=c.mlp_bias) if c.gated else None
        self.up = Linear(c.width, hidden, bias=c.mlp_bias)
        self.down = Linear(hidden, c.width, std=std_out(c), bias=c.mlp_bias)

    def forward(self, *inputs: Tensor) -> Tensor:
        """[b, s, w] -> [b, s, w]."""
        (x,) = inputs
        kind = self.config.activation
        if self.gate is None:
            hidden = self.up(x).apply("hidden", kind)
        else:
            hidden = gated(self.gate(x), self.up(x), "hidden", activation=kind)
        out: Tensor = self.down(hidden)
        return out


class SharedExpert(Module):
    """An MLP that every token takes, weighed by a figure per token or not."""

    def __init__(self, config: DecoderDescription) -> None:
        self.mlp = DecoderMlp(config, config.shared_hidden)
        self.share = Linear(config.width, 1, bias=False) if config.shared_gate else None

    def forward(self, *inputs: Tensor) -> Tensor:
        """[b, s, w] -> [b, s, w]."""
        (x,) = inputs
        out: Tensor = self.mlp(x)
        return out if self.share is None else out.apply("weighed", "mul", self.share(x).apply("weight", "sigmoid"))


def experts_of(config: DecoderDescription) -> Moe:
    """The mixture of experts of a layer."""
    c = config
    routing = Routing(
        c.choices,
        sigmoid=c.router == Router.SIGMOID,
        normalised=c.normalised,
        scale=c.routed_scale,
        groups=c.groups,
        chosen_groups=c.chosen_groups,
        balanced=c.balance > 0,
    )
    return Moe(
        c.width,
        c.expert_hidden,
        c.experts,
        routing=routing,
        capacity_factor=None,
        gated=c.gated,
        std_out=std_out(c),
        router_bias=c.router_bias,
        bounded=c.gate_limit if c.expert_bias else 0.0,
        activation=c.activation,
    )


class DecoderLayer(Module):
    """Attention, then an MLP or experts; each is added to the residual stream."""

    is_layer = True

    def __init__(self, config: DecoderDescription, window: int, sparse: bool) -> None:
        self.config = config
        around = config.norm_position == NormPosition.AROUND
        self.norm1 = norm_of(config, config.width)
        self.attn = (LatentAttention if config.key_latent else DecoderAttention)(config, window)
        self.norm1_after = norm_of(config, config.width) if around else None
        self.norm2 = norm_of(config, config.width)
        self.mlp = None if sparse else DecoderMlp(config, config.hidden)
        self.moe = experts_of(config) if sparse else None
        self.shared = SharedExpert(config) if sparse and config.shared_hidden else None
        self.norm2_after = norm_of(config, config.width) if around else None

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """[b, s, w] -> [b, s, w], and the balancing loss [] of a layer with experts."""
        x, place = inputs[0], self.config.norm_position
        before = place != NormPosition.AFTER
        branch = self.attn(self.norm1(x) if before else x)
        if place == NormPosition.PARALLEL:
            branch, (out, balance) = x.apply("residual1", "add", branch), self._mixed(self.norm2(x))
            return branch.apply("residual2", "add", out), balance
        x = x.apply("residual1", "add", self._after(branch, self.norm1, self.norm1_after))
        out, balance = self._mixed(self.norm2(x) if before else x)
        return x.apply("residual2", "add", self._after(out, self.norm2, self.norm2_after)), balance

    def _after(self, branch: Tensor, norm: Module, second: Module | None) -> Tensor:
        """What is added to the stream of what a branch gave."""
        found: Tensor = branch
        if second is not None:
            found = second(branch)
        elif self.config.norm_position == NormPosition.AFTER:
            found = norm(branch)
        return found

    def _mixed(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the MLP or the experts make of it, and the latter's balancing loss."""
        if self.moe is None:
            assert self.mlp is not None
            return self.mlp(x), None
        mixed, balance = self.moe(x)
        if self.shared is not None:
            mixed = mixed.apply("with_shared", "add", self.shared(x))
        return mixed, balance


class LayerGroup(Module):
    """Layers one after another, which count as one repeated layer, or as none."""

    def __init__(self, members: Sequence[DecoderLayer]) -> None:
        self.members = tuple(members)

    def children(self) -> Iterator[tuple[str | int, Module]]:
        """The members by their place, which is a name: they are no layers that repeat."""
        yield from ((str(place), member) for place, member in enumerate(self.members))

    def forward(self, *inputs: Tensor) -> tuple[Tensor, list[Tensor]]:
        """[b, s, w] -> [b, s, w], and the balancing losses."""
        x, balances = inputs[0], list[Tensor]()
        for member in self.members:
            x, balance = member(x)
            balances += [] if balance is None else [balance]
        return x, balances


class TokenAhead(Module):
    """A layer that predicts one token further than the one before (DeepSeek-V3, arXiv:2412.19437, equations 21 to 23).

    It joins the token that was just predicted to the residual stream, whose last norm is not applied; the embedding
    comes first, as in DeepSeek's files.
    """

    is_layer = True

    def __init__(self, config: DecoderDescription) -> None:
        c = config
        self.token_norm = norm_of(c, c.width)
        self.stream_norm = norm_of(c, c.width)
        self.join = Linear(2 * c.width, c.width, bias=False)
        self.layer = DecoderLayer(c, *c.kinds[-1])
        self.norm = norm_of(c, c.width)

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor | None]:
        """(stream [b, s, w], embedded tokens [b, s, w]) -> stream [b, s, w], and the balancing loss [] of experts."""
        stream, token = inputs
        joined = self.token_norm(token).apply("joined", "concat", self.stream_norm(stream), attrs={"axis": 2})
        found: tuple[Tensor, Tensor | None] = self.layer(self.join(joined))
        return found


class TokensAhead(Module):
    """Layers behind the last one, by their place, which is a name: they are no layers that repeat."""

    def __init__(self, config: DecoderDescription) -> None:
        self.members = tuple(TokenAhead(config) for _ in range(config.ahead))

    def children(self) -> Iterator[tuple[str | int, Module]]:
        """The members."""
        yield from ((str(place), member) for place, member in enumerate(self.members))


class Decoder(Module):
    """Token ids and labels -> summed loss and count."""

    def __init__(self, config: DecoderDescription) -> None:
        c = self.config = config
        kinds, end = c.kinds, len(c.kinds) - c.after
        self.token = Embedding(c.vocabulary, c.width)
        self.position = Parameter((c.sequence, c.width), "normal(0.01)") if c.learned_positions else None
        self.before = _run(c, kinds[: c.before]) if c.before else None
        self.layers = Layers([_period(c, kinds[c.before : end]) for _ in range(c.layers)])
        self.after = _run(c, kinds[end:]) if c.after else None
        self.norm = norm_of(c, c.width)
        self.head = None if c.tied else Linear(c.width, c.vocabulary, bias=False)
        self.ahead = TokensAhead(c) if c.ahead else None

    def forward(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """(ids[b, s], labels[b, s], those of further tokens) -> (loss[], token count[])."""
        ids, labels, *further = inputs
        c, balances = self.config, list[Tensor]()
        x = self._embedded(ids)
        for run in (self.before, *self.layers.members, self.after):
            if run is not None:
                x, found = run(x)
                balances += found if isinstance(found, list) else [] if found is None else [found]
        logits = self._logits(self.norm(x), ids)
        if not balances and self.ahead is None:
            return cross_entropy(logits, labels)
        token_loss, count = cross_entropy(logits, labels, label="token_loss")
        shares = {}
        for number, (module, token, target) in enumerate(self._ahead(labels, further)):
            x, found = module(x, self._embedded(token, f"ahead{number}"))
            balances += [] if found is None else [found]
            logits = self._logits(module.norm(x), ids, f"ahead{number}.logits")
            loss, _ = cross_entropy(logits, target, label=f"ahead{number}")
            shares[f"ahead{number}"] = loss, c.ahead_share / c.ahead
        if balances:
            shares["balance"] = ids.tracer.apply("balance", "add_n", balances)[0], c.balance
        return joint_loss(token_loss, shares), count

    def _ahead(self, labels: Tensor, further: Sequence[Tensor]) -> Iterator[tuple[TokenAhead, Tensor, Tensor]]:
        """What predicts further ahead, with the token that it knows and the one after that."""
        modules = () if self.ahead is None else self.ahead.members
        yield from zip(modules, (labels, *further), further, strict=False)

    def _embedded(self, ids: Tensor, label: str = "") -> Tensor:
        """[b, s] -> [b, s, w]."""
        c = self.config
        x: Tensor = self.token(ids)
        if c.embedding_scale != 1.0:
            x = x.apply(label or "embed", "scale", attrs={"factor": c.embedding_scale})
        if self.position is None:
            return x
        return x.apply(f"{label or 'embed'}_position", "add", self.parameter("position", ids))

    def _logits(self, x: Tensor, ids: Tensor, label: str = "logits") -> Tensor:
        """[b, s, w] -> [b, s, v]."""
        head, token = self.head, self.token
        logits: Tensor = x.apply(label, "matmul_nt", token.parameter("weight", ids)) if head is None else head(x)
        cap = self.config.logit_cap
        if not cap:
            return logits
        bounded = logits.apply("bounded.scale", "scale", attrs={"factor": 1.0 / cap}).apply("bounded.tanh", "tanh")
        return bounded.apply("bounded", "scale", attrs={"factor": cap})


def _layers(config: DecoderDescription, kinds: Sequence[tuple[int, bool]]) -> list[DecoderLayer]:
    return [DecoderLayer(config, window, sparse) for window, sparse in kinds]


def _run(config: DecoderDescription, kinds: Sequence[tuple[int, bool]]) -> LayerGroup:
    return LayerGroup(_layers(config, kinds))


def _period(config: DecoderDescription, kinds: Sequence[tuple[int, bool]]) -> Module:
    """What repeats: a layer, or several."""
    return _layers(config, kinds)[0] if len(kinds) == 1 else _run(config, kinds)
