"""PyTorch's DDP over gloo on the same gradients and the same compute: a step beside those of `exchange_trials`.

Each parameter's backward does its share of the compute, then gives a gradient of ones, in the same order as ours; DDP
packs them in buckets and all-reduces these meanwhile (Li et al. 2020, arXiv:2006.15704).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

BUCKET_MB = (1, 4, 25)
"""Sizes of buckets that are tried; the last is DDP's own."""


def has_torch() -> bool:
    """Whether PyTorch is installed."""
    return importlib.util.find_spec("torch") is not None


def meet(store: Path, rank: int, size: int, *, link: str = "eth0") -> None:
    """Let the processes of a job find each other, by a file that all of them see and that is not there yet.

    `link`: the network interface to meet over; that of an emulated node.
    """
    import os

    import torch

    os.environ["GLOO_SOCKET_IFNAME"] = link
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)


def ddp_step(
    gradients: Mapping[str, np.ndarray[Any, Any]], spend: Callable[[str], None], bucket_mb: int
) -> Callable[[], None]:
    """A step; run it twice before it is timed, for DDP cuts its buckets by the order of the first.

    Args:
        gradients: in the order in which backward passes give them.
        spend: what is computed ahead of each.
        bucket_mb: MiB of a bucket.
    """
    import torch

    class Give(torch.autograd.Function):  # type: ignore[misc]
        """Hands `x` on; its backward computes, and gives a gradient of ones."""

        @staticmethod
        def forward(ctx: Any, x: Any, parameter: Any, compute: Callable[[], None]) -> Any:
            ctx.compute, ctx.shape = compute, parameter.shape
            return x.view_as(x)

        @staticmethod
        def backward(ctx: Any, *grads: Any) -> Any:
            ctx.compute()
            return grads[0], torch.ones(ctx.shape), None

    class Chain(torch.nn.Module):  # type: ignore[misc]
        """All parameters, the last computed first."""

        def __init__(self) -> None:
            super().__init__()
            self.names = list(gradients)[::-1]
            self.given = torch.nn.ParameterList(torch.ones(gradients[name].size) for name in self.names)

        def forward(self, x: Any) -> Any:
            for name, parameter in zip(self.names, self.given, strict=True):
                x = Give.apply(x, parameter, partial(spend, name))
            return x

    model = torch.nn.parallel.DistributedDataParallel(Chain(), bucket_cap_mb=bucket_mb, gradient_as_bucket_view=True)

    def step() -> None:
        model(torch.zeros(1, requires_grad=True)).sum().backward()
        model.zero_grad(set_to_none=True)

    return step
