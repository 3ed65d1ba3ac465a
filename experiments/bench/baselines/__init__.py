"""What others do with the joint problem: degrees, micro-batch, schedule, recomputing, ZeRO and layouts at once.

Published methods, each small, over one `LayerPricing`: what layers take and hold under layouts that rules leave. Every
answer is a pipeline of `LayerPart`s, timed by the recurrence of its schedule and held against the memory limit by the
estimate that our search has. They share nothing with our solver, nor with the search over boxes.
"""

from collections.abc import Callable, Mapping

from experiments.bench.baselines.alpa import alpa
from experiments.bench.baselines.galvatron import galvatron
from experiments.bench.baselines.mist import mist
from experiments.bench.baselines.pipelines import FoundPipeline
from experiments.bench.baselines.pricing import LayerPricing
from experiments.bench.baselines.uniform import uniform

JointBaseline = Callable[[LayerPricing], FoundPipeline | None]

JOINT_BASELINES: Mapping[str, JointBaseline] = {
    "calculon-like": uniform,
    "alpa-like": alpa,
    "galvatron-like": galvatron,
    "mist-like": mist,
}

__all__ = ["JOINT_BASELINES", "FoundPipeline", "JointBaseline", "LayerPricing", "alpa", "galvatron", "mist", "uniform"]
