"""Dropout with a mask that is a function of the element, not of the rank that computes it.

An element is kept according to a hash of (seed, number of the act, its coordinates in the logical tensor). So every
layout draws the mask that one device draws; micro-batches and steps differ by the number of the act, ranks by the
coordinates; and the gradient draws the mask of its micro-batch again instead of keeping it, being the same op on the
gradient. Ops that are to differ have different seeds.

The mask is the same on all ranks that hold an element, so terms of a sum pass: this is why a source of random numbers
cannot be partial (its terms would have to be random and add up), and a mask by element can be applied to terms.

    dropout      x            -> x / (1 - rate) or 0
    add_dropped  x, residual  -> residual + dropout(x), as one op
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from strategy.graph.graph import Attrs
from strategy.graph.ops.base import (
    Array,
    ArrayModule,
    AxisSignature,
    Call,
    Example,
    OpDef,
    Specs,
    elementwise_signatures,
    expect,
    float_attr,
    int_attr,
    linear_in,
    picks_from,
)
from strategy.graph.ops.elementwise import infer_alike
from strategy.graph.ops.gradient import GradientBuilder
from strategy.graph.ops.scratch import Scratch, ScratchSizes, sized
from strategy.graph.ops.traits import Fusion
from strategy.graph.splitmix import counter_steps, mix
from strategy.sbp.tensor import Box, TensorSpec

_WORD = 2**64
_BLOCK = 2**14
"""Words that are drawn at once on the host: with what shifts them, 256 KiB."""


def random_words(xp: ArrayModule, seed: int, act: int, box: Box, workspace: Scratch) -> Iterator[tuple[slice, Array]]:
    """One uint64 per element of the piece `box`, uniform, the same for an element in whatever piece it lies.

    One round of splitmix64 takes the seed in, one the act, one every coordinate; so only the last is of full size. On
    the host, rows come in blocks that stay in the cache: a word takes a dozen passes.

    Yields:
        A range of rows, all dims but the last in one, and their words [rows, columns], until the next are asked for.
    """
    z = xp.full((1,), xp.uint64(seed), xp.uint64)
    mix(z, z.copy(), xp)
    *before, last = ((act, act + 1), *box)
    for begin, end in before:
        z = (z[:, None] + counter_steps(begin, end, xp)).reshape(-1)
        mix(z, z.copy(), xp)
    steps = counter_steps(*last, xp)
    size = min(len(z), max(1, _BLOCK // len(steps))) if xp is np else len(z)
    room = [workspace.get(name, (size, len(steps)), "uint64") for name in ("words", "shifted")]
    for first in range(0, len(z), size):
        rows = z[first : first + size]
        words, shifted = (array[: len(rows)] for array in room)
        xp.add(rows[:, None], steps, out=words)
        mix(words, shifted, xp)
        yield slice(first, first + len(rows)), words


def drop_below(rate: float) -> int:
    """Elements with lesser words are dropped."""
    return int(rate * _WORD)


def _infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    rate, seed = float_attr(attrs, "rate"), int_attr(attrs, "seed")
    expect(0 <= rate < 1, "not a dropout rate", got=rate, expected="a figure in [0, 1)")
    expect(0 <= seed < _WORD, "not a seed", got=seed, expected="0 to 2^64 - 1")
    expect(inputs[0].dtype.is_float, "not a tensor of floats", got=inputs[0].dtype, expected="a dtype of floats")
    return (inputs[0],)


def _signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    """Multiplying by numbers that are not negative keeps every kind of term."""
    return [*elementwise_signatures(inputs[0].shape, 1), *picks_from((0,), 1)]


def _run(call: Call) -> None:
    """x / (1 - rate) where the element is kept, 0 where it is dropped (Srivastava et al. 2014, JMLR 15, section 10)."""
    xp, x, out = call.xp, call.inputs[0], call.outputs[0]
    rate = float_attr(call.attrs, "rate")
    xp.multiply(x, 1.0 / (1.0 - rate), out=out)
    flat = out.reshape(-1, x.shape[-1] if x.ndim else 1)
    blocks = random_words(xp, int_attr(call.attrs, "seed"), call.number, call.input_boxes[0], call.workspace)
    for rows, words in blocks:
        xp.copyto(flat[rows], 0, where=words < xp.uint64(drop_below(rate)))


def _scratch(inputs: Specs, outputs: Specs, attrs: Attrs) -> ScratchSizes:
    """Words, and what shifts them."""
    return ScratchSizes(sized(8, inputs[0].shape, inputs[0].shape))


def _run_added(call: Call) -> None:
    x, residual = call.inputs
    _run(replace(call, inputs=(x,)))
    call.outputs[0][...] += residual


def _gradient(builder: GradientBuilder) -> None:
    if builder.wants(0):
        builder.give(0, builder.emit("dx", "dropout", (builder.output_gradient(),), builder.op.attrs))


def _gradient_added(builder: GradientBuilder) -> None:
    _gradient(builder)
    builder.give(1, builder.output_gradient())


def _infer_added(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return infer_alike(_infer(inputs[:1], updates, attrs) + tuple(inputs), updates, attrs)


def _signatures_added(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return [*elementwise_signatures(inputs[0].shape, 2), linear_in([0, 1], 2)]


def _flop_added(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 13 * inputs[0].size


def _flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 12 * inputs[0].size


_ATTRS = {"rate": 0.25, "seed": 7}

OPS = (
    OpDef(
        "dropout",
        _infer,
        _flop,
        _signatures,
        _run,
        _gradient,
        in_place=(0,),
        scratch=_scratch,
        examples=(
            Example((TensorSpec((7, 5)),), attrs=_ATTRS),
            Example((TensorSpec((4, 6, 5)),), attrs=_ATTRS),
        ),
    ),
    OpDef(
        "add_dropped",
        _infer_added,
        _flop_added,
        _signatures_added,
        _run_added,
        _gradient_added,
        in_place=(0,),
        fuses=Fusion("dropout", "add"),
        scratch=_scratch,
        examples=(
            Example((TensorSpec((7, 5)),) * 2, attrs=_ATTRS),
            Example((TensorSpec((4, 6, 5)),) * 2, attrs=_ATTRS),
        ),
    ),
)
