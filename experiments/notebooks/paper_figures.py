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
# # Paper figures
#
# Experiments are data: a suite lists them, `sbplan run` keeps each in a store, and figures are drawn from the store,
# as PNG, PDF and CSV with run ids. Here are a few pipelines; `all.toml` is everything.

# %%
from pathlib import Path

from IPython.display import Image

from experiments.cli import main

# %% [markdown]
# ## Run a suite

# %%
Path("pipelines.toml").write_text(
    """
name = "schedules"

[[experiments]]
kind = "pipeline"
name = "{schedule}, {stages} stages, {micro_batches} micro-batches"
[experiments.over]
schedule = ["gpipe", "1f1b", "zbv"]
stages = [4]
micro_batches = [4, 8, 16]
"""
)
assert main(["run", "pipelines.toml"]) == 0

# %%
assert main(["runs"]) == 0

# %% [markdown]
# ## Draw its figures
#
# Those of the experiments that the store lacks are named, with the suite that makes them.

# %%
assert main(["figures", "--all"]) == 0

# %%
Image("figures/bubbles.png")  # type: ignore[no-untyped-call]

# %% [markdown]
# The column `run` of the CSV is the number of `sbplan runs show`.

# %%
print(Path("figures/bubbles.csv").read_text())
