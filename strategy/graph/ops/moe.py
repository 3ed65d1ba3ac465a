"""Mixture of experts with a capacity: where tokens go, the way there and back.

Tokens come in groups, and every group fills slots of its own, so that splitting the groups changes nothing (GShard:
Lepikhin et al. 2021, arXiv:2006.16668, algorithm 1). Expert e of a group has c slots, and what does not fit is dropped.

    moe_demand    experts[g,s,k]              -> counts[g,e]                  how many choices fell on every expert
    moe_slots     experts[g,s,k]              -> slots[g,s,k]                 the slot of every choice; -1 is none
    moe_dispatch  x[g,s,d], slots (, weights) -> buffer[e,g,c,d]              tokens into slots
    moe_combine   buffer, slots (, weights)   -> y[g,s,d]                     slots back to tokens, choices added up
    moe_inner     buffer, slots, x            -> products[g,s,k]              <slot, token>: what a weight is worth

Dispatch, combine and inner are one trilinear form read in three ways, so their gradients are one another. Splitting the
experts is box-aware: from whole tokens a rank fills the slots of its own experts, and from tokens split by group the
all-to-all of expert parallelism is a boxing of the buffer. What drops nothing is `dropless`.
"""

from __future__ import annotations

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import (
    Array,
    ArrayModule,
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    expect,
    int_attr,
    shapes,
)
from strategy.graph.ops.routing import gradients, routed
from strategy.sbp.sbp import Split
from strategy.sbp.tensor import Box, DType, Shape, TensorSpec

_TOKENS, _SLOTS, _BUFFER = "gsd", "gsk", "egcd"


def _buffer_shape(tokens: Shape, attrs: Attrs) -> Shape:
    groups, _, width = tokens
    return (int_attr(attrs, "experts"), groups, int_attr(attrs, "capacity"), width)


def _check_chosen(kind: str, chosen: TensorSpec) -> None:
    legal = len(chosen.shape) == 3 and not chosen.dtype.is_float
    expect(legal, f"{kind} needs integer experts", got=chosen.shape, expected="experts[g, s, k]")


def _infer_demand(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    (chosen,) = inputs
    _check_chosen("moe_demand", chosen)
    return (TensorSpec((chosen.shape[0], int_attr(attrs, "experts")), DType.INT32),)


def _infer_slots(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    (chosen,) = inputs
    _check_chosen("moe_slots", chosen)
    return (TensorSpec(chosen.shape, DType.INT32),)


def _signatures_groups(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    """Groups alone: which slots are taken depends on all tokens of a group, and counts are integers, never terms."""
    return [AxisSignature((Split(0),), (Split(0),))]


def _wants(call: Call) -> tuple[Array, Array]:
    """[g, k * s] the expert of every choice, first choices first; and [g, k * s, e] 1 where it is that one."""
    (chosen,) = call.inputs
    queue = chosen.transpose(0, 2, 1).reshape(len(chosen), -1)
    return queue, (queue[..., None] == call.xp.arange(int_attr(call.attrs, "experts"))).astype("int32")


def _run_demand(call: Call) -> None:
    call.outputs[0][...] = _wants(call)[1].sum(axis=1)


def _run_slots(call: Call) -> None:
    """First choices take their slots before second ones, tokens in order."""
    xp, (slots,), capacity = call.xp, call.outputs, int_attr(call.attrs, "capacity")
    groups, tokens, choices = slots.shape
    queue, wants = _wants(call)
    place = ((xp.cumsum(wants, axis=1) - 1) * wants).sum(axis=2)
    found = xp.where(place < capacity, queue * capacity + place, -1)
    slots[...] = found.reshape(groups, choices, tokens).transpose(0, 2, 1)


def _check_tokens(kind: str, tokens: TensorSpec, slots: TensorSpec, inputs: Specs) -> None:
    composes = len(tokens.shape) == len(slots.shape) == 3 and tokens.shape[:2] == slots.shape[:2]
    integers = not slots.dtype.is_float
    expect(composes and integers, f"{kind} shapes do not compose", got=shapes(inputs), expected="[g, s, d], [g, s, k]")


def _check_weights(kind: str, inputs: Specs) -> None:
    alike = len(inputs) == 2 or inputs[2] == TensorSpec(inputs[1].shape, inputs[0].dtype)
    expect(alike, f"{kind} has other weights than slots", got=shapes(inputs), expected="weights[g, s, k]")


def _infer_dispatch(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    tokens, slots = inputs[:2]
    _check_tokens("moe_dispatch", tokens, slots, inputs)
    _check_weights("moe_dispatch", inputs)
    return (TensorSpec(_buffer_shape(tokens.shape, attrs), tokens.dtype),)


def _check_buffer(kind: str, inputs: Specs, attrs: Attrs) -> TensorSpec:
    """The tokens that a buffer comes from."""
    buffer, slots = inputs[:2]
    tokens = TensorSpec((*slots.shape[:2], buffer.shape[-1]), buffer.dtype)
    _check_tokens(kind, tokens, slots, inputs)
    fits = buffer.shape == _buffer_shape(tokens.shape, attrs)
    expect(fits, f"{kind} has another buffer", got=shapes(inputs), expected="[e, g, c, d]")
    return tokens


def _infer_combine(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    tokens = _check_buffer("moe_combine", inputs, attrs)
    _check_weights("moe_combine", inputs)
    return (tokens,)


def _infer_inner(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    tokens = _check_buffer("moe_inner", inputs, attrs)
    expect(inputs[2] == tokens, "moe_inner has other tokens", got=shapes(inputs), expected="buffer, slots, x[g, s, d]")
    return (TensorSpec(inputs[1].shape, tokens.dtype),)


def _cells(xp: ArrayModule, slots: Array, box: Box, attrs: Attrs) -> tuple[tuple[Array, ...], tuple[Array, ...]]:
    """Where the choices that fall into a rank's box of the buffer are: in the buffer, and among the slots."""
    capacity = int_attr(attrs, "capacity")
    (first, last), _, (begin, end), _ = box
    expert, place = slots // capacity, slots % capacity
    inside = (slots >= 0) & (expert >= first) & (expert < last) & (place >= begin) & (place < end)
    own = xp.nonzero(inside)
    return (expert[own] - first, own[0], place[own] - begin), own


def _run_dispatch(call: Call) -> None:
    """Slots that nobody takes are zero; tokens in one slot, which `moe_slots` never makes, add up."""
    xp, tokens, slots, buffer = call.xp, call.inputs[0], call.inputs[1], call.outputs[0]
    cells, (group, token, choice) = _cells(xp, slots, call.output_boxes[0], call.attrs)
    rows = tokens[group, token]
    if len(call.inputs) == 3:
        rows = rows * call.inputs[2][group, token, choice][:, None]
    buffer[...] = 0
    taken = xp.sort(xp.ravel_multi_index(cells, buffer.shape[:-1]))
    if (taken[1:] != taken[:-1]).all():
        buffer[cells] = rows
    else:
        xp.add.at(buffer, cells, rows)


def _run_combine(call: Call) -> None:
    xp, buffer, slots, out = call.xp, call.inputs[0], call.inputs[1], call.outputs[0]
    out[...] = 0
    for choice in range(slots.shape[2]):
        cells, (group, token, _) = _cells(xp, slots[..., choice : choice + 1], call.input_boxes[0], call.attrs)
        rows = buffer[cells]
        if len(call.inputs) == 3:
            rows = rows * call.inputs[2][group, token, choice][:, None]
        out[group, token] += rows


def _run_inner(call: Call) -> None:
    xp, (buffer, slots, tokens), out = call.xp, call.inputs, call.outputs[0]
    cells, own = _cells(xp, slots, call.input_boxes[0], call.attrs)
    out[...] = 0
    out[own] = (buffer[cells] * tokens[own[:2]]).sum(axis=-1)


def _flop_slots(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 0


def _flop_move(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    """Per choice and element of the width a product or a sum, both where there are weights."""
    return inputs[1].size * inputs[0].shape[-1] * max(1, len(inputs) - 1)


def _nbytes_combine(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    """Reads and adds one row per choice."""
    rows = inputs[1].size * inputs[0].shape[-1] * inputs[0].dtype.nbytes
    return 3 * rows + inputs[1].nbytes + outputs[0].nbytes


def _examples(dispatches: bool, third: str) -> tuple[Example, ...]:
    """Groups, tokens and choices that split in four, evenly and not."""
    found = []
    for (g, s, k, d), experts, capacity in (((5, 4, 4, 7), 4, 5), ((4, 5, 4, 4), 5, 4)):
        attrs = {"experts": experts, "capacity": capacity}
        tokens, slots = TensorSpec((g, s, d)), TensorSpec((g, s, k), DType.INT32)
        buffer = TensorSpec(_buffer_shape(tokens.shape, attrs))
        others = {"": (), "weights": (TensorSpec((g, s, k)),), "tokens": (tokens,)}[third]
        first = tokens if dispatches else buffer
        found.append(Example((first, slots, *others), attrs=attrs, ranges={1: (-1, experts * capacity)}))
    return tuple(found)


_gradient_dispatch, _gradient_combine, _gradient_inner = gradients("moe", lambda builder, kind: builder.op.attrs)


OPS = (
    OpDef(
        "moe_demand",
        _infer_demand,
        _flop_slots,
        _signatures_groups,
        _run_demand,
        examples=(Example((TensorSpec((5, 7, 2), DType.INT32),), attrs={"experts": 5}, ranges={0: (-1, 5)}),),
    ),
    OpDef(
        "moe_slots",
        _infer_slots,
        _flop_slots,
        _signatures_groups,
        _run_slots,
        examples=tuple(
            Example(
                (TensorSpec((g, 7, 2), DType.INT32),), attrs={"experts": 5, "capacity": capacity}, ranges={0: (0, 5)}
            )
            for g, capacity in ((4, 2), (5, 3))
        ),
    ),
    OpDef(
        "moe_dispatch",
        _infer_dispatch,
        _flop_move,
        routed((_TOKENS, _SLOTS, _SLOTS), _BUFFER),
        _run_dispatch,
        _gradient_dispatch,
        examples=(*_examples(dispatches=True, third=""), *_examples(dispatches=True, third="weights")),
    ),
    OpDef(
        "moe_combine",
        _infer_combine,
        _flop_move,
        routed((_BUFFER, _SLOTS, _SLOTS), _TOKENS),
        _run_combine,
        _gradient_combine,
        nbytes=_nbytes_combine,
        examples=(*_examples(dispatches=False, third=""), *_examples(dispatches=False, third="weights")),
    ),
    OpDef(
        "moe_inner",
        _infer_inner,
        _flop_move,
        routed((_BUFFER, _SLOTS, _TOKENS), _SLOTS),
        _run_inner,
        _gradient_inner,
        examples=_examples(dispatches=False, third="tokens"),
    ),
)
