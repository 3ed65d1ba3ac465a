"""Small workloads and fabrics whose figures can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from simulator.exchange.buckets import Buckets
from simulator.exchange.fabric import Fabric, tcp_cloud
from simulator.exchange.horovod import Horovod
from simulator.exchange.key_value import KeyValue
from simulator.exchange.streams import Streams
from simulator.exchange.summation import Summation
from simulator.exchange.training import Scheme
from simulator.exchange.workload import ComputeSpan, Workload

SCHEMES: dict[str, Scheme] = {
    "key-value": KeyValue(),
    "buckets": Buckets(),
    "horovod": Horovod(),
    "cached": Horovod(cached=True),
    "summation": Summation(),
    "servers": Summation(servers=3),
    "streams": Streams(),
}


@pytest.fixture(params=list(SCHEMES))
def scheme(request: pytest.FixtureRequest) -> Scheme:
    return SCHEMES[request.param]


@pytest.fixture
def layers() -> Workload:
    """Twelve layers, each with a weight of 4 MiB and a bias, 3 ms forward and 6 ms backward."""
    return stack(12, 4 * 2**20, forward_ns=3_000_000)


@pytest.fixture
def steady() -> Fabric:
    """Four nodes of eight GPUs without stragglers."""
    return replace(tcp_cloud(4, 25), straggle=0.0)


def stack(layers: int, nbytes: int, *, forward_ns: int) -> Workload:
    """Alike layers, each with a weight and a bias of 4 KiB."""
    both = [(2 * layer, 2 * layer + 1) for layer in range(layers)]
    forward = [ComputeSpan(forward_ns, needs=pair) for pair in both]
    backward = [ComputeSpan(2 * forward_ns, gives=pair) for pair in reversed(both)]
    return Workload(f"{layers} layers", (*forward, *backward), (nbytes, 4096) * layers)
