"""A PyTorch loop by the exchange, and by DDP over gloo: `mpiexec -n 2 python -m tests.pytorch.exchange_loop FOLDER`.

Rank 0 prints the losses of both, the largest distance of their parameters, and whether Adam's state came over.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

import executor.exchange.horovod as hvd
from executor.exchange.settings import ExchangeSettings
from executor.runtime.transport.mpi import load_mpi

STEPS = 20
BATCH = 8


def net(seed: int) -> nn.Module:
    """A small net that falls fast, with a parameter that no rank uses."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(12, 48), nn.GELU(), nn.LayerNorm(48), nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 5)
    )
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    return model


def train(model: nn.Module, step_of: Any, rank: int, optimizer: torch.optim.Optimizer) -> list[float]:
    """The losses of a rank's own part of the data."""
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(2, BATCH, 12, generator=generator)
    labels = torch.randint(5, (2, BATCH), generator=generator)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(step_of(inputs[rank]), labels[rank])
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def by_exchange(rank: int) -> tuple[nn.Module, list[float], bool]:
    """Ranks begin apart: rank 0's parameters and state go to all."""
    model = net(seed=rank)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01 * (1 + rank))
    if rank == 0:  # a state that is not empty
        model(torch.ones(1, 12)).sum().backward()
        optimizer.step()
    hvd.broadcast_parameters(model.state_dict())
    hvd.broadcast_optimizer_state(optimizer)
    moment = next(iter(optimizer.state.values()))["exp_avg"]
    same = bool((hvd.allreduce(moment, op=hvd.Max) == hvd.allreduce(moment, op=hvd.Min)).all())
    same &= optimizer.param_groups[0]["lr"] == 0.01 and bool(moment.any())
    model.load_state_dict(net(seed=0).state_dict())
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    optimizer = hvd.DistributedOptimizer(optimizer, model.named_parameters())
    return model, train(model, model, rank, optimizer), same


def by_ddp(rank: int, size: int, folder: Path) -> tuple[nn.Module, list[float]]:
    """The same by PyTorch's own; the module is DDP's, which must not be freed: that hangs now and then."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # the host's own name may lead nowhere
    store = torch.distributed.FileStore(str(folder / "store"), size)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=size)
    model = net(seed=0)
    parallel = nn.parallel.DistributedDataParallel(model, find_unused_parameters=True)
    return parallel, train(model, parallel, rank, torch.optim.Adam(model.parameters(), lr=0.01))


def main(folder: Path) -> None:
    """Both, one after the other."""
    torch.set_num_threads(1)
    hvd.init(ExchangeSettings(fusion_bytes=4096, fragment_bytes=2048))
    ours, losses, same = by_exchange(hvd.rank())
    halves = torch.full((3,), 1.5 + hvd.rank(), dtype=torch.bfloat16)
    hvd.allreduce_(halves)
    rank, size = hvd.rank(), hvd.size()
    hvd.shutdown()
    theirs, wanted = by_ddp(rank, size, folder)
    pairs = zip(ours.parameters(), theirs.parameters(), strict=True)
    far = max(float((mine - other).detach().abs().max()) for mine, other in pairs)
    if rank == 0:
        found = {"losses": losses, "ddp": wanted, "parameters": far, "state": same, "halves": halves.tolist()}
        print(json.dumps(found), flush=True)
    load_mpi().Finalize()
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
