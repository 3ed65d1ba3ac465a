"""Nodes of a job, by hostfiles, Slurm's variables and the topology that `nvidia-smi` prints."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from experiments.machine.allocated import (
    AllocatedNodes,
    NodeTopology,
    described,
    nodes_of_hostfile,
    nodes_of_slurm,
    topology_of,
)
from strategy.base.errors import InputError
from strategy.hardware.cluster_file import read_cluster
from strategy.hardware.presets import PRESETS
from tests.experiments.conftest import Command

NVLINK = """\t\x1b[4mGPU0\tGPU1\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPIX\t0-55\t0\t\tN/A
GPU1\tNV18\t X \tSYS\t56-111\t1\t\tN/A
NIC0\tPIX\tSYS\t X

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NV#  = Connection traversing a bonded set of # NVLinks

NIC Legend:

  NIC0: mlx5_0
"""
PCIE = NVLINK.replace("NV18", "PHB")


@pytest.mark.parametrize(
    "text",
    [
        "n1 slots=8\nn2 slots=8\n",
        "# ours\nn1:8\n\nn2:8  # the second\n",
        "n1 slots=8 max_slots=8\nn2 slots=8",
        "n1\n" * 8 + "n2\n" * 8,
    ],
)
def test_hostfiles(text: str) -> None:
    assert nodes_of_hostfile(text, "hosts") == AllocatedNodes(2, 8)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no node"),
        ("n1 slots=0", "no node, or one without ranks"),
        ("n1 slots=8\nn2 slots=4", "nodes have different numbers of ranks"),
        ("n1 slots=8\nn 2 many", "hosts: line 2: not a line of a hostfile"),
    ],
)
def test_wrong_hostfiles(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        nodes_of_hostfile(text, "hosts")


def test_slurm() -> None:
    assert nodes_of_slurm({"SLURM_JOB_NUM_NODES": "4", "SLURM_GPUS_PER_NODE": "h100:8"}) == AllocatedNodes(4, 8, "h100")
    assert nodes_of_slurm({"SLURM_NNODES": "2", "SLURM_GPUS_ON_NODE": "4"}) == AllocatedNodes(2, 4)
    with pytest.raises(InputError, match="SLURM_JOB_NUM_NODES: no number of nodes"):
        nodes_of_slurm({})
    with pytest.raises(InputError, match="SLURM_GPUS_PER_NODE: no number of GPUs per node"):
        nodes_of_slurm({"SLURM_NNODES": "2", "SLURM_GPUS_PER_NODE": "many"})


def test_topologies() -> None:
    assert topology_of(NVLINK, "t") == NodeTopology(2, has_nvlink=True)
    assert topology_of(PCIE, "t") == NodeTopology(2, has_nvlink=False)


@pytest.mark.parametrize("text", ["", "GPU0", "\tGPU0\tGPU1\nGPU0\tX\tNV18\n", NVLINK.replace("NV18", "wire")])
def test_wrong_topologies(text: str) -> None:
    with pytest.raises(InputError, match="t: no matrix of GPUs"):
        topology_of(text, "t")


def test_damaged_topologies_are_read_or_refused() -> None:
    rng = random.Random(0)
    for _ in range(300):
        text = list(NVLINK)
        for place in rng.sample(range(len(text)), 6):
            text[place] = rng.choice("GPU019 XNV\t\n\x1bé")
        try:
            assert topology_of("".join(text), "t").gpus >= 1
        except InputError:
            continue


def test_what_joins_the_gpus_is_their_rate() -> None:
    like = PRESETS["dgx-h100"]
    assert like.host is not None
    joined = described("H100", AllocatedNodes(4, 2), topology_of(NVLINK, "t"))
    assert (joined.nodes, joined.devices_per_node, joined.intra) == (4, 2, like.intra)
    assert described("h100", None, topology_of(PCIE, "t")).intra.bytes_per_s == like.host.link_bytes_per_s
    with pytest.raises(InputError, match="not as many GPUs per node"):
        described("h100", AllocatedNodes(4, 8), topology_of(PCIE, "t"))
    with pytest.raises(InputError, match="nothing says which GPU it is"):
        described("", AllocatedNodes(4, 8), None)


def test_the_command_writes_them(command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts, topology, path = tmp_path / "hosts", tmp_path / "topology", tmp_path / "cluster.toml"
    hosts.write_text("n1 slots=2\nn2 slots=2\n")
    topology.write_text(NVLINK)
    said = command("doctor", "--write", path, "--gpu", "h100", "--hostfile", hosts, "--topology", topology, "--json")
    assert said.code == 0
    assert json.loads(said.out)["cluster"]["nodes"] == 2
    found = read_cluster(path)
    assert (found.nodes, found.devices_per_node, found.device) == (2, 2, PRESETS["dgx-h100"].device)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    monkeypatch.setenv("SLURM_GPUS_PER_NODE", "mi300x:8")
    assert command("doctor", "--write", tmp_path / "slurm.toml", "--slurm").code == 0
    assert read_cluster(tmp_path / "slurm.toml").device.name == "MI300X"


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--gpu", "h100"), "add --write"),
        (("--write", "new.toml", "--gpu", "h100"), "nothing says how many GPUs"),
        (("--write", "new.toml", "--slurm", "--hostfile", "hosts"), "two sources of nodes"),
        (("--write", "new.toml", "--gpu", "h100", "--hostfile", "nowhere"), "the file cannot be read"),
    ],
)
def test_what_is_missing_is_said(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], problem: str
) -> None:
    monkeypatch.chdir(tmp_path)
    said = command("doctor", *arguments)
    assert said.code == 2
    assert problem in said.err
    assert not (tmp_path / "new.toml").exists()
