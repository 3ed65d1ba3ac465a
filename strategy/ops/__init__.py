"""Ops: one file per family, one `OpDef` per kind; this index holds them all."""

from __future__ import annotations

from collections.abc import Mapping

from strategy.errors import InputError, did_you_mean
from strategy.ops import (
    attention,
    binary,
    dropout,
    elementwise,
    gather,
    indexing,
    loss,
    matmul,
    norm,
    optimizer,
    reduction,
    shape,
    softmax,
)
from strategy.ops.base import OpDef

_FAMILIES = (
    matmul,
    elementwise,
    binary,
    reduction,
    softmax,
    norm,
    attention,
    gather,
    indexing,
    loss,
    dropout,
    shape,
    optimizer,
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
