"""Offloads: where a host may hold some of a training, and where that is looked at."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategy.base.errors import InputError
from strategy.cost.cost import CostModel
from strategy.hardware.presets import find_cluster
from strategy.layout.config import Offload, Recompute
from strategy.models.gpt import GptConfig
from strategy.passes.mixed_precision import Precision
from strategy.passes.training import Training
from strategy.space.candidates import listed, offloads_of, stand_in
from strategy.space.offloads import check_host, least_held_nbytes, updates_no_faster
from strategy.space.request import Pins, Request

DEEP = GptConfig(layers=12, width=1024, heads=8, sequence=512, vocabulary=1024)
TRAINING = Training(global_batch=32, precision=Precision.BF16)
CLUSTER = replace(find_cluster("dgx-a100"), nodes=2)
FILLED = 0.375
"""Part of all memory, see `docs/architecture.md`."""


def asked(limit: int, pins: Pins | None = None) -> Request:
    return Request("deep", DEEP, TRAINING, CostModel(CLUSTER, {}), limit, pins or Pins())


def held() -> int:
    """State of 12 bytes a parameter, and the inputs of all layers."""
    return least_held_nbytes(DEEP, replace(TRAINING, num_micro_batches=1, global_batch=1))


def test_what_must_be_there_is_state_and_what_enters_layers() -> None:
    inputs = DEEP.layers * DEEP.sequence * DEEP.width * 2
    gradients = DEEP.parameters * 4
    assert 12 * DEEP.parameters < held() < 12.5 * DEEP.parameters + gradients + 4 * inputs


@pytest.mark.parametrize("part", [0.99, 1.01])
def test_hosts_are_looked_at_where_memory_is_scarce(part: float) -> None:
    request = asked(int(part * held() / (FILLED * 16)))
    assert stand_in(request) is not None
    kinds = offloads_of(request, Recompute.NONE)
    assert kinds == (tuple(Offload) if part < 1 else (Offload.NONE,))
    found = [
        config.offload for group in listed(replace(request, pins=Pins(tp=2, pp=2, micro_batch=1))) for config in group
    ]
    assert set(found) == set(kinds)


def test_where_there_is_no_host_there_is_none_to_look_at() -> None:
    crowded = asked(2**20)
    bare = replace(crowded, cost=CostModel(replace(CLUSTER, host=None), {}))
    assert offloads_of(crowded, Recompute.NONE) == tuple(Offload)
    assert offloads_of(bare, Recompute.NONE) == (Offload.NONE,)
    with pytest.raises(InputError, match=r"no host to offload to.*\[host\]"):
        check_host(bare.cost.cluster, Offload.ALL)
    with pytest.raises(InputError, match="no host to offload to"):
        list(listed(replace(bare, pins=Pins(offload=Offload.OPTIMIZER))))


def test_a_pin_is_what_is_looked_at() -> None:
    for kind in Offload:
        assert offloads_of(asked(2**20, Pins(offload=kind)), Recompute.FULL) == (kind,)
        assert offloads_of(asked(2**40, Pins(offload=kind)), Recompute.FULL) == (kind,)
        assert stand_in(asked(2**40, Pins(offload=kind))) is not None


def test_a_host_that_updates_faster_is_no_last_resort() -> None:
    """Bounds count updates on the device; where these are the slower ones, candidates are solved one by one."""
    assert CLUSTER.host is not None
    host = replace(CLUSTER.host, memory_bytes_per_s=1e15, flop_per_s=1e18)
    fast = CostModel(replace(CLUSTER, host=host), {})
    assert updates_no_faster(DEEP, TRAINING, CostModel(CLUSTER, {}))
    assert not updates_no_faster(DEEP, TRAINING, fast)
    crowded = replace(asked(2**20), cost=fast)
    assert offloads_of(crowded, Recompute.NONE) == (Offload.NONE, Offload.ACTIVATIONS)
    assert stand_in(replace(crowded, pins=Pins(offload=Offload.OPTIMIZER))) is None
