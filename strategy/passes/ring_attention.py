"""Ring attention: attention in as many blocks as a ring has ranks, forward and backward.

In block j every rank works on the keys and values of its j-th neighbour (Liu et al. 2023, arXiv:2310.01889). They come
round in a chain of values, each copied from the one before, so that a rank holds the block that it works on and the
one that arrives:

    forward    k:0 = copy(k)      v:0 = copy(v)      rows:0 = block 0 (q, k:0, v:0)
               k:1 = copy(k:0)    v:1 = copy(v:0)    rows:1 = block 1 (q, k:1, v:1, rows:0)    ...
    backward   k and v once more; the parts of dq, dk and dv of all blocks, added up

`k:j` is at home as S(1)+j. Block j and the way of `k:j` to the next copy, which reads it as S(1)+(j+1), wait for
nothing of each other: where collectives run beside computation, the one runs beside the other. A block's part of dk and
dv is at home as S(1)+j, goes straight to those whose keys they are, and is added after the block that follows.

Bytes that p ranks send of keys and values of k and v bytes in all: (p - 1) (k + v) forward, 2 (p - 1) (k + v) backward.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from strategy.base.errors import InputError, report
from strategy.graph.builder import GraphBuilder
from strategy.graph.graph import Attrs, Graph, Op, Role, lineage_of, of_op
from strategy.graph.ops import op_definition
from strategy.graph.ops.heads import has_sinks, is_masked, is_packed
from strategy.graph.ops.traits import Attention
from strategy.layout.config import Context, PlanConfig
from strategy.sbp.tensor import Shape

ATTENTION, ATTENTION_GRADIENT = Attention(), Attention(gradient=True)
"""What is cut into blocks."""


def split_sequences(graph: Graph, config: PlanConfig) -> Graph:
    """The graph for ranks that share out the positions: as it is, but for attention round a ring.

    Raises:
        InputError: there is no attention, or a sequence is too short to be split among so many ranks.
    """
    if config.cp > 1:
        report(attention_problems(graph, config.cp), where="context parallelism")
    return ring_attention(graph, config.cp) if config.cp > 1 and config.context is Context.RING else graph


def ring_attention(graph: Graph, ranks: int) -> Graph:
    """The graph with every attention, and its gradient, in `ranks` blocks; sequences are at least as long."""
    return _Rewriter(graph, ranks).run()


def attention_problems(graph: Graph, ranks: int) -> list[InputError]:
    """Why a graph's sequences cannot be split among so many ranks."""
    found = [op for op in graph.ops if op_definition(op.kind).cost == ATTENTION]
    if not found:
        return [InputError("the model has no attention", got=f"cp = {ranks}", expected="cp = 1")]
    shapes = ((op, graph.values[name].spec.shape) for op in found for name in op.inputs[:2])
    short = {op.name: shape[1] for op, shape in shapes if shape[1] < ranks}
    return [
        InputError("a sequence is too short to be split", where=f"op {name}", got=rows, expected=f"at least {ranks}")
        for name, rows in short.items()
    ]


_GRADIENTS = ("dq", "dk", "dv")


@dataclass(slots=True)
class _Rewriter:
    graph: Graph
    ranks: int
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    unpacked: dict[str, tuple[str, str, str]] = field(default_factory=dict)
    """Packed operand -> its queries, keys and values."""
    made: dict[tuple[str, str], str] = field(default_factory=dict)
    """(op, label) -> what stands in its place under that label."""

    def run(self) -> Graph:
        for value in self.graph.values.values():
            if value.role is not Role.COMPUTED:
                self.builder.declare(value)
        for op in self.graph.ops:
            cost = op_definition(op.kind).cost
            if cost == ATTENTION:
                self._forward(op)
            elif cost == ATTENTION_GRADIENT:
                self._backward(op)
            else:
                self.builder.ops.append(op)
                self.builder.values.update((name, self.graph.values[name]) for name in op.outputs)
        return self.builder.build(loss=self.graph.loss)

    def _add(
        self,
        like: Op,
        label: str,
        kind: str,
        inputs: Sequence[str],
        attrs: Attrs | None = None,
        labels: Sequence[str] = (),
        outputs: Sequence[str] = (),
    ) -> tuple[str, ...]:
        """An op in the place of another; if that one repeats a third, it repeats what stands in place of the third.

        Without a label it has the other's name.
        """
        line = of_op(like, label, like.layer) if label else lineage_of(like)
        written = self.builder.add(
            line, kind, inputs, labels=labels, outputs=outputs, attrs=attrs, phase=like.phase, layer=like.layer
        )
        self.made[like.name, label] = line.name
        if like.repeats:
            repeats = self.made.get((like.repeats, label), like.repeats)
            self.builder.ops[-1] = replace(self.builder.ops[-1], repeats=repeats)
        return written

    def _separate(self, op: Op, operands: Sequence[str]) -> tuple[str, str, str]:
        """Queries, keys and values, as values of their own."""
        if not is_packed(len(operands)):
            q, k, v = operands[:3]
            return q, k, v
        packed = operands[0]
        if packed not in self.unpacked:
            b, s, g, wide, d = self.builder.spec(packed).shape
            cuts = (("q", 0, wide - 2), ("k", wide - 2, wide - 1), ("v", wide - 1, wide))
            parts = []
            for label, begin, end in cuts:
                attrs = {"begin": (0, 0, 0, begin, 0), "end": (b, s, g, end, d)}
                (part,) = self._add(op, f"{label}.packed", "slice", (packed,), attrs)
                parts.append(self._reshaped(op, label, part, (b, s, g * (end - begin), d)))
            self.unpacked[packed] = (parts[0], parts[1], parts[2])
        return self.unpacked[packed]

    def _reshaped(self, op: Op, label: str, x: str, shape: Shape) -> str:
        return self._add(op, label, "reshape", (x,), {"shape": shape})[0]

    def _block(self, op: Op, q: str, k: str, shift: int) -> Attrs:
        rows, keys = self.builder.spec(q).shape, self.builder.spec(k).shape
        attrs = {"rows": rows[1], "keys": keys[1], "chunks": self.ranks, "shift": shift}
        scores = {key: value for key, value in op.attrs.items() if key not in ("group", "sinks")}
        sinks = {"sinks": 1} if has_sinks(op.attrs) and shift == 0 else {}
        return {**scores, "group": rows[2] // keys[2], **attrs, **sinks}

    def _next(self, op: Op, label: str, x: str, shift: int) -> str:
        attrs = {"shift": shift, "chunks": self.ranks}
        return self._add(op, f"{label}{shift}", "copy", (x,), attrs)[0]

    def _forward(self, op: Op) -> None:
        q, k, v = self._separate(op, op.inputs)
        mask = op.inputs[-1:] if is_masked(len(op.inputs), op.attrs) else ()
        sinks = op.inputs[-1:] if has_sinks(op.attrs) else ()
        rows: tuple[str, ...] = sinks
        for shift in range(self.ranks):
            k, v = self._next(op, "k", k, shift), self._next(op, "v", v, shift)
            last = shift == self.ranks - 1
            label, outputs = ("", op.outputs) if last else (f"block{shift}", ())
            attrs, inputs = self._block(op, q, k, shift), (q, k, v, *mask, *rows)
            rows = self._add(op, label, "attention_block", inputs, attrs, labels=("lse",), outputs=outputs)

    def _backward(self, op: Op) -> None:
        *operands, out, lse, dout = op.inputs
        q, k, v = self._separate(op, operands)
        mask = operands[-1:] if is_masked(len(operands), op.attrs) else ()
        dq, home, away = "", ("", ""), ("", "")
        for shift in range(self.ranks):
            k, v = self._next(op, "k", k, shift), self._next(op, "v", v, shift)
            sinks = operands[-1:] if has_sinks(op.attrs) and shift == 0 else ()
            attrs, inputs = self._block(op, q, k, shift), (q, k, v, *mask, *sinks, out, lse, dout)
            name, labels = f"block{shift}", ("dk", "dv", "dsinks")[: 2 + len(sinks)]
            part, *travelling = self._add(op, name, "attention_block_grad", inputs, attrs, labels=labels)
            if sinks:
                self._same(op, 3, travelling.pop())
            if shift == 0:
                dq, home = part, (travelling[0], travelling[1])
                continue
            dq = self._gradient(op, 0, dq, part) if shift == self.ranks - 1 else self._sum(op, f"{name}:dq", dq, part)
            if shift > 1:
                ahead = f"block{shift - 1}"
                home = (
                    self._sum(op, f"{ahead}:dk", home[0], away[0]),
                    self._sum(op, f"{ahead}:dv", home[1], away[1]),
                )
            away = (travelling[0], travelling[1])
        home = self._gradient(op, 1, home[0], away[0]), self._gradient(op, 2, home[1], away[1])
        if is_packed(len(operands)):
            self._pack(op, operands[0], (dq, *home))

    def _sum(self, op: Op, label: str, total: str, part: str) -> str:
        return self._add(op, label, "add", (total, part))[0]

    def _gradient(self, op: Op, position: int, total: str, part: str) -> str:
        """The whole gradient of queries, keys or values: what the op writes, unless these are packed."""
        if len(op.outputs) == 1:
            return self._sum(op, _GRADIENTS[position], total, part)
        line, output = lineage_of(op), op.outputs[position]
        if position:
            label = op.labels[position - 1]
            template = f"{op.template or op.name}.{label}"
            line = replace(line, name=f"{op.name}.{label}", template=template)
        add = self.builder.add
        return add(line, "add", (total, part), outputs=(output,), phase=op.phase, layer=op.layer)[0]

    def _same(self, op: Op, position: int, gradient: str) -> None:
        """What the op writes at a position, under its own name."""
        line, template = lineage_of(op), f"{op.template or op.name}.{op.labels[position - 1]}"
        line = replace(line, name=f"{op.name}.{op.labels[position - 1]}", template=template)
        outputs = (op.outputs[position],)
        self.builder.add(line, "copy", (gradient,), outputs=outputs, phase=op.phase, layer=op.layer)

    def _pack(self, op: Op, packed: str, gradients: Sequence[str]) -> None:
        b, s, g, wide, d = self.builder.spec(packed).shape
        heads = ((gradients[0], wide - 2), (gradients[1], 1), (gradients[2], 1))
        parts = [
            self._reshaped(op, f"{label}.packed", name, (b, s, g, count, d))
            for label, (name, count) in zip(_GRADIENTS, heads, strict=True)
        ]
        self._add(op, "", "concat", parts, {"axis": 3}, outputs=op.outputs)
