"""Interpreter: walks the nodes of a foreign graph for one micro-batch and says what they are in our ops.

All that is wrong is told at once: operators that are not in the table, how often and where; then operands that no op of
ours takes. What a wrong node would have given is left out, with all that reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from strategy.base.errors import GraphError, InputError, did_you_mean
from strategy.models.imported.expression import Expression, Expressions
from strategy.models.imported.foreign import (
    Argument,
    ForeignGraph,
    ForeignInput,
    ForeignNode,
    ForeignTensor,
    Ref,
    in_use,
    refs_of,
)
from strategy.models.imported.operators import Arguments
from strategy.models.imported.table import known_operators, meaning_of
from strategy.models.imported.values import OwnBatch, Value, Values
from strategy.sbp.tensor import DType, Shape, TensorSpec

MOST_PROBLEMS = 30
"""Of one report."""
MOST_ALIVE_BYTES = 2**31
"""Of all that is known at one time."""
_FLOATS = ("float16", "bfloat16", "float32", "float64")
_WRONG = (ValueError, TypeError, IndexError, OverflowError, ZeroDivisionError)
"""What NumPy raises of operands that do not fit one another."""


@dataclass(frozen=True, slots=True)
class Interpretation:
    """What a program computes of one micro-batch, and the shapes that its nodes read and wrote."""

    output: Expression
    shapes: Mapping[int, tuple[Shape, Shape]]


def check_operators(graph: ForeignGraph, nodes: Sequence[ForeignNode]) -> None:
    """Raise GraphError with every operator that is not in the table, how often it is used, and where first."""
    missing = Counter(node.target for node in nodes if meaning_of(node.target) is None)
    first = {node.target: node for node in reversed(nodes)}
    problems = []
    for target, count in sorted(missing.items()):
        node, near = first[target], did_you_mean(target, known_operators())
        at = f"{node.where}, in {'.'.join(node.scope) or 'the program itself'}"
        hint = f"; {near}" if near.startswith("did you mean") else ""
        problems.append(f"{target} is not in the table of operators: used {count} times, first at {at}{hint}")
    if problems:
        raise GraphError(problems[:MOST_PROBLEMS], where=graph.where)


def batch_of(graph: ForeignGraph) -> int | None:
    """The one size of the batch that a program was written for; None where it is open.

    Raises:
        InputError: inputs do not share their first dim, or there are none.
    """
    if not graph.inputs:
        raise InputError("the program has no inputs", where=graph.where)
    firsts = [one.shape[0] if one.shape else None for one in graph.inputs]
    if None in firsts or len(set(firsts)) != 1:
        shapes = [one.shape for one in graph.inputs]
        raise InputError("the inputs do not share their first dim, the samples", where=graph.where, got=shapes)
    return firsts[0] if isinstance(firsts[0], int) else None


def input_specs(graph: ForeignGraph, micro_batch: int, sequence: int | None) -> dict[str, TensorSpec]:
    """Inputs with that many samples; any other open size is `sequence`, or what it was where the program was written.

    Raises:
        InputError: a size is open and nobody says what it is, a dim is empty, or the dtype is none of ours.
    """
    found = {}
    for one in graph.inputs:
        where = f"{graph.where}: input {one.name}"
        sizes = [micro_batch]
        for place, size in enumerate(one.shape[1:], 1):
            hint = one.hints[place] if place < len(one.hints) else 0
            known = size if isinstance(size, int) else sequence or hint
            if known < 1:
                raise InputError("an open size", where=where, got=one.shape, hint="say how long samples are: --seq N")
            sizes.append(known)
        found[one.name] = TensorSpec(tuple(sizes), _input_dtype(one, where))
    return found


def _input_dtype(one: ForeignInput, where: str) -> DType:
    """Ids are int32 with us, floats of any width float32: in which precision they are, the training says."""
    if one.dtype in ("int64", "int32"):
        return DType.INT32
    if one.dtype in _FLOATS:
        return DType.FLOAT32
    raise InputError("an input of a dtype that no op of ours takes", where=where, got=one.dtype)


def check_sequence(graph: ForeignGraph, sequence: int | None) -> None:
    """Raise InputError if samples shall have a length, and the program has no open size."""
    if sequence is not None and not any(isinstance(n, str) for one in graph.inputs for n in one.shape[1:]):
        shapes = [one.shape for one in graph.inputs]
        hint = "export it with a dynamic dim for the sequence"
        raise InputError("the lengths of samples are fixed", where=graph.where, got=shapes, hint=hint)


def interpret(
    graph: ForeignGraph,
    nodes: Sequence[ForeignNode],
    inputs: Mapping[str, TensorSpec],
    parameters: Mapping[str, TensorSpec],
    own: OwnBatch | None = None,
) -> Interpretation:
    """What the nodes compute of inputs of these shapes.

    Args:
        graph: the program.
        nodes: those of it that are in use, whose operators are all known.
        inputs: by name.
        parameters: tensors that are variables of ours, by the name of their value; others are read.
        own: where the program was written for another batch.

    Raises:
        GraphError: operands that no op of ours takes; every one of them that does not follow from another.
    """
    values = Values(Expressions(), own)
    known: dict[str, Value] = {n: values.make.leaf("input", n, spec) for n, spec in inputs.items()}
    tensors = {one.name: one for one in graph.tensors}
    last_use = {name: place for place, node in enumerate(nodes) for name in _reads(node)}
    problems: list[str] = []
    alive = 0
    for place, node in enumerate(nodes):
        values.node, values.make.scope, values.make.where = place, node.scope, node.where
        try:
            for name in _reads(node):
                if name not in known and name in tensors:
                    known[name] = _tensor(values, tensors[name], parameters)
                    alive += _nbytes(known[name])
            if any(name not in known for name in _reads(node)):
                continue  # of a node that is reported already
            meaning = meaning_of(node.target)
            assert meaning is not None
            given = {key: _evaluated(argument, known) for key, argument in node.arguments.items()}
            result = meaning(Arguments(values, given))
        except GraphError:
            raise
        except (InputError, *_WRONG) as error:
            if len(problems) < MOST_PROBLEMS:
                problems.append(
                    f"{node.target} ({node.where}, in {'.'.join(node.scope) or 'the program itself'}): {error}"
                )
            continue
        results = result if len(node.outputs) > 1 and isinstance(result, tuple) else (result,)
        for name, one in zip(node.outputs, results, strict=False):
            known[name] = one
            alive += _nbytes(one)
        if alive > MOST_ALIVE_BYTES:
            expected = f"at most {MOST_ALIVE_BYTES} bytes"
            raise InputError(
                "constants that are too large", where=f"{graph.where}: {node.where}", got=alive, expected=expected
            )
        for name in _reads(node):
            if last_use[name] == place and name in known:
                alive -= _nbytes(known.pop(name))
    output = known.get(graph.outputs[0])
    if problems:
        raise GraphError(problems, where=graph.where)
    if not isinstance(output, Expression):
        raise InputError("the first output does not depend on the inputs", where=graph.where)
    return Interpretation(output, values.shapes)


def _reads(node: ForeignNode) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for argument in node.arguments.values() for name in refs_of(argument)))


def _nbytes(value: Value) -> int:
    """What an array takes that is no view of another."""
    return value.nbytes if isinstance(value, np.ndarray) and value.base is None else 0


def _evaluated(argument: Argument, known: Mapping[str, Value]) -> Value:
    if isinstance(argument, Ref):
        return known[argument.name]
    if isinstance(argument, tuple):
        return tuple(_evaluated(one, known) for one in argument)
    return argument


def _tensor(values: Values, one: ForeignTensor, parameters: Mapping[str, TensorSpec]) -> Value:
    """A parameter, as an expression, or the figures of a buffer."""
    if one.name in parameters:
        return values.make.leaf("parameter", one.name, parameters[one.name])
    found = values.known(one.shape, 8, one.read)
    return found.astype(np.float32) if one.dtype in ("bfloat16", "float16") else found


def parameters_of(graph: ForeignGraph, nodes: Sequence[ForeignNode]) -> dict[str, TensorSpec]:
    """The tensors that become variables: trained ones that are read, and the running statistics of batch norms.

    Raises:
        InputError: one has a dtype that is none of ours, or an empty dim.
    """
    read = {name for node in nodes for name in _reads(node)}
    running = {
        name
        for node in nodes
        if "batch_norm" in node.target or node.target == "onnx.BatchNormalization"
        for key, argument in node.arguments.items()
        if key in ("running_mean", "running_var", "weight", "bias")
        for name in refs_of(argument)
    }
    found = {}
    for one in graph.tensors:
        if one.name in read and (one.trained or one.name in running):
            found[one.name] = _parameter_spec(one, f"{graph.where}: {one.label}")
    return found


def _parameter_spec(one: ForeignTensor, where: str) -> TensorSpec:
    """Floats of any width are float32 here: in which precision they are, the training says."""
    if one.dtype not in _FLOATS:
        raise InputError("a parameter that is not of floats", where=where, got=one.dtype, expected=", ".join(_FLOATS))
    if min(one.shape, default=1) < 1:
        raise InputError("an empty parameter", where=where, got=one.shape)
    return TensorSpec(one.shape)


def used_nodes(graph: ForeignGraph) -> tuple[ForeignNode, ...]:
    """The nodes that the first output needs, all of them known operators.

    Raises:
        InputError: see `in_use` and `check_operators`.
    """
    nodes = in_use(graph)
    check_operators(graph, nodes)
    return nodes
