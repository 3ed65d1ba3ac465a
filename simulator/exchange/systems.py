"""Systems by name: how each exchanges the gradients of a workload, with the settings that it ships with."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from simulator.exchange.buckets import MIB, Buckets
from simulator.exchange.fabric import Fabric
from simulator.exchange.horovod import Horovod
from simulator.exchange.key_value import KeyValue
from simulator.exchange.summation import Summation
from simulator.exchange.training import Scheme
from simulator.exchange.tune import tune
from simulator.exchange.workload import Workload

_FRAGMENTS, _STREAMS = (2 * MIB, 8 * MIB, 32 * MIB), (4, 8, 16)

SYSTEMS: Mapping[str, Callable[[Workload, Fabric], Scheme]] = {
    "ddp": lambda _workload, _fabric: Buckets(),
    "horovod": lambda _workload, _fabric: Horovod(fusion_bytes=128 * MIB, cycle_s=1e-3, cached=True),
    "byteps": lambda _workload, _fabric: Summation(),
    "mxnet": lambda _workload, _fabric: KeyValue(),
    "perseus": lambda workload, fabric: tune(workload, fabric, fragments=_FRAGMENTS, streams=_STREAMS).scheme,
}
"""PyTorch's DDP; Horovod with its response cache; BytePS without machines of its own; MXNet's store; Perseus, tuned."""
