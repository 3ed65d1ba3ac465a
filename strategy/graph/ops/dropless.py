"""Mixture of experts that drops nothing: tokens to ragged rows by expert, and back.

    dropless_dispatch  x[g,s,d], chosen[g,s,k] (, weights[g,s,k])        -> rows[e,g,s,d]     a row per choice
    dropless_combine   rows[e,g,s,d], chosen (, weights)                 -> y[g,s,d]          choices added up
    dropless_inner     rows[e,g,s,d], chosen, x[g,s,d]                   -> products[g,s,k]   what a weight is worth

The rows are ragged (`strategy.sbp.ragged`): row (e, g, s) is there if token (g, s) chose expert e. The three are one
trilinear form read in three ways, so their gradients are one another. Tokens split and rows split alike are data
parallelism; rows split by expert are expert parallelism, and the all-to-all between the two carries the rows that there
are (MegaBlocks: Gale et al. 2022, arXiv:2211.15841, section 5).
"""

from __future__ import annotations

from collections.abc import Sequence

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import (
    Array,
    Call,
    Example,
    OpDef,
    Specs,
    expect,
    float_attr,
    int_attr,
    shapes,
)
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.on_rows import ragged_spec
from strategy.graph.ops.routing import gradients, routed
from strategy.sbp.ragged import Rows
from strategy.sbp.tensor import DType, Ragged, TensorSpec

_ROWS, _TOKENS, _CHOICES = "egsd", "gsd", "gsk"


def _check(kind: str, tokens: TensorSpec, inputs: Specs, *, third: TensorSpec) -> None:
    chosen = inputs[1]
    fits = len(tokens.shape) == len(chosen.shape) == 3 and tokens.shape[:2] == chosen.shape[:2]
    expect(
        fits and not chosen.dtype.is_float and (len(inputs) == 2 or inputs[2] == third),
        f"{kind} shapes do not compose",
        got=shapes(inputs),
        expected="x[g, s, d] or ragged rows[e, g, s, d], integers chosen[g, s, k], and what goes with them",
    )


def _weights(inputs: Specs) -> TensorSpec:
    return TensorSpec(inputs[1].shape, inputs[0].dtype)


def _infer_dispatch(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    tokens, chosen = inputs[:2]
    _check("dropless_dispatch", tokens, inputs, third=_weights(inputs))
    dims = (int_attr(attrs, "experts"), *tokens.shape[:2])
    ragged = Ragged(chosen.shape[2], dims, float_attr(attrs, "imbalance"), float_attr(attrs, "room"))
    return (TensorSpec((*dims, tokens.shape[2]), tokens.dtype, ragged),)


def _tokens_of(kind: str, inputs: Specs) -> TensorSpec:
    rows = inputs[0]
    legal = rows.ragged is not None and len(rows.shape) == 4
    expect(legal, f"{kind} needs ragged rows", got=shapes(inputs), expected="[e, g, s, d], as dispatch makes them")
    return TensorSpec(rows.shape[1:], rows.dtype)


def _infer_combine(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    tokens = _tokens_of("dropless_combine", inputs)
    _check("dropless_combine", tokens, inputs, third=_weights(inputs))
    return (tokens,)


def _infer_inner(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    tokens = _tokens_of("dropless_inner", inputs)
    _check("dropless_inner", tokens, inputs, third=tokens)
    return (_weights(inputs),)


def _cells(call: Call, chosen: Array, rows: Rows) -> tuple[Array, tuple[Array, Array, Array]]:
    """The cell of every choice of an expert of the box, and (group, token, choice) of each within the pieces."""
    (first, last), (group, _), (token, _), _ = rows.box
    own = call.xp.nonzero((chosen >= first) & (chosen < last))
    _, groups, tokens = rows.logical
    cells = (chosen[own].astype("int64") * groups + own[0] + group) * tokens + own[1] + token
    return cells, own


def _run_dispatch(call: Call) -> None:
    """A token that chose an expert twice, which no routing does, has one row there: the sum."""
    xp, tokens, chosen, out = call.xp, call.inputs[0], call.inputs[1], call.outputs[0]
    cells, (group, token, choice) = _cells(call, chosen, out)
    order = xp.argsort(cells, kind="stable")
    rows = tokens[group[order], token[order]]
    if len(call.inputs) == 3:
        rows = rows * call.inputs[2][group[order], token[order], choice[order]][:, None]
    cells = cells[order]
    if (cells[1:] != cells[:-1]).all():
        out.hold(cells)[...] = rows
        return
    distinct, place = xp.unique(cells, return_inverse=True)
    held = out.hold(distinct)
    held[...] = 0
    xp.add.at(held, place, rows)


def _run_combine(call: Call) -> None:
    rows, chosen, out = call.inputs[0], call.inputs[1], call.outputs[0]
    out[...] = 0
    for choice in range(chosen.shape[2]):
        cells, (group, token, _) = _cells(call, chosen[..., choice : choice + 1], rows)
        hits, place = rows.find(cells)
        added = rows.rows[place]
        if len(call.inputs) == 3:
            added = added * call.inputs[2][group[hits], token[hits], choice][:, None]
        out[group[hits], token[hits]] += added


def _run_inner(call: Call) -> None:
    (rows, chosen, tokens), out = call.inputs, call.outputs[0]
    cells, own = _cells(call, chosen, rows)
    hits, place = rows.find(cells)
    group, token, choice = (at[hits] for at in own)
    out[...] = 0
    out[group, token, choice] = (rows.rows[place] * tokens[group, token]).sum(axis=-1)


def _flop_dispatch(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    """Per element of a row a product, where there are weights."""
    return outputs[0].size * (len(inputs) - 2)


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    """Per element of a row a sum, and a product where there is a third operand."""
    return inputs[0].size * (len(inputs) - 1)


def _nbytes_combine(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    """Reads and adds one row per choice."""
    return 3 * inputs[0].nbytes + sum(spec.nbytes for spec in (*inputs[1:], *outputs))


def _routed(drawn: Sequence[Array]) -> Array:
    """Of the rows that were drawn, those that were chosen."""
    rows, chosen = drawn[:2]
    written = rows.copy()
    for expert in range(len(rows)):
        written[expert][~(chosen == expert).any(axis=-1)] = 0
    return written


def _examples(dispatches: bool, third: str) -> tuple[Example, ...]:
    """Experts, groups, tokens and choices that split in four, evenly and not; of some choices there is no expert."""
    found = []
    for e, g, s, k, d in ((5, 4, 4, 4, 4), (6, 4, 5, 5, 7)):
        rows, tokens, chosen = ragged_spec((e, g, s, d), k), TensorSpec((g, s, d)), TensorSpec((g, s, k), DType.INT32)
        others = {"": (), "weights": (TensorSpec((g, s, k)),), "tokens": (tokens,)}[third]
        inputs = (tokens if dispatches else rows, chosen, *others)
        attrs = {"experts": e, "imbalance": 1.0, "room": 0.0} if dispatches else {}
        found.append(Example(inputs, attrs=attrs, ranges={1: (-1, e)}, derive={} if dispatches else {0: _routed}))
    return tuple(found)


def _attrs_of(builder: GradientBuilder, kind: str) -> Attrs:
    """Rows come like those that the op reads."""
    if kind != "dropless_dispatch":
        return {}
    (rows,) = builder.specs(builder.op.inputs[:1])
    return {"experts": rows.shape[0], "imbalance": rows.rows.imbalance, "room": rows.rows.room}


_gradient_dispatch, _gradient_combine, _gradient_inner = gradients("dropless", _attrs_of)


OPS = (
    OpDef(
        "dropless_dispatch",
        _infer_dispatch,
        _flop_dispatch,
        routed((_TOKENS, _CHOICES, _CHOICES), _ROWS),
        _run_dispatch,
        _gradient_dispatch,
        examples=(*_examples(dispatches=True, third=""), *_examples(dispatches=True, third="weights")),
    ),
    OpDef(
        "dropless_combine",
        _infer_combine,
        _flop,
        routed((_ROWS, _CHOICES, _CHOICES), _TOKENS),
        _run_combine,
        _gradient_combine,
        nbytes=_nbytes_combine,
        ragged=True,
        examples=(*_examples(dispatches=False, third=""), *_examples(dispatches=False, third="weights")),
    ),
    OpDef(
        "dropless_inner",
        _infer_inner,
        _flop,
        routed((_ROWS, _CHOICES, _TOKENS), _CHOICES),
        _run_inner,
        _gradient_inner,
        ragged=True,
        examples=_examples(dispatches=False, third="tokens"),
    ),
)
