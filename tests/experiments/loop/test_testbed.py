"""Testbeds: plans on ranks of this machine, and of emulated nodes, whose kernels wait."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from executor.runtime.kernels.timed_wait import ACT_S
from experiments.loop.contenders import Contender, timed
from experiments.loop.testbed import Testbed as Ranks
from experiments.machine.emulated_nodes import find_obstacle
from strategy.base.errors import RunError
from strategy.passes.training import Training
from strategy.program.program import ActKind
from tests.mpi.plans import MODEL, small_plan
from tests.support.small_plans import config_of, plan_by_rules, request

pytestmark = pytest.mark.mpi


def test_kernels_that_wait_take_no_less_than_they_say(tmp_path: Path) -> None:
    ranks = Ranks(2, kernels="timed-wait")
    (found,) = timed([Contender("mixed", small_plan("mixed"))], ranks, tmp_path, blocks=1, steps=5, progress=print)
    computes = [row for row in found.rows if row.features.kind not in set(ActKind)]
    assert len(computes) >= 10
    assert min(row.seconds for row in computes) >= ACT_S
    assert len(found.samples_s) == 4


@pytest.mark.long
def test_they_do_so_on_four_ranks_of_two_nodes(tmp_path: Path) -> None:
    if reason := find_obstacle():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    training = Training(global_batch=8)
    plan = plan_by_rules(request(4, training, model=MODEL, per_node=2), config_of(training, dp=4), ("data", "tensor"))
    ranks = Ranks(4, nodes=2, kernels="timed-wait")
    (found,) = timed([Contender("data", plan)], ranks, tmp_path, blocks=1, steps=5, progress=print)
    print(sorted({(str(row.features.kind), row.features.level, row.samples) for row in found.rows}))
    assert {"intra", "inter"} & {row.features.level for row in found.rows}
    assert len(set(found.pids)) == 4


def test_a_job_that_fails_says_where_to_look(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"on 2 ranks ended with code [1-9]+; see .*job"):
        Ranks(2).run("experiments.jobs.blocks", ["--blocks", "1"], tmp_path / "job")
