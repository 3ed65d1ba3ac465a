"""Two nodes that are emulated: their names, links and clocks; a profile and a training over four ranks on them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from executor.train import program_of
from experiments.jobs.profiling import count_nodes
from experiments.machine.emulated_nodes import find_obstacle, parse, share_out, write_mpiexec
from strategy.base.errors import InputError
from strategy.cost.calibrate import read_calibration
from strategy.cost.measurement import CostKey
from strategy.hardware.cluster_file import read_cluster
from strategy.passes.training import Training
from strategy.plan.plan import Plan, write_plan
from strategy.program.program import ActKind, BoxingTask
from strategy.program.timeline import ActRecord, read_timeline
from tests.mpi.jobs import ROOT, Job
from tests.mpi.plans import MODEL
from tests.support.small_plans import config_of, plan_by_rules, request

pytestmark = pytest.mark.mpi
AHEAD_S = 1000
"""The second node's clock before the first's."""
obstacle = cache(find_obstacle)


def two_nodes(folder: Path, gbit_per_s: float = 1.0) -> Path:
    """An mpiexec of two nodes. Where there can be none the test is skipped; in CI it fails."""
    if reason := obstacle():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(reason)
    return write_mpiexec(folder, gbit_per_s=gbit_per_s, clock_ahead_s=AHEAD_S)


@pytest.mark.parametrize(
    ("cores", "nodes", "expected"),
    [((0, 1), 2, [(0,), (1,)]), ((4, 5, 8, 9, 12), 2, [(4, 5), (8, 9, 12)]), ((3,), 2, [(3,), (3,)])],
)
def test_nodes_have_cores_of_their_own(cores: tuple[int, ...], nodes: int, expected: list[tuple[int, ...]]) -> None:
    assert share_out(cores, nodes) == expected


def test_the_link_is_as_slow_as_it_was_asked_to_be(tmp_path: Path) -> None:
    """Through shared memory, which would cross from node to node unasked, it would be faster."""
    mpiexec = two_nodes(tmp_path, gbit_per_s=0.2)
    done = subprocess.run(
        [mpiexec, "-n", "4", sys.executable, "-m", "tests.mpi.two_nodes"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["names"] == ["node1", "node1", "node2", "node2"]
    first, _, other, _ = found["clocks"]
    assert AHEAD_S - 60 < other - first < AHEAD_S + 60
    inside, between = found["bytes_per_s"]
    burst = 1.25  # 256 kB of 2 MB pass at once, and the fastest of a few is taken
    assert between < 0.2e9 / 8 * burst < inside


@cache
def plan_of_two_nodes() -> Plan:
    """Four replicas, two on each node."""
    training = Training(global_batch=8)
    return plan_by_rules(request(4, training, model=MODEL, per_node=2), config_of(training, dp=4), ("data", "tensor"))


@pytest.mark.long
def test_a_training_goes_on_two_levels_and_its_timeline_has_one_clock(tmp_path: Path) -> None:
    mpiexec, plan = two_nodes(tmp_path), plan_of_two_nodes()
    tasks = [actor.task for actor in program_of(plan).actors]
    assert any(isinstance(task, BoxingTask) and task.nodes == ((0, 1), (2, 3)) for task in tasks)
    write_plan(plan, tmp_path / "plan.json")
    arguments = ("train", "plan.json", "--steps", 3, "--json")
    on_nodes, alone = (Job(tmp_path, *arguments, ranks=4, mpiexec=one).wait() for one in (mpiexec, None))
    assert (on_nodes.code, alone.code) == (0, 0), on_nodes.stderr
    assert [step["loss"] for step in on_nodes.documents[:-1]] == [step["loss"] for step in alone.documents[:-1]]
    (summary,) = on_nodes.documents[-1:]
    timeline = read_timeline(tmp_path / summary["run"] / "timeline.json.gz")
    assert timeline.makespan_ns < AHEAD_S * 10**9 / 2
    met: dict[tuple[int, int], list[ActRecord]] = {}
    actors = program_of(plan).actors
    for record in timeline.records:
        meeting = actors[record.actor].rendezvous
        if meeting is not None:
            met.setdefault((meeting, record.number), []).append(record)
    early_ns = [max(one.start_ns for one in acts) - min(one.end_ns for one in acts) for acts in met.values()]
    assert max(early_ns) < 50_000_000, "nobody ends an exchange before the last has begun it"


@pytest.mark.long
def test_a_profile_measures_both_levels(tmp_path: Path) -> None:
    """The longest transfer takes so long that two ranks share the link also where one begins late, its core busy."""
    bytes_per_s = 0.2e9 / 8
    ended = Job(
        tmp_path,
        *("profile", "--out", "cal.json", "--write", "two.toml", "--json"),
        ranks=4,
        mpiexec=two_nodes(tmp_path, gbit_per_s=0.2),
    ).wait()
    assert ended.code == 0, ended.stderr
    cluster, measured = read_cluster(tmp_path / "two.toml"), read_calibration(tmp_path / "cal.json").fitted
    assert (cluster.nodes, cluster.devices_per_node, cluster.fabric, cluster.overlaps) == (2, 2, "tcp", True)
    for kind in (kind for kind in ActKind if kind.is_communication):
        inside, between = (measured[CostKey(kind, level=level)] for level in ("intra", "inter"))
        assert inside.rows == between.rows > 0
    rows = [(row["features"], row["seconds"]) for row in ended.documents[-1]["measurements"]]
    nbytes, seconds = max(
        (one["nbytes"], seconds) for one, seconds in rows if one["kind"] == ActKind.TRANSFER and one["level"] == "inter"
    )
    assert nbytes == 8 << 20
    assert nbytes / seconds < 1.25 * bytes_per_s / 2, "two ranks share a link"
    slow = measured[CostKey(ActKind.TRANSFER, level="inter")].coefficients.s_per_byte
    assert 1 / slow < 2 * bytes_per_s < 1 / measured[CostKey(ActKind.TRANSFER, level="intra")].coefficients.s_per_byte
    assert cluster.inter.bytes_per_s == pytest.approx(1 / slow)


@pytest.mark.parametrize(
    ("names", "nodes"), [(["a"] * 4, 1), (["a", "a", "b", "b"], 2), (["a", "b", "c"], 3), (["a", "b"] * 2, 0)]
)
def test_nodes_share_the_ranks_evenly_and_in_order(names: list[str], nodes: int) -> None:
    if nodes:
        assert count_nodes(names) == nodes
    else:
        with pytest.raises(InputError, match="1 on a, 1 on b, 1 on a, 1 on b"):
            count_nodes(names)


def test_the_command_of_a_rank_is_taken_as_it_is() -> None:
    args = parse(["--nodes", "2", "-n", "4", "python", "-m", "x", "--nodes", "9"])
    assert (args.nodes, args.ranks, args.command) == (2, 4, ["python", "-m", "x", "--nodes", "9"])
