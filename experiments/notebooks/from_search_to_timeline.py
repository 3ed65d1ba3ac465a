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
from pathlib import Path

from IPython.display import Image

from executor.supervision.environment import rank_environment
from executor.supervision.launch import launch
from executor.train import program_of
from experiments.demo_report import phases_of, typical_step
from experiments.machine import local_cluster
from experiments.prices import simulated_step
from experiments.ranks import rank_argv
from simulator.engine import run as simulate_acts
from simulator.figures import timeline_figure
from strategy.base.budget import Budget
from strategy.cost.cost import CostModel
from strategy.models import find_model
from strategy.passes.training import Training
from strategy.plan.plan import write_plan
from strategy.program.timeline import read_timeline
from strategy.search.search import search
from strategy.space.request import Request

rank_environment()

# %% [markdown]
# ## Search
#
# The cost model has only this machine's data sheet, measured in about a second; `sbplan profile` would teach it more.

# %%
cluster = local_cluster(2)
request = Request(
    model_name="gpt-tiny",
    model=find_model("gpt-tiny", sequence=64),
    training=Training(global_batch=8),
    cost=CostModel(cluster, {}),
    memory_limit_bytes=cluster.device.memory_bytes,
)
found = search(request, simulate=simulated_step, budget=Budget.of(55.0))
plan = found.plan
print(f"{found.status}: {plan.config}")
print(f"objective {plan.claims.objective_s * 1e3:.1f} ms, bound {plan.claims.lower_bound_s * 1e3:.1f} ms")
for config, seconds in found.runners_up:
    print(f"  {seconds * 1e3:.1f} ms  {config}")

# %% [markdown]
# ## Simulate

# %%
simulated = simulate_acts(program_of(plan), 3).timeline
print(f"{len(simulated.records)} acts, step {plan.claims.step_time_s * 1e3:.1f} ms")

# %% [markdown]
# ## Run
#
# Two MPI processes train by the plan on the sources of Python's standard library.

# %%
folder = Path("runs") / "notebook"
folder.mkdir(parents=True, exist_ok=True)
write_plan(plan, folder / "chosen.json")
code = launch(rank_argv("train", [str(folder / "chosen.json"), "--steps", "6"]), 2, folder=folder)
assert code == 0
measured = read_timeline(folder / "timeline.json.gz")

# %% [markdown]
# ## Draw

# %%
picture = timeline_figure([typical_step(simulated), typical_step(measured)], phases=phases_of(plan))
picture.savefig(folder / "timelines.png", dpi=150)
Image(folder / "timelines.png")  # type: ignore[no-untyped-call]
