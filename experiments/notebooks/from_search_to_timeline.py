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
# # From a search to a measured timeline
#
# Search a plan for a small GPT on two ranks of this machine, simulate it, train by it, and draw what was predicted
# above what happened.

# %%
from IPython.display import Image

from experiments import search, simulate, train
from experiments.figures.typical_step import phases_of, typical_step
from simulator.figures import timeline_figure
from strategy.program.timeline import read_timeline

# %% [markdown]
# ## Search
#
# The cost model has only this machine's data sheet, measured in about a second; `sbplan profile` would teach it more.

# %%
found = search("gpt-tiny", cluster="local:2", seq=64, global_batch=8, time_limit=55)
plan = found.plan
print(f"{found.status}: {plan.config}")
print(f"objective {plan.claims.objective_s * 1e3:.1f} ms, bound {plan.claims.lower_bound_s * 1e3:.1f} ms")
for config, seconds in found.runners_up:
    print(f"  {seconds * 1e3:.1f} ms  {config}")

# %% [markdown]
# ## Simulate

# %%
simulated = simulate(plan, steps=3).timeline
print(f"{len(simulated.records)} acts, step {plan.claims.step_time_s * 1e3:.1f} ms")

# %% [markdown]
# ## Run
#
# Two MPI processes train by the plan on the sources of Python's standard library.

# %%
folder = train(plan, steps=6)
measured = read_timeline(folder / "timeline.json.gz")

# %% [markdown]
# ## Draw

# %%
picture = timeline_figure([typical_step(simulated), typical_step(measured)], phases=phases_of(plan))
picture.savefig(folder / "timelines.png", dpi=150)
Image(folder / "timelines.png")  # type: ignore[no-untyped-call]
