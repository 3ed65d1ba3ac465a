"""Answer: what a search found, as JSON and in two lines for people."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from experiments.planning.config_text import degrees

if TYPE_CHECKING:
    from strategy.base.status import Status
    from strategy.cost.calibrate import Calibration
    from strategy.plan.plan import Plan
    from strategy.search.search_result import SearchResult
    from strategy.space.request import Request


def document(
    result: SearchResult, path: Path, calibration: Calibration | None, *, search_time_s: float
) -> dict[str, object]:
    """The JSON document of a search."""
    from experiments.planning.prices import extrapolated
    from strategy.plan.plan import config_document

    plan, claims = result.plan, result.plan.claims
    mfu, hfu = utilisation(plan)
    return {
        "status": str(result.status),
        "step_time_s": claims.step_time_s,
        "objective_s": claims.objective_s,
        "lower_bound_s": claims.lower_bound_s,
        "gap": claims.gap,
        "simulated_lower_bound_s": claims.simulated_lower_bound_s,
        "search_time_s": search_time_s,
        "config": config_document(plan.config),
        "precision": str(plan.training.precision),
        "parameters": plan.model.parameters,
        "peak_memory_bytes": list(claims.peak_memory_bytes),
        "peak_host_memory_bytes": list(claims.peak_host_memory_bytes),
        "memory_limit_bytes": claims.memory_limit_bytes,
        "fit_probability": None if claims.fit is None else claims.fit.probability,
        "tokens_per_s": plan.tokens_per_step / claims.step_time_s,
        "mfu": mfu,
        "hfu": hfu,
        "runners_up": [
            {"config": config_document(config), "step_time_s": step_time_s} for config, step_time_s in result.runners_up
        ],
        "plan": str(path),
        "plan_hash": plan.plan_hash,
        "num_candidates": result.num_candidates,
        "extrapolated": extrapolated(plan, calibration),
    }


def without_plan(status: Status, request: Request, started: float) -> dict[str, object]:
    """The JSON document of a search that found no plan: every key of the contract, null where there is nothing."""
    nothing = ("step_time_s", "objective_s", "lower_bound_s", "gap", "simulated_lower_bound_s", "config")
    figures = ("precision", "peak_memory_bytes", "tokens_per_s", "mfu", "hfu", "best", "plan")
    return {
        "status": status,
        "parameters": request.model.parameters,
        **dict.fromkeys((*nothing, *figures)),
        "best_left_out": "no plan was found",
        "search_time_s": time.perf_counter() - started,
        "memory_limit_bytes": request.memory_limit_bytes,
        "runners_up": [],
    }


def utilisation(plan: Plan) -> tuple[float, float]:
    """FLOPs per second over those of the devices' data sheet: the model's, and all that are done."""
    from strategy.lowering.lower import hardware_flop, model_flop

    peak_flop = plan.ranks * plan.peak_flop_per_s * plan.claims.step_time_s
    return model_flop(plan.graph, plan.pipeline) / peak_flop, hardware_flop(plan.graph, plan.pipeline) / peak_flop


def _batch(plan: Plan) -> str:
    """Samples of a step, and how long they are: by default as long as the context, which may be more than is meant."""
    tokens = plan.model.tokens_per_sample
    return f"{plan.training.global_batch:,} samples" + (f" of {tokens:,} tokens" if tokens > 1 else "")


def summary(result: SearchResult, path: Path) -> str:
    """The answer in two lines, for people."""
    from strategy.base.units import format_bytes, format_seconds

    plan, claims = result.plan, result.plan.claims
    peak, limit = format_bytes(max(claims.peak_memory_bytes)), format_bytes(claims.memory_limit_bytes)
    if claims.fit is not None:
        limit += f", which fits with probability {claims.fit.probability:g}"
    return (
        f"{path}: {degrees(plan.config)}, precision {plan.training.precision}; "
        f"{format_seconds(claims.step_time_s)} a step of {_batch(plan)}, {peak} of {limit}\n"
        f"{result.status}, gap {claims.gap:.2%} (objective {format_seconds(claims.objective_s)}, "
        f"bound {format_seconds(claims.lower_bound_s)}), {result.search_time_s:.1f} s: {result.status.message}"
    )
