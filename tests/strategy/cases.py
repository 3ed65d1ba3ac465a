"""One small graph of a single op per kind and shape: what the tests of ops and signatures run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from strategy.builder import GraphBuilder
from strategy.graph import Attrs, Graph, Op, Role, Value
from strategy.ops import op_definition
from strategy.ops.base import Call, Workspace
from strategy.tensor import Box, DType, Rate, Shape, TensorSpec

Array = npt.NDArray[Any]
ADAMW: Attrs = {"lr": 0.1, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "weight_decay": 0.1}


SGD: Attrs = {"momentum": 0.9, "nesterov": 0, "weight_decay": 0.1}
RATE: Attrs = {
    "dtype": "float64",
    "decay": "cosine",
    "lr": 0.1,
    "warm_up": 2,
    "steps": 9,
    "final": 0.1,
    "power": 2.0,
    "factor": 0.5,
}


@dataclass(frozen=True)
class Case:
    """One op on tensors of given shapes. Input `i` is made of integers below `integers[i]` where that is given."""

    kind: str
    inputs: tuple[Shape, ...]
    attrs: Attrs = field(default_factory=dict)
    updates: tuple[Shape, ...] = ()
    integers: tuple[tuple[int, int], ...] = ()

    def __str__(self) -> str:
        return f"{self.kind}{self.inputs}{dict(self.attrs) if self.kind in ('reshape', 'transpose') else ''}"

    def graph(self) -> Graph:
        """The op alone, with inputs `x0`, `x1`, ... and variables `u0`, ..."""
        builder = GraphBuilder()
        bounds = dict(self.integers)
        for i, shape in enumerate(self.inputs):
            dtype = DType.INT32 if i in bounds else DType.FLOAT64
            builder.declare(Value(f"x{i}", TensorSpec(shape, dtype), Rate.MICRO_BATCH, Role.INPUT))
        for i, shape in enumerate(self.updates):
            builder.declare(Value(f"u{i}", TensorSpec(shape, DType.FLOAT64), Rate.STEP, Role.VARIABLE, "zeros"))
        builder.add(
            "op",
            self.kind,
            [f"x{i}" for i in range(len(self.inputs))],
            labels=tuple(map(str, range(1, 12))),
            updates=[f"u{i}" for i in range(len(self.updates))],
            attrs=self.attrs,
        )
        return builder.build()

    def draw(self, rng: np.random.Generator) -> tuple[list[Array], list[Array]]:
        """Inputs and variables; positive where the op takes a root or a quotient."""
        bounds = dict(self.integers)
        inputs: list[Array] = [
            rng.integers(0, bounds[i], shape, np.int32) if i in bounds else np.asarray(rng.standard_normal(shape))
            for i, shape in enumerate(self.inputs)
        ]
        if self.kind in ("clip_scale", "lamb_apply"):
            inputs = [np.asarray(np.abs(array) + 1) for array in inputs]
        updates: list[Array] = [np.asarray(np.abs(rng.standard_normal(shape))) for shape in self.updates]
        return inputs, updates


def cases(n: int, m: int) -> list[Case]:
    """Every kind, on dims of about `n` and `m` rows; one with several shapes where its rule depends on them."""
    adamw = ((n, m),) * 3
    return [
        Case("matmul", ((n, m), (m, n))),
        Case("matmul", ((n, 4, m), (m, n))),
        Case("matmul_nt", ((n, m), (n, m))),
        Case("matmul_nt", ((4, n, m), (n, m))),
        Case("matmul_tn", ((n, m), (n, m))),
        Case("matmul_tn", ((n, 4, m), (n, 4, n))),
        Case("add", ((n, m), (n, m))),
        Case("add", ((n, 4, m), (m,))),
        Case("add", ((n, m), ())),
        Case("add_n", ((n, m), (n, m))),
        Case("add_n", ((), ())),
        Case("gelu", ((n, m),)),
        Case("gelu_grad", ((n, m), (n, m))),
        Case("reduce_sum", ((n, 4, m),), {"axes": (0, 1), "keepdims": 0}),
        Case("reduce_sum", ((n, 4, m),), {"axes": (0,), "keepdims": 0}),
        Case("reduce_sum", ((n, m),), {"axes": (0, 1), "keepdims": 1}),
        Case("square_sum", ((n, m),)),
        Case("square_sum", ((),)),
        Case("accumulate", ((n, m),)),
        Case("accumulate", ((),)),
        Case("layer_norm", ((n, m), (m,), (m,))),
        Case("layer_norm", ((n, 4, m), (m,), (m,))),
        Case("layer_norm_grad", ((n, m), (m,), (n,), (n,), (n, m))),
        Case("layer_norm_grad", ((n, 4, m), (m,), (n, 4), (n, 4), (n, 4, m))),
        Case("attention", ((n, 3, m, 3, 2),), {"causal": 1}),
        Case("attention_grad", ((n, 3, m, 3, 2), (n, 3, m, 2), (n, m, 3), (n, 3, m, 2)), {"causal": 1}),
        Case("gather", ((n, m), (n, 4)), {"axis": 0}, integers=((1, n),)),
        Case("gather_grad", ((n, 4), (n, 4, m)), {"axis": 0, "rows": n}, integers=((0, n),)),
        Case("reshape", ((n, m),), {"shape": (n * m,)}),
        Case("reshape", ((n, m, 2),), {"shape": (n, 2 * m)}),
        Case("reshape", ((n, 2 * m),), {"shape": (n, 2, m)}),
        Case("reshape", ((n, 2 * m),), {"shape": (n, m, 1, 2)}),
        Case("reshape", ((4, 6, m),), {"shape": (6, 4, m)}),
        Case("transpose", ((n, m, 4),), {"perm": (2, 0, 1)}),
        Case("transpose", ((n, m),), {"perm": (1, 0)}),
        Case("clip_scale", ((), ()), {"max_norm": 0.5}),
        Case("adamw", ((n, m), (), ()), ADAMW, updates=adamw),
        Case("adam", ((n, m), (), ()), ADAMW, updates=adamw),
        Case("adagrad", ((n, m), (), ()), {"epsilon": 1e-8, "weight_decay": 0.1}, updates=adamw[:2]),
        Case("sgd", ((n, m), (), ()), {**SGD, "momentum": 0.0}, updates=adamw[:1]),
        Case("sgd", ((n, m), (), ()), SGD, updates=adamw[:2]),
        Case("sgd", ((n, m), (), ()), {**SGD, "nesterov": 1}, updates=adamw[:2]),
        Case("lamb_direction", ((n, m), (), (n, m)), ADAMW, updates=adamw[:2]),
        Case("lamb_apply", ((n, m), (), (), ()), updates=adamw[:1]),
        Case("stack", ((n, m),) * 4),
        Case("unstack", ((4, n, m),)),
        Case("muon_direction", ((4, n, m), ()), {"momentum": 0.9, "nesterov": 1}, updates=((4, n, m),)),
        Case("descend", ((n, m), ()), {"scale": 1.5, "weight_decay": 0.1}, updates=adamw[:1]),
        Case("learning_rate", (), RATE),
        Case("report", ((), (), ())),
    ]


def run_op(
    op: Op,
    inputs: list[Array],
    outputs: list[Array],
    updates: list[Array],
    boxes: tuple[list[Box], list[Box]],
    *,
    number: int = 0,
    workspace: Workspace | None = None,
    xp: object = np,
) -> None:
    """One act on one rank's pieces; `boxes` are those of inputs and outputs."""
    call = Call(
        xp=xp,
        attrs=op.attrs,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        updates=tuple(updates),
        input_boxes=tuple(boxes[0]),
        output_boxes=tuple(boxes[1]),
        workspace=workspace or Workspace(xp),
        number=number,
        first_of_piece=number == 0,
    )
    op_definition(op.kind).run(call)
