"""The problems of `sbplan bench search`: twenty of our own graphs, and four instances of the contest."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from strategy.base.units import parse_bytes
from strategy.cost.cost import CostModel
from strategy.hardware.presets import find_cluster
from strategy.ilp.problem import Problem
from strategy.ilp.problem_file import read_problem
from strategy.layout.config import PlanConfig
from strategy.layout.schedule import Schedule
from strategy.models import find_model
from strategy.passes.training import Training
from strategy.space.candidate_space import free_rules, space_of
from strategy.space.layout_problem import layout_problem
from strategy.space.request import Request

INSTANCES = Path(__file__).parent.parent / "reference" / "iopddl"


@dataclass(frozen=True, slots=True)
class SearchProblem:
    """One problem: its name, and what builds or reads it."""

    name: str
    build: Callable[[], Problem]


@dataclass(frozen=True, slots=True)
class PresetLayout:
    """A preset's whole training graph on one mesh, `data` x `tensor` ranks of a cluster."""

    model: str
    data: int
    tensor: int
    batch: int
    cluster: str = "dgx-a100:1"
    sequence: int | None = None
    folded: bool = True
    limit: str = ""
    """The most memory per rank; none where it is empty."""

    @property
    def name(self) -> str:
        """What tells it from the others."""
        limit = f" in {self.limit}" if self.limit else ""
        return f"{self.model} {self.data}x{self.tensor}{' folded' if self.folded else ''}{limit}"

    def build(self) -> Problem:
        """The problem of the search for this mesh, with no micro-batches."""
        cluster = find_cluster(self.cluster)
        request = Request(
            self.model,
            find_model(self.model, sequence=self.sequence),
            Training(global_batch=self.batch),
            CostModel(cluster, {}),
            cluster.device.memory_bytes,
        )
        config = PlanConfig(self.data, self.tensor, 1, self.batch // self.data, 1, Schedule.GPIPE)
        space = space_of(request, config, free_rules(config), folded=self.folded)
        return layout_problem(space, limit=parse_bytes(self.limit) if self.limit else None).problem


LAYOUTS = (
    PresetLayout("gpt-tiny", 2, 2, 8),
    PresetLayout("gpt-tiny", 2, 4, 8, folded=False),
    PresetLayout("gpt-tiny", 1, 8, 8, limit="12 MiB"),
    PresetLayout("gpt2-small", 2, 4, 16),
    PresetLayout("gpt2-small", 2, 4, 16, folded=False),
    PresetLayout("gpt2-small", 8, 1, 16, limit="2.75 GiB"),
    PresetLayout("gpt2-345m", 4, 4, 16, "dgx-a100:2"),
    PresetLayout("gpt3-175b", 8, 8, 64, "dgx-a100:8"),
    PresetLayout("llama-tiny", 2, 2, 8, folded=False),
    PresetLayout("llama2-7b", 4, 8, 32, "dgx-a100:4"),
    PresetLayout("llama3-8b", 8, 8, 64, "dgx-a100:8"),
    PresetLayout("mixtral-tiny", 2, 2, 8, folded=False),
    PresetLayout("bert-tiny", 2, 2, 8, folded=False),
    PresetLayout("bert-large", 4, 8, 32, "dgx-a100:4"),
    PresetLayout("vit-b16", 2, 4, 32),
    PresetLayout("resnet18", 8, 1, 32, folded=False),
    PresetLayout("vgg16", 8, 1, 32, folded=False),
    PresetLayout("wide-and-deep", 2, 4, 64, folded=False),
    PresetLayout("arcface-1m", 1, 8, 64),
    PresetLayout("mlp", 2, 4, 64, folded=False),
)


def preset_problems() -> tuple[SearchProblem, ...]:
    """Twenty of our own graphs."""
    return tuple(SearchProblem(layout.name, layout.build) for layout in LAYOUTS)


def contest_problems() -> tuple[SearchProblem, ...]:
    """The four instances."""
    return tuple(SearchProblem(f"iopddl {letter}", _reader(letter)) for letter in "AGMS")


def _reader(letter: str) -> Callable[[], Problem]:
    return lambda: read_problem(INSTANCES / f"asplos-2025-iopddl-{letter}.json.gz")
