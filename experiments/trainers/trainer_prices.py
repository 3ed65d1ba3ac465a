"""Trainer prices: a trainer's configuration beside what the search would do, both priced by the same closed form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from experiments.planning.prices import simulated_step
from experiments.planning.training_cost import TrainingCost, cost_text, training_cost
from experiments.studies.job_failures import FailureRates, JobSize, checkpoint_bytes
from strategy.base.budget import Budget
from strategy.base.errors import InfeasibleError, InputError, OutOfTimeError
from strategy.base.units import format_bytes, format_seconds
from strategy.closed_form.calibration import FittedConstants
from strategy.closed_form.job import Job, Jobs
from strategy.closed_form.work import trained_parameters
from strategy.cost.cost import CostModel
from strategy.exports.of_plan import said_of_plan
from strategy.hardware.cluster import Cluster
from strategy.hardware.devices import device, named_sheet
from strategy.hardware.presets import PRESETS, preset_with
from strategy.layout.config import PlanConfig
from strategy.search.search import MOST_DEVICES, search
from strategy.space.request import Request
from strategy.trainers.architecture import description
from strategy.trainers.priced import PricedMachine, TrainerPrice, machine_of_cluster, priced
from strategy.trainers.trained import TrainedModel, configured, training_of

_TOLD = 0.02
"""Part of the slower step that a difference by cause must be to be told."""


@dataclass(frozen=True, slots=True)
class SearchedInstead:
    """What the search would do instead.

    Attributes:
        config: of the best of its plans, by the closed form that priced the file too.
        price: of that.
        simulated_s: the search's own time of its first plan.
        saved_s: part of a step -> seconds that the file's configuration takes more there.
    """

    config: PlanConfig
    price: TrainerPrice
    simulated_s: float
    saved_s: Mapping[str, float]


def cluster_of(gpu: str, gpus: int) -> Cluster | None:
    """So many GPUs of a kind, in nodes as a preset has them; fewer than a node are a part of one.

    Nothing, where no preset has them. Raises InputError where the nodes are not whole.
    """
    try:
        name = preset_with(gpu)
    except InputError:
        return None
    found = PRESETS[name]
    per_node = min(found.devices_per_node, gpus)
    if gpus % per_node:
        raise InputError("no whole nodes", where="--gpus", got=gpus, expected=f"a multiple of {per_node}")
    return replace(found, name=f"{name}:{gpus // per_node}", nodes=gpus // per_node, devices_per_node=per_node)


def machine_of(gpu: str, gpus: int, per_node: int) -> PricedMachine:
    """GPUs of a kind that no preset has: by its data sheet.

    Raises:
        InputError: there is no sheet of it.
    """
    sheet = named_sheet(gpu) or named_sheet(gpu.upper()) or device(gpu.upper())
    return PricedMachine(sheet, gpus, min(per_node or min(sheet.domain, 8), gpus))


def searched(
    read: TrainedModel, own: TrainerPrice, cluster: Cluster, fitted: FittedConstants, budget: Budget
) -> SearchedInstead:
    """The best that the search finds for the same model, batch and devices, by the judge of the file's own price.

    Raises:
        InputError: we have no such model, or the cluster is larger than a plan can list.
        InfeasibleError, OutOfTimeError: the search found nothing.
    """
    model = description(read.model, read.sequence)
    if read.adapter_rank:
        raise InputError("the search trains all weights", got=f"adapters of rank {read.adapter_rank}")
    if cluster.devices > MOST_DEVICES:
        raise InputError("more devices than a plan can list", got=cluster.devices, expected=f"at most {MOST_DEVICES}")
    request = Request(
        model_name="priced",
        model=model,
        training=training_of(read, cluster.devices),
        cost=CostModel(cluster, {}),
        memory_limit_bytes=cluster.largest_memory_bytes,
    )
    result = search(request, simulate=simulated_step, budget=budget)
    machine = machine_of_cluster(cluster)
    found: list[tuple[bool, float, int]] = []
    prices: list[tuple[PlanConfig, TrainerPrice]] = []
    configs = [result.plan.config, *(config for config, _ in result.runners_up)]
    # What a search shares out though its configuration does not ask for it, its plan shows.
    zero = said_of_plan(result.plan, read.trainer).trained.zero
    for config in configs:
        try:
            price = priced(configured(read, config, zero), machine, fitted)
        except InputError:
            continue
        found.append((not price.fits, price.step_time_s, len(prices)))
        prices.append((config, price))
    if not found:
        raise InfeasibleError("the closed form prices none of the plans that the search found")
    config, price = prices[min(found)[2]]
    names = dict.fromkeys((*own.causes_s, *price.causes_s))
    saved = {name: own.causes_s.get(name, 0.0) - price.causes_s.get(name, 0.0) for name in names}
    return SearchedInstead(config, price, result.plan.claims.step_time_s, saved)


def why_not_searched(error: InputError | InfeasibleError | OutOfTimeError) -> str:
    """Why there is no alternative, in one line."""
    return str(error).splitlines()[0]


def told(own: TrainerPrice, other: SearchedInstead) -> str:
    """What the search would do, and why that is faster, for people."""
    from experiments.planning.config_text import degrees

    ratio = own.step_time_s / other.price.step_time_s
    if not other.price.fits:
        return f"search: {degrees(other.config)}: does not fit by this judge"
    if ratio <= 1:
        return (
            f"search: nothing faster; its best is {degrees(other.config)}, "
            f"{format_seconds(other.price.step_time_s)} by this judge"
        )
    least = _TOLD * own.step_time_s
    parts = sorted(other.saved_s.items(), key=lambda part: -abs(part[1]))
    reasons = [f"{name} {-saved:+.3g} s" for name, saved in parts if abs(saved) > least]
    return (
        f"search: {format_seconds(other.price.step_time_s)}, {ratio:.2f} times as fast: {degrees(other.config)}\n"
        f"        since: {', '.join(reasons) or 'many small parts'}"
    )


def table(own: TrainerPrice) -> list[str]:
    """Step, rate, memory by cause, for people."""
    step = f"{format_seconds(own.step_time_s)} a step ({format_seconds(own.lo_s)} to {format_seconds(own.hi_s)})"
    rate = f"{own.tokens_per_s_per_gpu:.4g} tokens/s per GPU, MFU {own.mfu:.1%}"
    peak, limit = own.peak_memory_bytes, own.limit_bytes
    fits = fits_text(own)
    time = ", ".join(f"{name} {seconds / own.step_time_s:.0%}" for name, seconds in _large(own.causes_s))
    memory = ", ".join(f"{name} {format_bytes(nbytes)}" for name, nbytes in own.memory_bytes.items() if nbytes)
    lines = [f"{step}; {rate}", f"time:   {time}", f"memory: {format_bytes(peak)} of {format_bytes(limit)}, {fits}, "
             f"{_room(own)}: {memory}"]  # fmt: skip
    if own.extrapolated:
        lines.append(f"no run that the constants rest on was like this in: {', '.join(own.extrapolated)}")
    return lines


def _room(price: TrainerPrice) -> str:
    """How far it is from running out of memory."""
    margin = format_bytes(abs(price.margin_bytes))
    if price.margin_bytes < 0:
        return f"{margin} too much"
    return f"{margin} from running out" if price.fits else f"{margin} left, less than fragments take"


def fits_text(price: TrainerPrice) -> str:
    """Whether it fits, and how sure that is."""
    sure = "" if price.fit_probability is None else f"probability {price.fit_probability:.2f}"
    if price.fits:
        return f"fits ({sure})" if sure else "fits"
    return f"does not fit (it would with {sure})" if sure else "does not fit"


def _large(parts: Mapping[str, float]) -> list[tuple[str, float]]:
    whole = sum(parts.values())
    ordered = sorted(parts.items(), key=lambda part: -part[1])
    return [(name, seconds) for name, seconds in ordered if seconds > 0.005 * whole]


@dataclass(frozen=True, slots=True)
class PricedTraining:
    """What a token budget takes at a price, and its days at both ends of the price's interval."""

    cost: TrainingCost
    lo_days: float
    hi_days: float

    def document(self) -> dict[str, object]:
        """As JSON knows it."""
        return asdict(self.cost) | {"lo_days": self.lo_days, "hi_days": self.hi_days}

    def __str__(self) -> str:
        return cost_text(self.cost, f" ({self.lo_days:.4g} to {self.hi_days:.4g})")


def size_of_job(job: Job) -> JobSize:
    """The size of what was priced."""
    parameters = round(float(trained_parameters(Jobs.of([job]))[0]))
    nodes = -(-job.gpus // job.gpus_per_node)
    return JobSize(job.gpus, nodes, job.global_batch * job.seq, checkpoint_bytes(parameters, job.moments))


def priced_training(own: TrainerPrice, tokens: int, rates: FailureRates | None) -> PricedTraining:
    """What so many tokens take; GPUs fail at some rate, or never.

    Raises:
        InputError: the tokens are less than one step, or failures leave no time to train.
    """
    size = size_of_job(own.job)
    cost, lo, hi = (training_cost(size, tokens, one_s, rates) for one_s in (own.step_time_s, own.lo_s, own.hi_s))
    return PricedTraining(cost, lo.days, hi.days)
