"""Experiments: what a suite may ask for, a type per kind, which the key `kind` of its table names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Seconds = Annotated[float, Meta(gt=0)]
Text = Annotated[str, Meta(min_length=1)]
ExchangeSystem = Literal["ddp", "horovod", "byteps", "mxnet", "perseus"]
ScheduleName = Literal["gpipe", "1f1b", "interleaved", "zb-h1", "zbv"]


class SearchExperiment(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="search"):
    """A search on a cluster, and the simulated step of its plan.

    `pins` are the keys of a pin file's [config]; `series` is the line of a figure that the experiment is a point of.
    """

    name: Text
    model: Text
    cluster: Text
    global_batch: Count
    sequence: Count | None = None
    training: tuple[str, ...] = ()
    pins: Mapping[str, Any] = {}
    time_limit_s: Seconds = 20.0
    series: str = ""


class BaselineExperiment(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="baselines"):
    """Our search beside what others do with the same problem, each with the same time (`sbplan bench joint`)."""

    name: Text
    model: Text
    cluster: Text
    global_batch: Count
    sequence: Count | None = None
    time_limit_s: Seconds = 20.0


class PipelineExperiment(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="pipeline"):
    """A pipeline of equal stages under a schedule; a forward pass takes 1, a backward pass 2, in equal parts."""

    name: Text
    schedule: ScheduleName
    stages: Count
    micro_batches: Count


class ExchangeExperiment(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="exchange"):
    """Data-parallel steps under systems' exchanges of gradients, on virtual machines of eight V100s over TCP."""

    name: Text
    model: Text
    batch: Count
    nodes: Count
    gbit_per_s: Annotated[float, Meta(gt=0)] = 25.0
    systems: tuple[ExchangeSystem, ...] = ("perseus", "horovod", "byteps")


class FrameworkExperiment(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="frameworks"):
    """OneFlow and Megatron on the published configurations that both ran, simulated beside what was measured."""

    name: Text


class MegatronExperiment(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="megatron"):
    """A job of Megatron's SC'21 table by closed form and by simulated acts, with the difference by cause."""

    name: Text
    job: Text


class PublishedExperiment(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="published"):
    """Every open published run, predicted by a fit that has not seen its group."""

    name: Text


class LoopExperiment(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="loop"):
    """Plans trained on ranks of this machine beside their simulation, before and after refinement (`sbplan demo`)."""

    name: Text
    ranks: Annotated[int, Meta(ge=2)] = 2
    blocks: Annotated[int, Meta(ge=3)] = 4
    steps: Annotated[int, Meta(ge=3)] = 7


class PredictionExperiment(Struct, frozen=True, forbid_unknown_fields=True, tag_field="kind", tag="predictions"):
    """Enumerated plans on ranks of this machine: predictions stored before the rounds that they are scored on.

    Attributes:
        nodes: emulated ones that the ranks are shared out to, with cables of so many `gbit_per_s`; 1: none.
        kernels: what ranks run ops by.
        blocks: turns of a plan in a round, of `steps` each.
        off: by this factor the prices are wrong that refinement begins with.
        held_out: whether the plans that are scored are others than those that prices are fitted to.
    """

    name: Text
    ranks: Annotated[int, Meta(ge=2)] = 2
    nodes: Count = 1
    gbit_per_s: Annotated[float, Meta(gt=0)] = 1.0
    kernels: Literal["numpy", "timed-wait"] = "numpy"
    rounds: Annotated[int, Meta(ge=2, multiple_of=2)] = 8
    blocks: Count = 4
    steps: Annotated[int, Meta(ge=3)] = 3
    micro_batches: tuple[Count, ...] = (1, 2, 4, 8)
    off: Annotated[float, Meta(gt=0)] = 1.0
    held_out: bool = False


Experiment = (
    SearchExperiment
    | BaselineExperiment
    | PipelineExperiment
    | ExchangeExperiment
    | FrameworkExperiment
    | MegatronExperiment
    | PublishedExperiment
    | LoopExperiment
    | PredictionExperiment
)
STARTS_RANKS = (LoopExperiment, PredictionExperiment)
"""Those that start ranks themselves."""
