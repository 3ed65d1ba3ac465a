"""A plan's layouts for torch.distributed.tensor: every op of a step reads and writes as the plan says.

`TorchStep` holds the values of a step on one rank. `run` brings what an op reads to the layouts that it wants, by the
chains of conversions that the plan has, one collective each, and calls a function on the local tensors. SBP here is
DTensor's placements: B is Replicate, S(d) is Shard(d), P(sum) is Partial("sum").

    torchrun --nproc-per-node N train.py      where train.py has:   from layouts import TorchStep, device_mesh
"""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard, distribute_tensor

PLAN: Any = json.loads("{}")
"""`mesh`, `state`, `ops` (what each reads, writes and updates, with layouts), `steps` (value -> layout -> chain)."""


def device_mesh(device: str = "cuda") -> DeviceMesh:
    """The plan's mesh over all ranks, its axes by their names."""
    return init_device_mesh(device, tuple(PLAN["mesh"].values()), mesh_dim_names=tuple(PLAN["mesh"]))


def placements(layout: Sequence[str]) -> list[Placement]:
    """A layout as DTensor writes it, one placement per mesh axis."""
    return [_placement(sbp) for sbp in layout]


def _placement(sbp: str) -> Placement:
    if sbp == "B":
        return Replicate()
    return Partial(sbp[2:-1]) if sbp.startswith("P(") else Shard(int(sbp[2:-1]))


def distributed(state: Mapping[str, torch.Tensor], mesh: DeviceMesh) -> dict[str, DTensor]:
    """Parameters and what else lives from step to step, whole on every rank, as the plan lays them out."""
    return {
        name: distribute_tensor(tensor, mesh, placements(PLAN["state"][name]), src_data_rank=None)
        for name, tensor in state.items()
    }


class TorchStep:
    """Values of one step on this rank: of the state as it lies, of the inputs wherever they are wanted."""

    def __init__(self, mesh: DeviceMesh, state: Mapping[str, DTensor], inputs: Mapping[str, torch.Tensor]) -> None:
        self.mesh = mesh
        self.inputs = inputs
        self.known = {(name, *PLAN["state"][name]): tensor for name, tensor in state.items()}
        self.home = {name: tuple(PLAN["state"][name]) for name in state}

    def read(self, name: str, layout: Sequence[str]) -> DTensor:
        """A value in a layout; a conversion is done once."""
        key = (name, *layout)
        if key in self.known:
            return self.known[key]
        if name in self.inputs:
            found = distribute_tensor(self.inputs[name], self.mesh, placements(layout), src_data_rank=None)
        else:
            found = self.known[(name, *self.home[name])]
            for target in PLAN["steps"][name][" ".join(layout)]:
                found = _as_terms(found, placements(target)).redistribute(self.mesh, placements(target))
        self.known[key] = found
        return found

    def run(self, op: str, function: Callable[..., Sequence[torch.Tensor]]) -> None:
        """Run an op: `function` takes the local tensors that it reads and updates, and gives those that it writes."""
        entry = PLAN["ops"][op]
        read = [self.read(name, layout).to_local() for name, layout in (*entry["reads"], *entry["updates"])]
        written = function(*[_waited(tensor) for tensor in read])
        for (name, layout), local in zip((*entry["writes"], *entry["updates"]), written, strict=True):
            self.home[name] = tuple(layout)
            whole = DTensor.from_local(local, self.mesh, placements(layout), run_check=False)
            self.known[(name, *layout)] = whole


def _as_terms(tensor: DTensor, wanted: Sequence[Placement]) -> DTensor:
    """Terms of a sum along the axes where they are wanted and are none: what others hold is zero here."""
    mesh, local, changed = tensor.device_mesh, tensor.to_local(), list(tensor.placements)
    for axis, (before, after) in enumerate(zip(tensor.placements, wanted, strict=True)):
        if not isinstance(after, Partial) or isinstance(before, Partial):
            continue
        place = mesh.get_local_rank(axis)
        if isinstance(before, Shard):
            pieces = [torch.zeros_like(local)] * mesh.size(axis)
            local = torch.cat([*pieces[:place], local, *pieces[place + 1 :]], before.dim)
        elif place:
            local = torch.zeros_like(local)
        changed[axis] = after
    return DTensor.from_local(local, mesh, changed, run_check=False)


def _waited(tensor: torch.Tensor) -> torch.Tensor:
    """What has been asked of the network is there."""
    wait = getattr(tensor, "wait", None)
    return tensor if wait is None else wait()


def collectives() -> Counter[str]:
    """How many of each kind a step has, by the plan."""
    return Counter(kind for chains in PLAN["kinds"].values() for chain in chains.values() for kind in chain)
