"""Ops: one file per family, one `OpDef` per kind; this index holds them all."""

from __future__ import annotations

from collections.abc import Mapping

from strategy.base.errors import InputError, did_you_mean
from strategy.graph.ops import (
    attention,
    attention_block,
    batch_matmul,
    batch_norm,
    binary,
    conv,
    copy,
    dropless,
    dropout,
    gather,
    group_norm,
    grouped_matmul,
    indexing,
    lamb,
    learning_rate,
    linear,
    loss,
    margin,
    matmul,
    moe,
    muon,
    norm,
    optimizer,
    pool,
    reduction,
    repeat,
    rotary,
    shape,
    shift,
    skipped_steps,
    slicing,
    softmax,
    unary,
)
from strategy.graph.ops.base import OpDef

_FAMILIES = (
    matmul,
    batch_matmul,
    unary,
    linear,
    copy,
    binary,
    shift,
    reduction,
    repeat,
    softmax,
    norm,
    group_norm,
    batch_norm,
    attention,
    attention_block,
    rotary,
    conv,
    pool,
    gather,
    indexing,
    loss,
    margin,
    dropout,
    shape,
    slicing,
    optimizer,
    learning_rate,
    skipped_steps,
    lamb,
    muon,
    moe,
    dropless,
    grouped_matmul,
)

REGISTRY: Mapping[str, OpDef] = {definition.kind: definition for family in _FAMILIES for definition in family.OPS}


def op_definition(kind: str) -> OpDef:
    """The definition of an op kind.

    Raises:
        InputError: the kind is unknown.
    """
    if kind not in REGISTRY:
        raise InputError("unknown op kind", got=kind, hint=did_you_mean(kind, REGISTRY))
    return REGISTRY[kind]
