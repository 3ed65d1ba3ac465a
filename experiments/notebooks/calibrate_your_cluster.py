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
# # Calibrate your cluster
#
# The data sheet says what a machine could do; measured runs say what it does. Here a plan is trained on two ranks of
# this machine, and the model of the machine is corrected by that run. On a cluster, `sbplan refine --log PLAN LOG` does
# so by the log of Megatron-LM, torchtitan or NeMo, or by a trace of PyTorch's profiler.

# %%
import json
from pathlib import Path

import matplotlib.pyplot as plt

from experiments import search, train
from experiments.cli import main

# %% [markdown]
# ## Train

# %%
found = search("gpt-tiny", cluster="local:2", seq=64, global_batch=8, time_limit=55)
print(f"predicted by the data sheet: {found.plan.claims.step_time_s * 1e3:.1f} ms a step")
folder = train(found.plan, steps=8)

# %% [markdown]
# ## Correct the model by the run

# %%
assert main(["refine", str(folder), "--out", "refined.json"]) == 0
assert main(["simulate", str(folder / "plan.json"), "--calibration", "refined.json"]) == 0

# %% [markdown]
# ## What was learned
#
# Of every kind of act: what a byte costs. A search with `--calibration refined.json` chooses by these.

# %%
kinds = {
    f"{one['kind']}{one.get('half', '')}": 1e9 * one["coefficients"]["s_per_byte"]
    for one in json.loads(Path("refined.json").read_text())["fitted"]
    if one["coefficients"].get("s_per_byte")
}
picture, axes = plt.subplots(figsize=(3.4, 4), layout="constrained")
axes.barh(list(kinds), list(kinds.values()))
axes.set_xlabel("ns per byte")
axes.tick_params(axis="y", labelsize=6)
picture
