# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     name: python3
# ---

# %% [markdown]
# # Add an op
#
# What an op is, one definition says: shapes, cost, the signatures that are legal, its meaning in array code, its
# gradient. Here is softplus, y = log(1 + e^x), tried without a file of its own; docs/adding_an_op.md makes it one.

# %%
from typing import cast

import matplotlib.pyplot as plt
import numpy as np

from executor.runtime.kernels.base import open_kernels
from experiments.machine.op_checks import check_kind
from strategy.graph.graph import Attrs
from strategy.graph.ops import REGISTRY
from strategy.graph.ops.base import AxisSignature, Call, Example, OpDef, Specs, elementwise_signatures
from strategy.sbp.tensor import TensorSpec

# %% [markdown]
# ## Its definition
#
# It is element-wise, so it may be split along any dim; it is not linear, so it cannot read terms of a sum.


# %%
def infer(inputs: Specs, updates: Specs, attrs: Attrs) -> tuple[TensorSpec, ...]:
    return (inputs[0],)


def flop(inputs: Specs, outputs: Specs, attrs: Attrs) -> int:
    return 4 * inputs[0].size


def signatures(inputs: Specs, outputs: Specs, attrs: Attrs, parts: int) -> list[AxisSignature]:
    return elementwise_signatures(inputs[0].shape, 1)


def run(call: Call) -> None:
    call.xp.logaddexp(call.inputs[0], 0.0, out=call.outputs[0])


softplus = OpDef("softplus", infer, flop, signatures, run, examples=(Example((TensorSpec((5, 8)),)),))
for one in signatures((softplus.examples[0].inputs[0],), (softplus.examples[0].inputs[0],), {}, 2):
    print(one)

# %% [markdown]
# ## Its check
#
# Every signature that is listed is run on ranks' pieces and compared with one device; what is not listed has to be
# wrong. `sbplan doctor --ops` does this for all ops.

# %%
cast("dict[str, OpDef]", REGISTRY)["softplus"] = softplus
coverage = check_kind("softplus", open_kernels("numpy"))
print(coverage)
print(coverage.problems or "nothing is wrong")

# %% [markdown]
# ## What a wrong signature looks like
#
# Were it said to be linear, terms of a sum would go through it: softplus(a) + softplus(b) is not softplus(a + b).

# %%
x = np.linspace(-4, 4, 81)
picture, axes = plt.subplots(figsize=(3.4, 2.4), layout="constrained")
axes.plot(x, np.logaddexp(x, 0), label="softplus(x)")
axes.plot(x, 2 * np.logaddexp(x / 2, 0), "--", label="of two halves of x, added up")
axes.legend(frameon=False)
axes.set_xlabel("x")
picture.savefig("signatures.png")
picture
